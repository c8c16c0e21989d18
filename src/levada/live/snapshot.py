"""The whole engine as bytes that tell when they are damaged, and that later versions can read."""

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

_MARK = b"levada snapshot "
_DIGEST = 32

#: Grows when something in a dump means something else than before. What only comes or goes needs no new form.
FORMAT = 1
#: What leads from a dump (as plain dicts and lists) of each older form to the next one.
STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class Unusable(LevadaError):
    """A snapshot that cannot be used; an older one, or the log, can."""


def freeze(engine: Engine) -> bytes:
    """The engine as it is; raises LevadaError where its policy's state cannot be written down."""
    return seal(pack(engine))


def pack(engine: Engine) -> bytes:
    """The first and short half of `freeze`, which must be over before the engine changes."""
    try:
        return codec.pack(persist.dump(engine))
    except (TypeError, ValueError, NotImplementedError) as broken:
        raise LevadaError(f"the state of this policy cannot be written down: {broken}") from broken


def seal(packed: bytes) -> bytes:
    """The second half, which can be done beside the loop."""
    body = zlib.compress(packed, 1)
    head = _MARK + f"{FORMAT} {__version__}\n".encode()
    return head + hashlib.sha256(body).digest() + body


def thaw(data: bytes) -> Engine:
    """The engine that was; raises Unusable."""
    form, body = _opened(data)
    try:
        packed = zlib.decompress(body)
        if form == FORMAT:
            kept = codec.unpack(packed, EngineDump)
        else:
            plain = msgspec.msgpack.decode(packed)
            for each in range(form, FORMAT):
                plain = STEPS[each](plain)
            kept = codec.restored(plain, EngineDump)
        loaded = persist.load(kept, find_policy)
    except Exception as broken:
        raise Unusable(f"it cannot be read ({type(broken).__name__}: {broken})") from broken
    if loaded.missing_policy:
        _log.error("load snapshot: %s", loaded.missing_policy)
    for warning in loaded.warnings:
        _log.warning("load snapshot: %s", warning)
    return loaded.engine


def check(data: bytes) -> None:
    """Raises Unusable where the bytes are not those that were written, or not of a form that can be read."""
    _opened(data)


def _opened(data: bytes) -> tuple[int, bytes]:
    """The form of a snapshot, and what is in it, which is whole."""
    head, newline, _ = data[:200].partition(b"\n")
    form, _, version = head.removeprefix(_MARK).partition(b" ")
    if not (data.startswith(_MARK) and newline and form.isdigit()):
        raise Unusable("it is no snapshot of an engine")
    if int(form) > FORMAT:
        raise Unusable(f"it is of a newer Levada ({version.decode(errors='replace')[:20]}; this is {__version__})")
    begin = len(head) + 1
    digest, body = data[begin : begin + _DIGEST], data[begin + _DIGEST :]
    if hashlib.sha256(body).digest() != digest:
        raise Unusable("it is damaged")
    return int(form), body
