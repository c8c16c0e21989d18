"""Snapshots of the engine as bytes, with checksum and format version."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from levada import __version__
from levada.core import codec
from levada.engine import Engine, persist
from levada.engine.dump_format import EngineDump
from levada.errors import LevadaError
from levada.plugins import find_policy

_log = logging.getLogger(__name__)

_MAGIC = b"levada snapshot "
_DIGEST = 32

#: Format of dumps; incremented when the meaning of a field changes. New or removed fields need no new format.
FORMAT = 1
#: Conversions of plain dumps (dicts and lists) from each older format to the next.
STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class Unusable(LevadaError):
    """The snapshot cannot be used; recovery tries an older one or the whole log."""


def freeze(engine: Engine) -> bytes:
    """Return a snapshot of the engine; raises LevadaError if its policy's state cannot be encoded."""
    return seal(pack(engine))


def pack(engine: Engine) -> bytes:
    """First, short half of `freeze`; must complete before the engine changes."""
    try:
        return codec.pack(persist.dump(engine))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise LevadaError(f"cannot encode the state of this policy: {error}") from error


def seal(packed: bytes) -> bytes:
    """Second half of `freeze`, which can run in a thread."""
    body = zlib.compress(packed, 1)
    head = _MAGIC + f"{FORMAT} {__version__}\n".encode()
    return head + hashlib.sha256(body).digest() + body


def thaw(data: bytes) -> Engine:
    """Return the engine of a snapshot; raises Unusable."""
    version, body = _open(data)
    try:
        packed = zlib.decompress(body)
        if version == FORMAT:
            dump = codec.unpack(packed, EngineDump)
        else:
            plain = msgspec.msgpack.decode(packed)
            for step in range(version, FORMAT):
                plain = STEPS[step](plain)
            dump = codec.restored(plain, EngineDump)
        loaded = persist.load(dump, find_policy)
    except Exception as error:
        raise Unusable(f"it cannot be read ({type(error).__name__}: {error})") from error
    if loaded.missing_policy:
        _log.error("load snapshot: %s", loaded.missing_policy)
    for warning in loaded.warnings:
        _log.warning("load snapshot: %s", warning)
    return loaded.engine


def check(data: bytes) -> None:
    """Raise Unusable for damaged bytes or an unknown format."""
    _open(data)


def _open(data: bytes) -> tuple[int, bytes]:
    """Return format and body of a snapshot after checking its digest."""
    head, newline, _ = data[:200].partition(b"\n")
    format_, _, version = head.removeprefix(_MAGIC).partition(b" ")
    if not (data.startswith(_MAGIC) and newline and format_.isdigit()):
        raise Unusable("it is not a snapshot of an engine")
    if int(format_) > FORMAT:
        raise Unusable(f"it is of a newer Levada ({version.decode(errors='replace')[:20]}; this is {__version__})")
    begin = len(head) + 1
    digest, body = data[begin : begin + _DIGEST], data[begin + _DIGEST :]
    if hashlib.sha256(body).digest() != digest:
        raise Unusable("it is damaged")
    return int(format_), body
