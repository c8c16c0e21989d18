"""Timelines from rounds."""

from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.sim.round_timeline import Interval, Round, intervals, read_rounds


def round_(number: int, time: float, *assignments: tuple[str, str, tuple[int, ...]]) -> Round:
    return Round(number, time, list(assignments))


def test_a_job_keeps_its_gpus_until_a_round_changes_them() -> None:
    rounds = [
        round_(0, 0.0, ("0", "v100", (0, 1))),
        round_(1, 360.0, ("0", "v100", (0, 1)), ("1", "k80", (4,))),
        round_(2, 720.0, ("1", "v100", (0,))),
    ]
    assert intervals(rounds, {0: 700.0, 1: float("nan")}, 1000.0) == [
        Interval(0, 0.0, 700.0, "v100", (0, 1)),
        Interval(1, 360.0, 720.0, "k80", (4,)),
        Interval(1, 720.0, 1000.0, "v100", (0,)),
    ]


def test_two_jobs_on_the_same_gpus_have_separate_intervals() -> None:
    assert intervals([round_(0, 5.0, ("(3, 7)", "v100", (2,)))], {3: 50.0, 7: 60.0}, 60.0) == [
        Interval(3, 5.0, 50.0, "v100", (2,)),
        Interval(7, 5.0, 60.0, "v100", (2,)),
    ]


def test_a_bad_line_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 0, "time": 0.0, "assignments": []}\n{"round": 1}\n')
    with pytest.raises(BadInput, match=r"rounds\.jsonl:2: not a round"):
        read_rounds(path)
    with pytest.raises(BadInput, match="No such file"):
        read_rounds(tmp_path / "absent")
