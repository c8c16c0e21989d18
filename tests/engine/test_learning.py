"""Learning from reports: costs and speeds."""

from __future__ import annotations

import numpy as np

from levada.core import events as ev
from levada.perf import RestartKind, Tuning
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import faulty_world


def test_the_cost_of_a_resize_in_place_is_learned_from_pause_reports() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4)
    system.calm()
    state = state_of(system.engine)
    generation = state.world.table.generation[[state.world.slot("j1")]].copy()
    expected = state.perf.restart_cost_s(0, 2, 4)

    def cost_after_report(generation: np.ndarray, seconds: float) -> float:
        system.tell(ev.Paused(at=system.now, number=np.array([0]), generation=generation, seconds=np.array([seconds])))
        state.learn()
        return float(state.perf.restart_cost_s(0, 2, 4))

    assert cost_after_report(generation - 1, 0.5) == expected, "a report of an older generation is ignored"
    assert cost_after_report(generation, np.nan) == expected
    assert cost_after_report(generation, 0.01) < 1.0 < expected


def test_progress_updates_the_speed_of_the_workload_on_its_type() -> None:
    system = faulty_world(4)
    system.submit(min=2, max=2)
    system.calm()
    for second in range(1, 31):
        system.pass_time(1.0)
        system.tell(ev.Progress(at=system.now, number=np.array([0]), steps=np.array([12.0 * second])))
    state = state_of(system.engine)
    state.learn()
    table = state.world.table
    slot = state.world.slot("j1")
    (point,) = state.perf.points(int(table.workload[slot]))
    assert (point.gpu_type, point.workers) == (int(table.held_type[slot]), 2)
    assert abs(point.rate - 12.0) < 1e-9
    assert state.perf.rate(0, point.gpu_type, 2) == point.rate


def test_half_a_gpu_updates_the_speed_of_a_whole_gpu() -> None:
    system = faulty_world(1, policy="fifo")
    system.submit(min=1, max=1, milli=500)
    system.calm()
    for second in range(1, 31):
        system.pass_time(1.0)
        system.tell(ev.Progress(at=system.now, number=np.array([0]), steps=np.array([6.0 * second])))
    state = state_of(system.engine)
    state.learn()
    kind = int(state.world.table.held_type[state.world.slot("j1")])
    assert abs(state.perf.rate(0, kind, 1) - 12.0) < 1e-9
    assert abs(state.perf.rate(0, kind, 1, milli=500) - 6.0) < 1e-9, "the observed rate"


def test_the_time_to_save_and_stop_is_learned() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4)
    system.calm()
    system.users("suspend", 0)
    system.pass_time(7.0)
    system.carry_out()
    system.calm()
    state = state_of(system.engine)
    state.learn()
    ((kind, (seconds, times)),) = state.perf.pauses(int(state.world.table.workload[state.world.slot("j1")])).items()
    assert (kind, times) == (RestartKind.STOP, 1)
    assert 7.0 < seconds < Tuning().stop_s
