"""What an engine has learned of workloads' speed, by names: kept apart from snapshots and valid in other versions.

Progress is not in the log, so that a replay teaches nothing: what progress taught is stored by itself.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.engine.engine import Engine
from levada.perf import Estimator, EstimatorState, renumbered


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimator knows; its numbers of workloads and types are places in the lists of names."""

    workloads: list[str]
    types: list[str]
    state: EstimatorState


def dump(engine: Engine) -> bytes | None:
    """All that was learned; None where beliefs are of another kind."""
    world, beliefs = engine._state.world, engine._state.beliefs()
    if not isinstance(beliefs, Estimator):
        return None
    told = beliefs.state()
    workloads = sorted({*told.workload, *told.restart_workload, *told.seen})
    types = sorted(set(told.gpu_type))
    moved = renumbered(
        told,
        {number: place for place, number in enumerate(workloads)},
        {number: place for place, number in enumerate(types)},
    )
    return msgspec.json.encode(
        Learned(
            workloads=[world.workloads[each] for each in workloads],
            types=[world.inventory.types[each] for each in types],
            state=moved,
        )
    )


def load(engine: Engine, packed: bytes | str) -> None:
    """Let *engine* believe what was learned, as far as it knows the names; raises `msgspec.DecodeError`."""
    told, state = msgspec.json.decode(packed, type=Learned), engine._state
    if not isinstance(state.perf, Estimator):
        return
    state.learn()  # what is pending belongs to the beliefs that are replaced
    names, kinds = state.world.workloads, state.world.inventory.types
    workloads = {place: names.find(name) for place, name in enumerate(told.workloads) if name in names}
    types = {place: kinds.find(name) for place, name in enumerate(told.types) if name in kinds}
    before = state.perf.state()
    fresh = Estimator.restore(renumbered(told.state, workloads, types), state.perf.tuning)
    fresh.bind(np.array(before.jobs, np.int64), np.array(before.job_workload, np.int64))
    state.perf = fresh


def known_rates(engine: Engine, confidence: float) -> dict[tuple[int, int, int], float]:
    """Steps per second by (workload, type, workers) of workloads with active jobs, where this well known."""
    state = engine._state
    beliefs = state.beliefs()
    if not isinstance(beliefs, Estimator):
        return {}
    workload, gpu_type, size = beliefs.seen()
    rates, sure = beliefs.believed(workload, gpu_type, size)
    told = np.isin(workload, state.world.table.workload[state.living()]) & (sure >= confidence)
    cells = zip(workload[told].tolist(), gpu_type[told].tolist(), size[told].tolist(), strict=True)
    return dict(zip(cells, rates[told].tolist(), strict=True))
