"""A turn of the engine as the log keeps it: what it was given, and what it asked its policy about."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core import codec
from levada.core.events import Event
from levada.core.types import Ints
from levada.engine import Engine


class Turn(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One call of `Engine.handle`.

    Progress is not in it: jobs tell it again after a restart. What it changes apart from itself is the count of events
    and, through guards, which jobs the policy was asked about: both are kept.
    """

    #: The engine's count of events before and after.
    before: int
    after: int
    events: tuple[bytes, ...]
    #: Numbers of the jobs that the policy was asked about (int64), where it was.
    asked: bytes | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Turn)


def encode(before: int, after: int, events: tuple[Event, ...], asked: Ints | None) -> bytes:
    """The bytes of a turn."""
    numbers = None if asked is None else np.ascontiguousarray(asked, np.int64).tobytes()
    said = tuple(codec.encode(event) for event in events)
    return _encoder.encode(Turn(before=before, after=after, events=said, asked=numbers))


def replay(engine: Engine, data: bytes) -> None:
    """Brings *engine* to where it was after this turn; what it commands has been carried out before.

    Raises all kinds of errors where the bytes are not what `encode` gave.
    """
    turn = _decoder.decode(data)
    events = [codec.decode(event) for event in turn.events]
    state = engine.state
    state.revision = turn.before
    engine.handle(*events)
    state.revision = turn.after
    if turn.asked is not None:
        state.deciding, state.in_view = turn.after, np.frombuffer(turn.asked, np.int64)
