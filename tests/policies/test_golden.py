"""Voda's algorithms: the cases of the golden file and of its specification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from levada.core.reasons import Code
from tests import kernel_modes
from tests.policies.voda_cases import decide, row

GOLDEN = Path(__file__).parents[1] / "golden" / "voda_algorithms.json"
CASES = json.loads(GOLDEN.read_text())


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def _both_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernel_modes.active()
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_golden_case(case: dict[str, Any]) -> None:
    sizes, decision = decide(case)
    assert sizes == case["expected"]
    assert ((decision.count > 0) == (decision.reason == Code.RUNS)).all()


def case(algorithm: str, gpus: int, *jobs: dict[str, Any]) -> dict[str, Any]:
    return {"algorithm": algorithm, "total_gpus": gpus, "jobs": list(jobs)}


POOR = [1.0, 1.25, 1.375, 1.4375, 1.5, 1.5, 1.5, 1.5, 1.5]
WAITING = [
    row(
        f"P{i:02}",
        10 + i,
        2,
        4,
        asked=4,
        queue=1,
        speedup=[1.0, 1.9375 - i / 16, 2.1875 - i / 16, 2.3125 - i / 16, 2.4],
    )
    for i in range(11)
]
WIDE = row("X", 1, 2, 8, asked=8, queue=1, started=1, speedup=[1.0, 1.75, 2.25, 2.5, 2.625, 2.6875, 2.75, 2.78125, 2.8])

DESCRIBED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "fifo-02 a job that does not fit is skipped": (
        case("FIFO", 4, row("A", 1, 3, 3), row("B", 2, 2, 2), row("C", 3, 1, 1)),
        {"A": 3, "B": 0, "C": 1},
    ),
    "srjf-02 the shortest does not fit and is skipped": (
        case("SRJF", 3, row("A", 1, 4, 4, remaining=1.0), row("B", 2, 2, 4, remaining=9.0)),
        {"A": 0, "B": 2},
    ),
    "efifo-06 a blocked job gets no single GPUs": (
        case("ElasticFIFO", 6, row("A", 1, 2, 3), row("B", 2, 5, 8), row("C", 3, 2, 2)),
        {"A": 3, "B": 0, "C": 2},
    ),
    "esrjf-03 rigid jobs stay at their maximum": (
        case("ElasticSRJF", 9, row("A", 1, 2, 2, remaining=5.0), row("B", 2, 3, 3, remaining=1.0)),
        {"A": 2, "B": 3},
    ),
    "tir-02 the first queue goes before an earlier start": (
        case("Tiresias", 4, row("A", 1, 4, 4, queue=1, started=1), row("B", 2, 4, 4, started=5)),
        {"A": 0, "B": 4},
    ),
    "tir-07 a size outside the range is taken into it": (
        case("Tiresias", 8, row("A", 1, 2, 3, asked=5), row("B", 2, 2, 4, asked=1)),
        {"A": 3, "B": 2},
    ),
    "tir-08 jobs that never started come last in their queue": (
        case("Tiresias", 2, row("A", 1, 2, 2), row("B", 9, 2, 2, started=50)),
        {"A": 0, "B": 2},
    ),
    "etir-02 no job grows without a gain": (
        case("ElasticTiresias", 8, row("A", 1, 1, 8, asked=2, started=1, speedup=[1.0, 2.0, 2.0, 3.0])),
        {"A": 2},
    ),
    "etir-04 a waiting job whose minimum does not fit leaves the growth to others": (
        case("ElasticTiresias", 6, row("A", 1, 2, 6, asked=4, started=1), row("B", 2, 3, 4)),
        {"A": 6, "B": 0},
    ),
    "etir-07 ten waiting jobs are not enough for compaction": (
        case("ElasticTiresias", 8, WIDE, *WAITING[:10]),
        {"X": 8} | {f"P{i:02}": 0 for i in range(10)},
    ),
    "etir-09 a rigid job admitted during growth keeps its maximum": (
        case(
            "ElasticTiresias",
            8,
            WIDE,
            row("R", 2, 3, 3, asked=3, queue=1),
            *[row(f"W{i}", 3 + i, 9, 9, queue=1) for i in range(10)],
        ),
        {"X": 5, "R": 3} | {f"W{i}": 0 for i in range(10)},
    ),
    "etir-12 a waiting job wins a tie against a running one of a higher queue": (
        case("ElasticTiresias", 5, row("A", 1, 1, 8, asked=4, started=1), row("B", 2, 1, 4, asked=2, queue=1)),
        {"A": 4, "B": 1},
    ),
    "etir-14 a queue beyond the last is the last": (
        case("ElasticTiresias", 4, row("A", 1, 2, 2, queue=5, started=1), row("B", 2, 3, 3, queue=0)),
        {"A": 0, "B": 3},
    ),
    "ffdl-02 the steeper curve takes the rest": (
        case("FfDLOptimizer", 4, row("A", 1, 1, 4, speedup=POOR), row("B", 2, 1, 4)),
        {"A": 1, "B": 3},
    ),
    "ffdl-04 nothing is given on a plateau": (
        case("FfDLOptimizer", 8, row("A", 1, 1, 8, speedup=[1.0] + [2.0] * 8)),
        {"A": 2},
    ),
    "ffdl-07 no GPUs": (case("FfDLOptimizer", 0, row("A", 1, 1, 4)), {"A": 0}),
    "ffdl-08 a rise after a dip is found": (
        case("FfDLOptimizer", 5, row("A", 1, 1, 4, speedup=[1.0, 0.5, 0.5, 4.0]), row("B", 2, 1, 4)),
        {"A": 4, "B": 1},
    ),
    "ffdl-10 minimums in order of submission, who does not fit is left out": (
        case("FfDLOptimizer", 5, row("A", 1, 2, 2), row("B", 2, 4, 4), row("C", 3, 3, 3)),
        {"A": 2, "B": 0, "C": 3},
    ),
    "afsl-04 a short job that scales badly leaves the second GPU": (
        case("AFS-L", 2, row("A", 1, 1, 4, remaining=10.0, speedup=POOR), row("B", 2, 1, 4, remaining=99.0)),
        {"A": 1, "B": 1},
    ),
    "afsl-06 of equal lengths the later wins": (
        case("AFS-L", 1, row("A", 1, 1, 4, remaining=10.0), row("B", 2, 1, 4, remaining=10.0)),
        {"A": 0, "B": 1},
    ),
    "afsl-02 a lone job grows to its maximum": (
        case("AFS-L", 9, row("A", 1, 2, 5, remaining=10.0)),
        {"A": 5},
    ),
}


@pytest.mark.parametrize(("document", "expected"), DESCRIBED.values(), ids=list(DESCRIBED))
def test_described_case(document: dict[str, Any], expected: dict[str, int]) -> None:
    sizes, _ = decide(document)
    assert sizes == expected


def test_the_threshold_of_compaction_is_an_option() -> None:
    sizes, _ = decide(case("ElasticTiresias", 8, WIDE, *WAITING[:2]), compaction_threshold=1)
    assert sizes == {"X": 4, "P00": 2, "P01": 2}


def test_a_job_that_gains_nothing_is_told_so() -> None:
    lame = row("A", 1, 2, 4, asked=4, speedup=[1.0, 0.0, 0.0, 0.0])
    sizes, decision = decide(case("ElasticTiresias", 3, lame))
    assert sizes == {"A": 0}
    assert decision.reason.tolist() == [Code.NO_GAIN]
