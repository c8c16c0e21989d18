"""Decide + place + diff + check, for every policy and size: once cold (all jobs wait), then warm, decision by decision.

A decision is measured from the question to the operations that go out. `view` is the choice of the jobs that the
policy may see, `commit` is place + check + diff + taking over, `issue` sends operations out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from time import process_time
from typing import Any

from bench.floor import Floor
from bench.report import Printer, Record, measured
from bench.timing import quantile
from levada import jit
from levada.policies.table import POLICIES

#: (jobs, GPUs, limit of p99 in ms, decisions, decisions when quick)
SIZES = ((100, 1_000, None, 100, 20), (1_000, 10_000, 100.0, 60, 10), (10_000, 100_000, 1_500.0, 20, 4))
#: Policies whose algorithms grow faster; their limit is for as many GPUs as jobs.
STEEP = ("ffdl", "afs-l")
STEEP_SIZE = (1_000, 1_000, 100.0, 60, 10)
#: A larger size is tried only if a decision of the smaller one took less, in seconds, for the next one takes ten to a
#: hundred times as long; and no size is measured longer than this.
HOPELESS_S = 1.5
ENOUGH_S = 6.0


def run(printer: Printer, implementations: list[str], *, quick: bool, only: frozenset[str] = frozenset()) -> None:
    """Measures all policies, or *only* some, under each implementation of the kernels."""
    for name in implementations:
        (jit.install if name == "compiled" else jit.uninstall)()
        printer.title(f"One decision, CPU time, {name} kernels")
        for policy in (each for each in POLICIES if not only or each.name in only):
            module = policy.target.partition(":")[0]
            if find_spec(module) is None:
                note = f"skipped: there is no {module}"
                printer.add(Record(bench="decide", what=policy.name, kernels=name, note=note))
                continue
            warm_up(policy.name)
            for record in _policy(policy.name, name, quick=quick):
                printer.add(record)


def warm_up(policy: str) -> None:
    """Loads or compiles every kernel that the policy leads to."""
    floor = Floor(policy, 60, 300)
    floor.fill()
    for _ in range(3):
        floor.step()


def _policy(policy: str, kernels: str, *, quick: bool) -> Iterator[Record]:
    sizes = [(*size[:2], size[2] if policy not in STEEP else None, *size[3:]) for size in SIZES]
    if policy in STEEP:
        sizes.insert(1, STEEP_SIZE)
    slowest = 0.0
    for jobs, gpus, limit, decisions, few in sizes:
        known: dict[str, Any] = {"bench": "decide", "kernels": kernels, "jobs": jobs, "gpus": gpus}
        if slowest > HOPELESS_S:
            note = f"skipped: a decision of the size before took {slowest:.1f} s"
            yield Record(what=policy, note=note, **known)
            continue
        # What was measured before must not be swept up at the cost of this.
        gc.collect()
        floor = Floor(policy, jobs, gpus)
        try:
            cold = floor.fill()
            warm = _steps(floor, few if quick else decisions)
        except RuntimeError as broken:
            yield Record(what=policy, note=f"broken: {broken}", ok=False, **known)
            continue
        slowest = sum(cold.values())
        yield measured([slowest], what=f"{policy}, cold", limit=limit, parts=_medians([cold]), **known)
        yield measured([sum(parts.values()) for parts in warm], what=policy, limit=limit, parts=_medians(warm), **known)


def _steps(floor: Floor, decisions: int) -> list[dict[str, float]]:
    """The parts of so many decisions, or of as many as there is time for; the first one is not counted."""
    floor.step()
    begin = process_time()
    measured_parts: list[dict[str, float]] = []
    while len(measured_parts) < decisions and (len(measured_parts) < 3 or process_time() - begin < ENOUGH_S):
        measured_parts.append(floor.step())
    return measured_parts


def _medians(parts: list[dict[str, float]]) -> dict[str, float]:
    """The median of each part, in ms."""
    names = list(dict.fromkeys(name for each in parts for name in each))
    return {name: round(1e3 * quantile([each.get(name, 0.0) for each in parts], 0.5), 3) for name in names}
