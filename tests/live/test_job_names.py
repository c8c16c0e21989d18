"""Resolution of job names: own jobs first, never silently another user's."""

from __future__ import annotations

import pytest

from levada.errors import NotFound, Refused
from levada.live.records import JobDetails, JobRecord, JobRecords


def records(*jobs: tuple[str, str, str]) -> JobRecords:
    """Jobs by id, user and workload, the oldest first."""
    job_records = JobRecords()
    for number, (job_id, user, workload) in enumerate(jobs):
        job_records.add(JobRecord(job_id, number, user, 0.0, JobDetails(workload=workload)))
    return job_records


def test_a_job_is_found_by_id_workload_prefix_or_suffix() -> None:
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
            with pytest.raises(Refused, match="matches a-0001, a-0002; use more of the id"):
                known.find(name, "ann")
        else:
            assert known.find(name, "ann").id == meant
    with pytest.raises(NotFound, match="there is no job 004"):
        known.find("004", "ann")


@pytest.mark.parametrize("own_id", ["mnist-0001", "mnist-big-0001", "x-mnis"])
def test_an_id_of_another_user_does_not_shadow_an_own_job(own_id: str) -> None:
    """The id of a TFJob is its own name, which may be anything."""
    name = own_id[-4:] if own_id == "x-mnis" else "mnist"
    known = records((own_id, "ann", own_id[:-5]), (name, "bob", name))
    with pytest.raises(
        Refused, match=f"^{name} is bob's job, and also matches your {own_id}; use the full id of yours$"
    ):
        known.find(name, "ann")
    assert known.find(own_id, "ann").id == own_id
    assert known.find(name, "bob").id == name
    assert known.find(name, "eve").id == name
    assert known.find(name).id == name


def test_an_own_id_comes_first() -> None:
    known = records(("mnist", "ann", "mnist"), ("mnist-0001", "ann", "mnist"), ("mnist-0002", "bob", "mnist"))
    assert known.find("mnist", "ann").id == "mnist"


def test_an_own_workload_comes_before_those_of_others() -> None:
    known = records(("a-0001", "ann", "a"), ("a-0002", "bob", "a"))
    assert known.find("a", "ann").id == "a-0001"
    assert known.find("a", "eve").id == "a-0002"


def test_a_workload_of_another_user_does_not_shadow_an_own_id_suffix() -> None:
    known = records(("a-wxyz", "ann", "a"), ("wxyz-0002", "bob", "wxyz"))
    with pytest.raises(Refused, match="also matches your"):
        known.find("wxyz", "ann")
