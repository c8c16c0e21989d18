"""What was commanded counts, whatever an engine of another version makes of the same events."""

from __future__ import annotations

import random

import msgspec
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.commands import Command, JobsEnded
from levada.engine import Engine
from levada.engine.replay import Differences, commanded, reconcile
from levada.live import turn
from levada.live.records import Records
from levada.live.recover import Tail
from levada.live.story import Story
from levada.tables.invariants import check_state
from tests.engine.chaos import Chaos
from tests.engine.inspect import state_of
from tests.engine.machine import NODES, POLICIES, one_step

_STEPS = 120
#: What another version is as sure to take as this one: there would be nothing to compare without it.
_ALWAYS = (ev.JobsSubmitted, ev.NodesAdded, ev.NodesChanged, ev.NodesLost, ev.PolicyChanged, ev.QueuesChanged)


class Diary:
    """Writes down the turns of an engine as the live loop does."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._handle = engine, engine.handle
        self._story = Story(engine, Records(), 0)
        self.turns: list[bytes] = []
        engine.handle = self.handle  # type: ignore[method-assign]

    def handle(self, *events: ev.Event) -> list[Command]:
        """As the engine does."""
        state = state_of(self.engine)
        before, first = state.revision, state.world.next_number
        self._story.begin(events, [], state.now)
        commands = self._handle(*events)
        self._story.lines([], [], state.now)
        over = [each for each in commands if isinstance(each, JobsEnded)]
        ended = tuple(pair for each in over for pair in zip(each.number.tolist(), each.phase.tolist(), strict=True))
        asked = state.in_view if state.deciding == state.revision else None
        entry = turn.encode(before, state.revision, events, asked, first, self._story.standings(), ended)
        self.turns.append(entry)
        return commands


def otherwise(entry: bytes, rng: random.Random, share: float) -> bytes:
    """The turn as a version takes it that makes nothing of some events."""
    told = msgspec.msgpack.decode(entry, type=turn.Turn)
    events = [codec.decode(event) for event in told.events]
    heard = [event if isinstance(event, _ALWAYS) or rng.random() >= share else ev.Tick(at=event.at) for event in events]
    return msgspec.msgpack.encode(msgspec.structs.replace(told, events=tuple(codec.encode(each) for each in heard)))


def after_a_walk(seed: int) -> tuple[Chaos, Engine, list[bytes], random.Random]:
    """A world in the middle of many things, the engine as it was at first, and all turns since."""
    rng = random.Random(seed)
    chaos = Chaos(policy=rng.choice(POLICIES), nodes=NODES)
    for _ in range(30):
        one_step(chaos, rng)
    first, diary = chaos.engine.fork(), Diary(chaos.engine)
    for _ in range(_STEPS):
        one_step(chaos, rng)
    return chaos, first, diary.turns, rng


@pytest.mark.parametrize("seed", range(6))
def test_the_same_engine_makes_the_same_of_the_same_turns(seed: int) -> None:
    chaos, twin, turns, _ = after_a_walk(seed)
    tail = Tail(twin)
    for entry in turns:
        tail.take(turn.replay(twin, entry))
    assert tail.recorded == commanded(chaos.engine)
    assert not Differences.between(twin, tail.recorded)


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(7))
def test_an_engine_that_decides_otherwise_loses_and_doubles_nothing(seed: int, share: float) -> None:
    chaos, first, turns, rng = after_a_walk(seed)
    twin, before = first.fork(), first.fork()
    tail = Tail(twin)
    for entry in turns:
        turn.replay(twin, otherwise(entry, rng, share))
        tail.take(msgspec.msgpack.decode(entry, type=turn.Turn))
        turn.submit(before, entry)
    differ = Differences.between(twin, tail.recorded)
    assert differ or share < 0.1
    if differ:
        reconcile(twin, tail.recorded, differ, tail.ended, before)
    state = state_of(twin)
    assert set(state.world.ids) == set(chaos.engine.query.ids)
    assert check_state(state.world, submitted=state.submitted, ended=state.ended) == []
    go_on(chaos, twin)


def go_on(chaos: Chaos, engine: Engine) -> None:
    """The world meets another engine, as after a restart; `Chaos` checks that nothing runs twice and all jobs end."""
    outstanding = engine.outstanding()
    chaos.engine = engine
    state_of(engine).refused = 0
    chaos.thoughts.clear()
    # Reports that the engine before had not taken died with it: what runs is observed. A failure of an operation that
    # is sent again now would otherwise count against the second attempt.
    chaos.reports.clear()
    chaos.ops += outstanding
    chaos.tell(ev.Restarted(at=chaos.now))
    chaos.observe()
    chaos.settle()
