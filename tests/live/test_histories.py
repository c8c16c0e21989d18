"""The same random job histories in the simulator, in a server and replayed from its log: the same bytes.

Twenty seeds; each with compiled and with interpreted kernels. Decisions, operations, the reasons of all jobs after every
call of the engine, ends of jobs and the times at which the engine wants to be woken must be the same in all six runs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import kernel_modes
from tests.live.histories import JobHistory, simulated
from tests.live.recording import Step, first_difference
from tests.live.scripted_server import replayed, served

#: Seeds with cycles of waits, which are rare. If a change of the engine leaves too few, choose other seeds.
_SEEDS = range(180, 200)
#: Minimum occurrences in all histories together, so that the comparison covers them.
_LEAST = {
    # Events of jobs and nodes.
    "JobsSubmitted": 150,
    "JobsCancelled": 10,
    "JobsSuspended": 10,
    "JobsResumed": 10,
    "JobsUpdated": 20,
    "JobsFinished": 50,
    "JobsFailed": 20,
    "WorkersFailed": 10,
    "OperationFailed": 5,
    "NodesLost": 10,
    "NodesAdded": 30,
    "NodesCordoned": 20,
    "NodesDrained": 10,
    "PolicyChanged": 30,
    "ResizesInPlace": 10,
    "CheckpointSaved": 10,
    # Actions of the engine.
    "Decided": 500,
    "START": 200,
    "RESIZE": 30,
    "STOP": 50,
    "moved": 5,
    "cycle broken": 1,
    "restarted": 20,
    "ended Succeeded": 50,
    "ended Failed": 10,
    "ended Cancelled": 10,
    # Kinds of placed jobs.
    "fraction started": 30,
    "CPU job started": 30,
    "several GPUs per worker started": 15,
    "servers started": 20,
    "cores and memory taken": 50,
    # Reasons.
    "reason PREEMPTED": 50,
    "reason REJECTED": 10,
    "reason NODE_LOST": 20,
    "reason DRAINED": 20,
    "reason BACKOFF": 10,
    "reason RESTARTING": 20,
    "reason CAPACITY": 50,
    "reason FRAGMENTED": 10,
    "reason WAITS_FOR_DEVICES": 10,
    "reason DEPENDENCY": 10,
    "reason TOO_LARGE": 5,
    "reason MADE_ROOM": 5,
    "reason NO_RETRIES": 5,
}


@pytest.fixture(autouse=True)
def _interpreted_again() -> Iterator[None]:
    yield
    kernel_modes.use("interpreted")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, since a server writes every turn to its store."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="levada-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def _assert_same_steps(expected: Sequence[Step], actual: Sequence[Step], what: str) -> None:
    difference = first_difference(expected, actual)
    assert not difference, f"{what}: {difference}"


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_history_is_the_same_everywhere(seed: int, folder: Path) -> None:
    first: JobHistory | None = None
    for mode in kernel_modes.MODES:
        kernel_modes.use(mode)
        history = simulated(seed)
        first = first or history
        of = f"seed {seed}, {history.policy}, {mode}"
        _assert_same_steps(first.steps, history.steps, f"{of}, in the simulator")
        home = folder / mode
        home.mkdir()
        run = served(history, home)
        # The first step of a server is part of `Live.open`, before its engine can be recorded; the log has it.
        _assert_same_steps(first.steps[1:], run.steps, f"{of}, in a server")
        _assert_same_steps(first.steps, replayed(run.log), f"{of}, replayed")


def test_histories_exercise_the_engine() -> None:
    counts: Counter[str] = Counter()
    kernel_modes.use("compiled")
    for seed in _SEEDS:
        counts.update(simulated(seed).features)
    missing = {name: counts[name] for name, least in _LEAST.items() if counts[name] < least}
    assert not missing, f"too few: {missing}, of {dict(sorted(counts.items()))}"


def test_the_first_difference_is_described() -> None:
    steps = simulated(_SEEDS[0]).steps
    assert first_difference(steps, steps) == ""
    assert first_difference(steps, steps[:-1]) == f"{len(steps) - 1} steps instead of {len(steps)}"
    place = next(number for number, step in enumerate(steps) if step.events == ("Decided",))
    other = steps[place]._replace(parts={**steps[place].parts, "decisions": steps[0].parts["decisions"]})
    assert "decisions[0].number" in first_difference(steps, [*steps[:place], other, *steps[place + 1 :]])
