"""One codec for events, plans and decisions: the log, the wire and snapshot files share it.

Columns go as their raw bytes, so that a batch of a thousand acknowledgements costs about as much as one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

from levada.core.events import Event

T = TypeVar("T")

#: Grows when the meaning of an event changes; a log of a newer version is refused.
SCHEMA_VERSION = 1

#: Numbers and truths. Objects would be written as their addresses.
_DTYPES = frozenset(np.dtype(kind).str for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"))


def _encode_column(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.str in _DTYPES:
        return (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no place in an event")


def _decode_column(_kind: Any, value: Any) -> Any:
    dtype, shape, raw = value
    if dtype not in _DTYPES:
        raise ValueError(f"a column of {dtype!r} has no place in an event")
    return np.frombuffer(raw, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_column)
_decoder: msgspec.msgpack.Decoder[tuple[int, Any]] = msgspec.msgpack.Decoder(tuple[int, Event], dec_hook=_decode_column)


def restored(value: Any, kind: Any) -> Any:
    """*value*, as decoded without knowing its type, as a value of *kind*; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=_decode_column)


def pack(value: Any) -> bytes:
    """The bytes of any value that is made as events are."""
    return _encoder.encode(value)


def unpack(data: bytes, kind: type[T]) -> T:
    """The value of *kind* that these bytes are; raises `msgspec.DecodeError`. Its columns can only be read."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_column)


def encode(event: Event) -> bytes:
    """The bytes of an event; equal events have equal bytes."""
    return _encoder.encode((SCHEMA_VERSION, event))


def decode(data: bytes) -> Event:
    """The event of these bytes; raises `msgspec.ValidationError` on anything else."""
    try:
        version, event = _decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise msgspec.ValidationError(str(broken)) from broken
    if version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"event of schema {version}; this program knows {SCHEMA_VERSION}")
    known: Event = event
    return known
