"""One decision of every policy at several sizes: first cold (all jobs pending), then warm.

The time is from the request to the issued operations. `view` selects the jobs that the policy sees, `commit` places,
checks, diffs and adopts the decision, `issue` issues operations.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from time import process_time
from typing import Any

from bench.engine_driver import EngineDriver
from bench.report import Printer, Record, measured
from bench.timing import quantile
from levada import jit
from levada.policies.catalog import POLICIES

#: (jobs, GPUs, limit of p99 in ms, decisions, decisions with --quick)
SIZES = ((100, 1_000, None, 100, 20), (1_000, 10_000, 100.0, 60, 10), (10_000, 100_000, 1_500.0, 20, 4))
#: Policies with superlinear algorithms; their limit applies to as many GPUs as jobs.
STEEP = ("ffdl", "afs-l")
STEEP_SIZE = (1_000, 1_000, 100.0, 60, 10)
#: A larger size is skipped if a decision of the smaller one took longer, because it takes 10 to 100 times as long.
HOPELESS_S = 1.5
#: Measuring time per size.
ENOUGH_S = 6.0


def run(printer: Printer, implementations: list[str], *, quick: bool, only: frozenset[str] = frozenset()) -> None:
    """Measure all policies, or *only* some, with each implementation of the kernels."""
    for name in implementations:
        (jit.install if name == "compiled" else jit.uninstall)()
        printer.title(f"One decision, CPU time, {name} kernels")
        for policy in (record for record in POLICIES if not only or record.name in only):
            module = policy.target.partition(":")[0]
            if find_spec(module) is None:
                note = f"skipped: {module} is not installed"
                printer.add(Record(bench="decide", what=policy.name, kernels=name, note=note))
                continue
            warm_up(policy.name)
            for record in _policy(policy.name, name, quick=quick):
                printer.add(record)


def warm_up(policy: str) -> None:
    """Load or compile every kernel that the policy uses."""
    driver = EngineDriver(policy, 60, 300)
    driver.fill()
    for _ in range(3):
        driver.step()


def _policy(policy: str, kernels: str, *, quick: bool) -> Iterator[Record]:
    sizes = [(*size[:2], size[2] if policy not in STEEP else None, *size[3:]) for size in SIZES]
    if policy in STEEP:
        sizes.insert(1, STEEP_SIZE)
    slowest = 0.0
    for jobs, gpus, limit, decisions, few in sizes:
        fields: dict[str, Any] = {"bench": "decide", "kernels": kernels, "jobs": jobs, "gpus": gpus}
        if slowest > HOPELESS_S:
            note = f"skipped: a decision of the smaller size took {slowest:.1f} s"
            yield Record(what=policy, note=note, **fields)
            continue
        # Garbage of earlier measurements must not be collected during this one.
        gc.collect()
        driver = EngineDriver(policy, jobs, gpus)
        try:
            cold = driver.fill()
            warm = _steps(driver, few if quick else decisions)
        except RuntimeError as error:
            yield Record(what=policy, note=f"failed: {error}", ok=False, **fields)
            continue
        slowest = sum(cold.values())
        yield measured([slowest], what=f"{policy}, cold", limit=limit, parts=_medians([cold]), **fields)
        yield measured(
            [sum(parts.values()) for parts in warm], what=policy, limit=limit, parts=_medians(warm), **fields
        )


def _steps(driver: EngineDriver, decisions: int) -> list[dict[str, float]]:
    """Return the parts of *decisions* decisions, or as many as fit into the time; the first one is not counted."""
    driver.step()
    begin = process_time()
    measured_parts: list[dict[str, float]] = []
    while len(measured_parts) < decisions and (len(measured_parts) < 3 or process_time() - begin < ENOUGH_S):
        measured_parts.append(driver.step())
    return measured_parts


def _medians(parts: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each part in ms."""
    names = list(dict.fromkeys(name for decision in parts for name in decision))
    return {name: round(1e3 * quantile([decision.get(name, 0.0) for decision in parts], 0.5), 3) for name in names}
