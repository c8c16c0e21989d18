"""Log entry of a turn: events, jobs in the policy's view, commanded states."""

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


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One call of `Engine.handle`.

    It has no progress, which jobs report again after a restart. Apart from itself, progress changes only the count of
    events and, through guards, the jobs in the policy's view: both are logged.
    """

    #: The engine's event count before and after the turn.
    before: int
    after: int
    events: tuple[bytes, ...]
    #: Numbers of the jobs in the policy's view (int64), if the turn asked for a decision.
    asked: bytes | None = None
    #: Number of the next new job before the turn; -1 in entries of older versions.
    next_number: int = -1
    #: Commanded states of the jobs that the turn changed. They win over a replay by another version. None in entries of
    #: older versions.
    standings: tuple[CommandedState, ...] | None = None
    #: Number and phase of the jobs that ended.
    ended: tuple[tuple[int, int], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)


def encode(
    before: int,
    after: int,
    events: tuple[Event, ...],
    asked: Ints | None,
    next_number: int,
    standings: tuple[CommandedState, ...],
    ended: tuple[tuple[int, int], ...],
) -> bytes:
    """Encode a turn."""
    return _encoder.encode(
        LogEntry(
            before=before,
            after=after,
            events=tuple(codec.encode(event) for event in events),
            asked=None if asked is None else np.ascontiguousarray(asked, np.int64).tobytes(),
            next_number=next_number,
            standings=standings,
            ended=ended,
        )
    )


def replay(engine: Engine, data: bytes) -> LogEntry:
    """Apply this turn to *engine*; its commands are dropped, because they were executed when it was logged.

    Damaged bytes may raise any exception.
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
    """Add only the jobs that were submitted in this turn to *engine*."""
    turn = _decoder.decode(data)
    engine_replay.admit(engine, [codec.decode(event) for event in turn.events], turn.next_number)
