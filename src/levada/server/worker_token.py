"""The token of a worker: which worker of which job it is, signed, so that nobody need remember it."""

from __future__ import annotations

import hashlib
import hmac

from levada.server.ports import Worker

_PREFIX = "lw2"


def sign(key: bytes, job: str, number: int, worker: str) -> str:
    """The token of one worker of the job of that id and number."""
    body = f"{_PREFIX}.{job}.{number}.{worker}"
    return f"{body}.{_seal(key, body)}"


def check(key: bytes, token: str) -> Worker | None:
    """Whose token it is; None where it is no worker's or was not signed with *key*."""
    body, _, seal = token.rpartition(".")
    # Bytes, because a text that is not ASCII cannot be compared in constant time.
    if not hmac.compare_digest(seal.encode(), _seal(key, body).encode()):
        return None
    prefix, _, rest = body.partition(".")
    # The id of a job may hold dots, what comes after it does not.
    job, number, worker = (["", *rest.rsplit(".", 2)])[-3:]
    if prefix != _PREFIX or not (number.isascii() and number.isdecimal()):
        return None
    return Worker(job, int(number), worker)


def _seal(key: bytes, body: str) -> str:
    return hmac.new(key, body.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
