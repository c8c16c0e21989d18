"""The token of a worker: which job and generation it belongs to, signed, so that nobody need remember it."""

from __future__ import annotations

import hashlib
import hmac

from levada.server.ports import Worker

_PREFIX = "lw1"


def sign(key: bytes, job: str, generation: int) -> str:
    """The token of a job's workers in one generation."""
    body = f"{_PREFIX}.{job}.{generation}"
    return f"{body}.{_seal(key, body)}"


def check(key: bytes, token: str) -> Worker | None:
    """Whose token it is; None where it is no worker's or was not signed with *key*."""
    body, _, seal = token.rpartition(".")
    # Bytes, because a text that is not ASCII cannot be compared in constant time.
    if not hmac.compare_digest(seal.encode(), _seal(key, body).encode()):
        return None
    prefix, _, rest = body.partition(".")
    job, _, generation = rest.rpartition(".")
    if prefix != _PREFIX or not generation.isdecimal():
        return None
    return Worker(job, int(generation))


def _seal(key: bytes, body: str) -> str:
    return hmac.new(key, body.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
