"""Learned speeds of workloads, by name.

They are stored apart from snapshots and readable by other versions.

Progress is not in the log, so a replay cannot learn from it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.engine.engine import Engine
from levada.perf import Estimator, EstimatorState, renumbered


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an estimator; its numbers of workloads and types are indices into the lists of names."""

    workloads: list[str]
    types: list[str]
    state: EstimatorState


def dump(engine: Engine) -> bytes | None:
    """All learned speeds; None if the throughput model is not an `Estimator`."""
    world, beliefs = engine._state.world, engine._state.beliefs()
    if not isinstance(beliefs, Estimator):
        return None
    estimates = beliefs.state()
    workloads = sorted({*estimates.workload, *estimates.restart_workload, *estimates.seen})
    types = sorted(set(estimates.gpu_type))
    by_index = renumbered(
        estimates,
        {number: index for index, number in enumerate(workloads)},
        {number: index for index, number in enumerate(types)},
    )
    return msgspec.json.encode(
        Learned(
            workloads=[world.workloads[number] for number in workloads],
            types=[world.inventory.types[number] for number in types],
            state=by_index,
        )
    )


def load(engine: Engine, packed: bytes | str) -> None:
    """Load learned speeds of the workloads and types that *engine* knows; raises `msgspec.DecodeError`."""
    learned, state = msgspec.json.decode(packed, type=Learned), engine._state
    if not isinstance(state.perf, Estimator):
        return
    state.learn()  # queued observations belong to the estimator that is replaced
    known_workloads, known_types = state.world.workloads, state.world.inventory.types
    workloads = {
        index: known_workloads.find(name) for index, name in enumerate(learned.workloads) if name in known_workloads
    }
    types = {index: known_types.find(name) for index, name in enumerate(learned.types) if name in known_types}
    before = state.perf.state()
    estimator = Estimator.restore(renumbered(learned.state, workloads, types), state.perf.tuning)
    estimator.bind(np.array(before.jobs, np.int64), np.array(before.job_workload, np.int64))
    state.perf = estimator


def known_rates(engine: Engine, confidence: float) -> dict[tuple[int, int, int], float]:
    """Steps/s by (workload, type, workers) of workloads with active jobs, known with at least *confidence*."""
    state = engine._state
    beliefs = state.beliefs()
    if not isinstance(beliefs, Estimator):
        return {}
    workload, gpu_type, size = beliefs.seen()
    rates, confidences = beliefs.believed(workload, gpu_type, size)
    known = np.isin(workload, state.world.table.workload[state.living()]) & (confidences >= confidence)
    keys = zip(workload[known].tolist(), gpu_type[known].tolist(), size[known].tolist(), strict=True)
    return dict(zip(keys, rates[known].tolist(), strict=True))
