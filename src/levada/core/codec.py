"""The codec of events, plans and decisions for log, wire and snapshot files.

Columns are encoded as raw bytes, so a batch of a thousand acknowledgements costs about as much as one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

from levada.core.events import Event

T = TypeVar("T")

#: Increased when the meaning of an event changes; logs of a newer version are rejected.
SCHEMA_VERSION = 1

#: Object arrays are excluded: they would be written as addresses.
_DTYPES = frozenset(np.dtype(kind).str for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"))


def _encode_column(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.str in _DTYPES:
        return (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot encode {type(value).__name__} in an event")


def _decode_column(_kind: Any, value: Any) -> Any:
    dtype, shape, raw = value
    if dtype not in _DTYPES:
        raise ValueError(f"invalid column type {dtype!r} in an event")
    return np.frombuffer(raw, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_column)
_decoder: msgspec.msgpack.Decoder[tuple[int, Any]] = msgspec.msgpack.Decoder(tuple[int, Event], dec_hook=_decode_column)


def restored(value: Any, kind: Any) -> Any:
    """Convert *value*, decoded without a type, to *kind*; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=_decode_column)


def pack(value: Any) -> bytes:
    """Encode a value that consists of the same types as events."""
    return _encoder.encode(value)


def unpack(data: bytes, kind: type[T]) -> T:
    """Decode a value of *kind*, with read-only columns; raises `msgspec.DecodeError`."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_column)


def encode(event: Event) -> bytes:
    """Encode an event; equal events have equal bytes."""
    return _encoder.encode((SCHEMA_VERSION, event))


def decode(data: bytes) -> Event:
    """Decode an event; raises `msgspec.ValidationError` for anything else."""
    try:
        version, event = _decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise msgspec.ValidationError(str(error)) from error
    if version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"event has schema version {version}; this program reads {SCHEMA_VERSION}")
    known: Event = event
    return known
