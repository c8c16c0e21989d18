"""What the engine learns from reports, beside what it does about them."""

from __future__ import annotations

import numpy as np

from levada.core import events as ev
from levada.perf import RestartKind, Tuning
from tests.engine.chaos import desk
from tests.engine.inspect import state_of


def test_what_a_resize_in_place_cost_is_learned_from_those_who_went_through_it() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4)
    chaos.calm()
    state = state_of(chaos.engine)
    generation = state.world.table.generation[[state.world.slot("j1")]].copy()
    expected = state.perf.restart_cost_s(0, 2, 4)

    def told(generation: np.ndarray, seconds: float) -> float:
        chaos.tell(ev.Paused(at=chaos.now, number=np.array([0]), generation=generation, seconds=np.array([seconds])))
        state.learn()
        return float(state.perf.restart_cost_s(0, 2, 4))

    assert told(generation - 1, 0.5) == expected, "of an operation that is over"
    assert told(generation, np.nan) == expected
    assert told(generation, 0.01) < 1.0 < expected


def test_progress_teaches_the_speed_of_the_workload_where_it_runs() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=2)
    chaos.calm()
    for second in range(1, 31):
        chaos.pass_time(1.0)
        chaos.tell(ev.Progress(at=chaos.now, number=np.array([0]), steps=np.array([12.0 * second])))
    state = state_of(chaos.engine)
    state.learn()
    table = state.world.table
    slot = state.world.slot("j1")
    (point,) = state.perf.points(int(table.workload[slot]))
    assert (point.gpu_type, point.workers) == (int(table.held_type[slot]), 2)
    assert abs(point.rate - 12.0) < 1e-9
    assert state.perf.rate(0, point.gpu_type, 2) == point.rate


def test_half_a_gpu_teaches_the_speed_of_a_whole_one() -> None:
    chaos = desk(1, policy="fifo")
    chaos.submit(min=1, max=1, milli=500)
    chaos.calm()
    for second in range(1, 31):
        chaos.pass_time(1.0)
        chaos.tell(ev.Progress(at=chaos.now, number=np.array([0]), steps=np.array([6.0 * second])))
    state = state_of(chaos.engine)
    state.learn()
    kind = int(state.world.table.held_type[state.world.slot("j1")])
    assert abs(state.perf.rate(0, kind, 1) - 12.0) < 1e-9
    assert abs(state.perf.rate(0, kind, 1, milli=500) - 6.0) < 1e-9, "as it was seen"


def test_how_long_a_job_takes_to_save_and_leave_is_learned() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4)
    chaos.calm()
    chaos.users("suspend", 0)
    chaos.pass_time(7.0)
    chaos.carry_out()
    chaos.calm()
    state = state_of(chaos.engine)
    state.learn()
    ((kind, (seconds, times)),) = state.perf.pauses(int(state.world.table.workload[state.world.slot("j1")])).items()
    assert (kind, times) == (RestartKind.STOP, 1)
    assert 7.0 < seconds < Tuning().stop_s
