"""From rounds to who had which GPUs when."""

from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.sim.stretches import Round, Stretch, read_rounds, stretches


def round_(number: int, time: float, *assignments: tuple[str, str, tuple[int, ...]]) -> Round:
    return Round(number, time, list(assignments))


def test_a_job_keeps_its_gpus_until_a_round_says_otherwise() -> None:
    rounds = [
        round_(0, 0.0, ("0", "v100", (0, 1))),
        round_(1, 360.0, ("0", "v100", (0, 1)), ("1", "k80", (4,))),
        round_(2, 720.0, ("1", "v100", (0,))),
    ]
    assert stretches(rounds, {0: 700.0, 1: float("nan")}, 1000.0) == [
        Stretch(0, 0.0, 700.0, "v100", (0, 1)),
        Stretch(1, 360.0, 720.0, "k80", (4,)),
        Stretch(1, 720.0, 1000.0, "v100", (0,)),
    ]


def test_two_jobs_on_the_same_gpus_have_a_stretch_each() -> None:
    assert stretches([round_(0, 5.0, ("(3, 7)", "v100", (2,)))], {3: 50.0, 7: 60.0}, 60.0) == [
        Stretch(3, 5.0, 50.0, "v100", (2,)),
        Stretch(7, 5.0, 60.0, "v100", (2,)),
    ]


def test_a_line_that_is_no_round_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 0, "time": 0.0, "assignments": []}\n{"round": 1}\n')
    with pytest.raises(BadInput, match=r"rounds\.jsonl:2: is no round"):
        read_rounds(path)
    with pytest.raises(BadInput, match="No such file"):
        read_rounds(tmp_path / "absent")
