"""State of an estimator as plain lists."""

from collections.abc import Mapping

import msgspec

from levada.perf.tuning import RestartKind


class EstimatorState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an estimator has learned."""

    version: int = 1
    #: Job numbers and the workload of each.
    jobs: list[int] = []
    job_workload: list[int] = []
    #: By (workload, GPU type, size): mean rate in steps/s, effective weight in s, outliers in a row.
    workload: list[int] = []
    gpu_type: list[int] = []
    workers: list[int] = []
    rate: list[float] = []
    weight_s: list[float] = []
    strikes: list[int] = []
    #: By (workload, kind): mean pause in s, and number of pauses.
    restart_workload: list[int] = []
    restart_kind: list[RestartKind] = []
    restart_s: list[float] = []
    restart_count: list[float] = []
    ignored: int = 0
    outliers: int = 0
    #: Workloads, least recently observed first.
    seen: list[int] = []


def renumbered(state: EstimatorState, workloads: Mapping[int, int], types: Mapping[int, int]) -> EstimatorState:
    """Renumber workloads and GPU types; drops those without a new number, and all jobs."""
    cells = sorted(
        (at for at, workload in enumerate(state.workload) if workload in workloads and state.gpu_type[at] in types),
        # The estimator requires this order.
        key=lambda at: (workloads[state.workload[at]], types[state.gpu_type[at]], state.workers[at]),
    )
    costs = [at for at, workload in enumerate(state.restart_workload) if workload in workloads]
    return EstimatorState(
        workload=[workloads[state.workload[at]] for at in cells],
        gpu_type=[types[state.gpu_type[at]] for at in cells],
        workers=[state.workers[at] for at in cells],
        rate=[state.rate[at] for at in cells],
        weight_s=[state.weight_s[at] for at in cells],
        strikes=[state.strikes[at] for at in cells],
        restart_workload=[workloads[state.restart_workload[at]] for at in costs],
        restart_kind=[state.restart_kind[at] for at in costs],
        restart_s=[state.restart_s[at] for at in costs],
        restart_count=[state.restart_count[at] for at in costs],
        ignored=state.ignored,
        outliers=state.outliers,
        seen=[workloads[workload] for workload in state.seen if workload in workloads],
    )
