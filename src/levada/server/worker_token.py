"""Signed tokens of workers: job, number and name; the server stores none."""

from __future__ import annotations

import hashlib
import hmac

from levada.server.interfaces import WorkerIdentity

_PREFIX = "lw2"


def sign(key: bytes, job: str, number: int, worker: str) -> str:
    """Return the token of one worker of the job with this id and number."""
    body = f"{_PREFIX}.{job}.{number}.{worker}"
    return f"{body}.{_signature(key, body)}"


def check(key: bytes, token: str) -> WorkerIdentity | None:
    """Return the worker that a token identifies; None if it is not a worker token or not signed with *key*."""
    body, _, signature = token.rpartition(".")
    # Compare bytes: `compare_digest` does not accept text that is not ASCII.
    if not hmac.compare_digest(signature.encode(), _signature(key, body).encode()):
        return None
    prefix, _, rest = body.partition(".")
    # The id of a job may contain dots; number and worker name do not.
    job, number, worker = (["", *rest.rsplit(".", 2)])[-3:]
    if prefix != _PREFIX or not (number.isascii() and number.isdecimal()):
        return None
    return WorkerIdentity(job, int(number), worker)


def _signature(key: bytes, body: str) -> str:
    return hmac.new(key, body.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
