"""A turn of the engine as the log keeps it: what it was given, whom it asked its policy about, what it commanded."""

from __future__ import annotations

import logging

import msgspec
import numpy as np

from levada.core import codec
from levada.core.commands import Faulted
from levada.core.events import Event
from levada.core.types import Ints
from levada.engine import Engine
from levada.engine import replay as engine_replay
from levada.engine.replay import CommandedState

_log = logging.getLogger(__name__)


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
    #: The number that the next job would get before it; -1 where nobody wrote it down.
    next_number: int = -1
    #: How jobs stood after it that stood otherwise before. Commands were given by this: whatever another version of
    #: the engine makes of the events, this counts. None where nobody wrote it down.
    standings: tuple[CommandedState, ...] | None = None
    #: Jobs that ended in it: number and phase.
    ended: tuple[tuple[int, int], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Turn)


def encode(
    before: int,
    after: int,
    events: tuple[Event, ...],
    asked: Ints | None,
    next_number: int,
    standings: tuple[CommandedState, ...],
    ended: tuple[tuple[int, int], ...],
) -> bytes:
    """The bytes of a turn."""
    return _encoder.encode(
        Turn(
            before=before,
            after=after,
            events=tuple(codec.encode(event) for event in events),
            asked=None if asked is None else np.ascontiguousarray(asked, np.int64).tobytes(),
            next_number=next_number,
            standings=standings,
            ended=ended,
        )
    )


def replay(engine: Engine, data: bytes) -> Turn:
    """Brings *engine* to where it was after this turn; what it commands has been carried out before.

    Raises all kinds of errors where the bytes are not what `encode` gave.
    """
    turn = _decoder.decode(data)
    commands = engine_replay.replay(
        engine,
        [codec.decode(event) for event in turn.events],
        before=turn.before,
        after=turn.after,
        next_number=turn.next_number,
        asked=None if turn.asked is None else np.frombuffer(turn.asked, np.int64),
    )
    for command in commands:
        if isinstance(command, Faulted):
            _log.warning("replay repeats an engine fault in %s: %s", command.kind, command.error)
    return turn


def submit(engine: Engine, data: bytes) -> None:
    """Lets *engine* know of the jobs that came in this turn, and of nothing else."""
    turn = _decoder.decode(data)
    engine_replay.admit(engine, [codec.decode(event) for event in turn.events], turn.next_number)
