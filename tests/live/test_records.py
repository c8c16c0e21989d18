"""What a name means: mine before anybody's, and never silently somebody else's."""

from __future__ import annotations

import pytest

from levada.errors import NotFound, Refused
from levada.live.records import About, Record, Records


def records(*jobs: tuple[str, str, str]) -> Records:
    """Jobs by id, user and workload, the oldest first."""
    made = Records()
    for number, (job_id, user, workload) in enumerate(jobs):
        made.add(Record(job_id, number, user, 0.0, About(workload=workload)))
    return made


def test_a_name_is_an_id_a_workload_a_beginning_or_an_end() -> None:
    known = records(("a-0001", "ann", "a"), ("a-0002", "ann", "a"), ("b-0003", "bob", "b"), ("bo-0004", "bob", "bo"))
    for name, meant in {
        "a-0001": "a-0001",
        "a": "a-0002",
        "a-0": None,
        "b": "b-0003",
        "b-": "b-0003",
        "0004": "bo-0004",
    }.items():
        if meant is None:
            with pytest.raises(Refused, match="any of a-0001, a-0002; say more of its id"):
                known.find(name, "ann")
        else:
            assert known.find(name, "ann").id == meant
    with pytest.raises(NotFound, match="there is no job 004"):
        known.find("004", "ann")


@pytest.mark.parametrize("mine", ["mnist-0001", "mnist-big-0001", "x-mnis"])
def test_the_id_of_somebody_else_does_not_shadow_a_job_of_mine(mine: str) -> None:
    """A TFJob's id is its own name, which may be anything."""
    name = mine[-4:] if mine == "x-mnis" else "mnist"
    known = records((mine, "ann", mine[:-5]), (name, "bob", name))
    with pytest.raises(
        Refused, match=f"^{name} is bob's job, and may also mean your {mine}; say the whole id of yours$"
    ):
        known.find(name, "ann")
    assert known.find(mine, "ann").id == mine
    assert known.find(name, "bob").id == name
    assert known.find(name, "eve").id == name
    assert known.find(name).id == name


def test_my_own_id_comes_first() -> None:
    known = records(("mnist", "ann", "mnist"), ("mnist-0001", "ann", "mnist"), ("mnist-0002", "bob", "mnist"))
    assert known.find("mnist", "ann").id == "mnist"


def test_a_workload_is_mine_before_it_is_anybodys() -> None:
    known = records(("a-0001", "ann", "a"), ("a-0002", "bob", "a"))
    assert known.find("a", "ann").id == "a-0001"
    assert known.find("a", "eve").id == "a-0002"


def test_the_workload_of_somebody_else_does_not_shadow_the_end_of_an_id_of_mine() -> None:
    known = records(("a-wxyz", "ann", "a"), ("wxyz-0002", "bob", "wxyz"))
    with pytest.raises(Refused, match="may also mean your"):
        known.find("wxyz", "ann")
