"""One decision as a pure function: input, output, and rejected cases."""

import json
from typing import Any

import pytest

from levada.allocate.case_file import check
from levada.allocate.decide import decide
from levada.allocate.standard import answer
from levada.errors import BadInput, LevadaError
from levada.plugins import find_policy
from tests.test_plugins import SMALLEST_FIRST

V100 = {"gpus": {"v100": 8}}
LINEAR = {str(n): float(n) for n in range(10)}


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, **fields}


def solve(policy: str, *jobs: dict[str, Any], cluster: dict[str, Any] = V100, **more: Any) -> dict[str, Any]:
    """The answer to a case of these jobs."""
    case = check({"cluster": cluster, "jobs": list(jobs), **more})
    return answer(case, find_policy(policy, case.options))


def sizes(policy: str, *jobs: dict[str, Any], **more: Any) -> dict[str, dict[str, int]]:
    allocations: dict[str, dict[str, int]] = solve(policy, *jobs, **more)["allocations"]
    return allocations


def refusal(policy: str, *jobs: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        solve(policy, *jobs, **more)
    return [str(fault) for fault in caught.value.faults]


# -------------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize("policy", ["fifo", "FIFO", "elastic-fifo"])
def test_a_case_of_fifo_is_decided_by_submission_alone_as_voda_does(policy: str) -> None:
    jobs = [job("A", submitted=1, min=8, max=8), job("B", submitted=2, min=8, max=8, priority=5)]
    actual = decide({"policy": policy, "cluster": V100, "jobs": jobs})
    assert actual["allocations"] == {"A": {"v100": 8}, "B": {}}


def test_shape_of_the_answer() -> None:
    result = solve("ElasticFIFO", job("B", submitted=2, min=8, max=8), job("A", submitted=1, min=2, max=4))
    assert list(result) == ["policy", "allocations", "reasons"]
    assert result["policy"] == "elastic-fifo"
    assert list(result["allocations"].items()) == [("B", {}), ("A", {"v100": 4})]
    assert list(result["reasons"]) == ["B", "A"]
    assert result["reasons"]["A"]["code"] == "runs"
    assert result["reasons"]["B"]["code"] == "capacity"
    assert result["reasons"]["B"]["text"].endswith(".")


def test_same_case_same_bytes() -> None:
    jobs = [job(f"j{i}", submitted=i % 3, min=1, max=4, remaining_s=float(i % 4), speedup=LINEAR) for i in range(30)]
    for policy in ("fifo", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"):
        assert json.dumps(solve(policy, *jobs)) == json.dumps(solve(policy, *jobs))


def test_no_jobs_and_no_gpus() -> None:
    assert solve("fifo") == {"policy": "fifo", "allocations": {}, "reasons": {}}
    assert sizes("elastic-fifo", job("A"), cluster={"gpus": {}}) == {"A": {}}
    assert sizes("elastic-fifo", job("A"), cluster={"gpus": {"v100": 0}}) == {"A": {}}
    assert sizes("elastic-fifo", job("A"), cluster={"nodes": []}) == {"A": {}}


def test_equal_submission_keeps_the_order_of_the_list() -> None:
    assert sizes("fifo", job("B", min=5), job("A", min=5)) == {"B": {"v100": 5}, "A": {}}


def test_arrival_by_elapsed_time() -> None:
    allocations = sizes("fifo", job("new", min=5, elapsed_s=1), job("old", min=5, elapsed_s=9), now=100.0)
    assert allocations == {"new": {}, "old": {"v100": 5}}


# -------------------------------------------------------------------------------------------------- mixed and special


def test_mixed_cluster_and_preferences() -> None:
    cluster = {"gpus": {"v100": 2, "k80": 4}}
    allocations = sizes(
        "fifo",
        job("any", submitted=1, min=2),
        job("second", submitted=2, min=1, gpu_types=["v100", "k80"]),
        job("only", submitted=3, min=1, gpu_types=["v100"]),
        job("k80", submitted=4, min=3, gpu_types=["k80"]),
        cluster=cluster,
    )
    assert allocations == {"any": {"v100": 2}, "second": {"k80": 1}, "only": {}, "k80": {"k80": 3}}


def test_running_job_keeps_its_type() -> None:
    cluster = {"gpus": {"v100": 2, "k80": 4}}
    here, there = job("A", min=2), job("A", min=2, running={"k80": 2})
    assert sizes("fifo", here, cluster=cluster) == {"A": {"v100": 2}}
    assert sizes("fifo", there, cluster=cluster) == {"A": {"k80": 2}}


def test_throughput_zero_means_cannot_run_there() -> None:
    cluster = {"gpus": {"v100": 2, "k80": 4}}
    assert sizes("fifo", job("A", throughput={"v100": 0, "k80": 1.5}), cluster=cluster) == {"A": {"k80": 1}}
    result = solve("fifo", job("A", throughput={"v100": 0}))
    assert result["allocations"] == {"A": {}}
    assert result["reasons"]["A"]["code"] == "unknown-type"


def test_nodes_count_by_type() -> None:
    nodes = [{"name": "n1", "gpus": {"v100": 4}}, {"name": "n2", "gpus": {"v100": 2, "k80": 2}}]
    allocations = sizes("elastic-fifo", job("A", max=9, gpu_types=["v100"]), job("B", max=9, gpu_types=["k80"]),
                        cluster={"nodes": nodes})  # fmt: skip
    assert allocations == {"A": {"v100": 6}, "B": {"k80": 2}}


def test_parts_of_a_gpu_and_several_per_worker() -> None:
    allocations = sizes(
        "fifo",
        job("half", submitted=1, min=3, gpus_per_worker=0.5),
        job("pairs", submitted=2, min=3, gpus_per_worker=2),
        job("none left", submitted=3, min=1),
    )
    assert allocations == {"half": {"v100": 3}, "pairs": {"v100": 3}, "none left": {}}


def test_jobs_without_a_gpu() -> None:
    node = {"name": "n1", "gpus": {"v100": 1}, "cpu": 8, "memory": "16Gi"}
    prepare = job("prepare", min=3, gpus_per_worker=0, cpu=2)
    assert sizes("fifo", prepare, job("train"), cluster={"nodes": [node]}) == {
        "prepare": {"cpu": 3},
        "train": {"v100": 1},
    }
    many = solve("fifo", job("many", min=5, gpus_per_worker=0, cpu=2), cluster={"nodes": [node]})
    assert many["allocations"] == {"many": {}}
    assert many["reasons"]["many"]["code"] == "too-large"


def test_sizes_in_steps() -> None:
    assert sizes("elastic-fifo", job("A", min=2, max=9, step=3)) == {"A": {"v100": 8}}
    assert sizes("elastic-fifo", job("A", min=1, max=9, step=3)) == {"A": {"v100": 7}}


@pytest.mark.parametrize("policy", ["fifo", "elastic-fifo", "ffdl", "afs-l", "elastic-tiresias"])
def test_infeasible_jobs_have_their_reason_and_block_nobody(policy: str) -> None:
    facts = {"remaining_s": 10.0, "speedup": LINEAR}
    result = solve(
        policy,
        job("huge", submitted=1, min=9, max=9, **facts),
        job("exotic", submitted=2, gpu_types=["tpu"], **facts),
        job("plain", submitted=3, min=8, max=8, **facts),
    )
    assert result["allocations"] == {"huge": {}, "exotic": {}, "plain": {"v100": 8}}
    assert {name: why["code"] for name, why in result["reasons"].items()} == {
        "huge": "too-large",
        "exotic": "unknown-type",
        "plain": "runs",
    }
    assert result["reasons"]["huge"]["text"] == ("Can never start: needs at least 9 workers, the cluster can hold 8.")
    assert result["reasons"]["plain"]["text"] == "Has 8 workers, its only size."


# ------------------------------------------------------------------------------------------------ what policies need


def test_what_a_policy_needs_and_lacks() -> None:
    known, unknown = job("A", remaining_s=5.0), job("B")
    assert refusal("elastic-srjf", known, unknown, job("C", steps_left=3)) == [
        "jobs[1].remaining_s: required by elastic-srjf",
        "jobs[2].remaining_s: required by elastic-srjf",
    ]
    assert refusal("ffdl", unknown) == ["jobs[0].speedup: required by ffdl"]
    assert refusal("AFS-L", job("A", speedup={})) == [
        "jobs[0].remaining_s: required by afs-l",
        "jobs[0].speedup: required by afs-l",
    ]
    assert sizes("fifo", unknown) == {"B": {"v100": 1}}
    assert sizes("tiresias", unknown) == {"B": {"v100": 1}}


def test_work_left_as_steps_and_rate() -> None:
    # 1000 steps at 100/s are 10 s; 5 s beat them, 20 s do not.
    fast = job("steps", min=5, steps_left=1000, throughput={"v100": 100.0})
    assert sizes("srjf", fast, job("seconds", min=5, remaining_s=5.0)) == {"steps": {}, "seconds": {"v100": 5}}
    assert sizes("srjf", fast, job("seconds", min=5, remaining_s=20.0)) == {"steps": {"v100": 5}, "seconds": {}}


def test_remaining_seconds_are_taken_as_they_are() -> None:
    # Equal seconds are a tie, whatever the throughput, and ties go by submission.
    first = job("first", submitted=1, min=5, remaining_s=0.1, throughput={"v100": 3.7}, steps_left=9)
    second = job("second", submitted=2, min=5, remaining_s=0.1, throughput={"v100": 0.3}, steps_left=1)
    assert sizes("srjf", second, first) == {"second": {}, "first": {"v100": 5}}


# ------------------------------------------------------------------------------------------------------ Tiresias


def test_priority_is_the_queue_of_tiresias() -> None:
    low, high = job("low", min=5, priority=1, first_started=1.0), job("high", min=5, priority=0)
    assert sizes("tiresias", low, high) == {"low": {}, "high": {"v100": 5}}
    beyond = job("beyond", min=5, priority=7, first_started=0.5)
    assert sizes("tiresias", beyond, low) == {"beyond": {"v100": 5}, "low": {}}, "clamped to the last queue"


def test_never_started_comes_last_in_its_queue() -> None:
    assert sizes("tiresias", job("never", min=5, first_started=None), job("started", min=5, first_started=900.0)) == {
        "never": {},
        "started": {"v100": 5},
    }


def test_state_goes_round() -> None:
    low, high = job("low", min=5, priority=1), job("high", min=5, priority=0)
    first = solve("tiresias", low, high)
    state = json.loads(json.dumps(first["state"]))
    # The queue now comes from the state, whatever the case says, and wherever the job stands in the list.
    assert sizes("tiresias", job("high", min=5, priority=1), job("low", min=5), state=state) == {
        "high": {"v100": 5},
        "low": {},
    }
    again = solve("tiresias", low, high, state=state)
    assert again == first
    assert solve("tiresias", job("new", min=3), low, high, state=state)["allocations"]["high"] == {"v100": 5}


def test_a_case_tells_no_history() -> None:
    # Had A run since its submission, it would have left the first queue long ago.
    state = solve("tiresias", job("A", min=5), now=5000.0)["state"]
    runs = job("A", min=5, first_started=5000.0, running={"v100": 5})
    allocations = sizes("tiresias", job("B", submitted=1, min=5), runs, now=5010.0, state=state)
    assert allocations == {"B": {}, "A": {"v100": 5}}


def test_state_with_many_jobs_that_left() -> None:
    jobs = [job(f"j{i}", min=1, priority=i % 2) for i in range(20)]
    state = solve("tiresias", *jobs)["state"]
    rest = [jobs[i] for i in (17, 3, 4, 12)]
    allocations = sizes("tiresias", *rest, job("new", min=1), state=state, cluster={"gpus": {"v100": 3}})
    assert allocations == {"j17": {}, "j3": {}, "j4": {"v100": 1}, "j12": {"v100": 1}, "new": {"v100": 1}}


@pytest.mark.parametrize(
    "state",
    [3, [], "x", {"jobs": 3}, {"jobs": {"A": -1}, "next": 1}, {"jobs": {"A": 5}, "next": 1}, {"next": -1},
     {"jobs": {"A": 0, "B": 0}, "next": 1}, {"nxt": 1}, {"policy": "x"}, {"next": 2**70}],
)  # fmt: skip
def test_state_that_is_none(state: Any) -> None:
    (line,) = refusal("tiresias", job("A"), state=state)
    assert line.startswith("state")


def test_state_of_a_policy_without_any() -> None:
    assert "state" not in solve("fifo", job("A"))
    assert refusal("fifo", job("A"), state={"policy": {}}) == ["state: fifo is stateless; leave the state out"]


# ------------------------------------------------------------------------------------------------------ queues


def test_queues_split_the_cluster() -> None:
    queues = {"a": {"guaranteed": {"v100": 6}}, "b": {"limit": {"v100": 2}}}
    jobs = (job("A", submitted=2, max=8, queue="a"), job("B", submitted=1, max=8, queue="b"))
    # Six are A's for sure, and the two that are left go by weight.
    assert sizes("elastic-fifo", *jobs, queues=queues) == {"A": {"v100": 7}, "B": {"v100": 1}}
    assert sizes("elastic-fifo", jobs[1], queues=queues) == {"B": {"v100": 2}}


def test_queue_without_room_is_the_reason() -> None:
    result = solve("fifo", job("A", min=3, queue="q"), queues={"q": {"limit": {"v100": 2}}})
    assert result["allocations"] == {"A": {}}
    assert result["reasons"]["A"]["code"] in ("queue-limit", "queue-share")


def test_tiresias_in_queues() -> None:
    queues = {"a": {}, "b": {}}
    low, high = job("low", min=3, priority=1, queue="a", submitted=1), job("high", min=3, queue="a", submitted=2)
    other = job("other", min=4, queue="b")
    first = solve("tiresias", low, high, other, queues=queues)
    assert first["allocations"] == {"low": {}, "high": {"v100": 3}, "other": {"v100": 4}}
    assert solve("tiresias", low, high, other, queues=queues, state=json.loads(json.dumps(first["state"]))) == first


def test_faulty_queues() -> None:
    queues = {"q": {"guaranteed": {"v100": 4}, "limit": {"v100": 2}}}
    assert refusal("fifo", job("A", queue="q"), queues=queues) == ["queues.q: v100: guarantees more than its limit"]


# ---------------------------------------------------------------------------------------------------- other refusals


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"max": 10**7}, "jobs[0].max: must be at most 1000000"),
        ({"gpu_types": ["v100", "cpu"]}, "jobs[0].gpu_types[1]: 'cpu' is reserved for workers without a GPU"),
        (
            {"max": 10**6, "gpus_per_worker": 10**9},
            "jobs: request too much in total; lower max or the amounts per worker",
        ),
        ({"speedup": {"1": 0}}, "jobs[0].speedup.1: must be above 0"),
        ({"speedup": {"2": -1.0}}, "jobs[0].speedup.2: must be at least 0"),
        ({"speedup": {"1": 1e-300, "2": 1e300}}, "jobs[0].speedup.2: is too large relative to that of one worker"),
        ({"running": {"k80": 1}}, "jobs[0].running.k80: the cluster has no such GPU type"),
        ({"max": 9, "running": {"v100": 9}}, "jobs[0].running: the cluster has no room for it"),
        ({"running": {"v100": 3}}, "jobs[0].running.v100: must be 1 to 1"),
        (
            {"running": {"cpu": 1}},
            "jobs[0].running.cpu: use 'cpu' if and only if gpus_per_worker is 0",
        ),
    ],
)
def test_fault_of_a_job(fields: dict[str, Any], line: str) -> None:
    assert refusal("fifo", job("A", **fields)) == [line]


def test_fault_of_a_cluster() -> None:
    assert refusal("fifo", cluster={"gpus": {"cpu": 4}}) == [
        "cluster.gpus.cpu: 'cpu' is reserved for workers without a GPU"
    ]
    assert refusal("fifo", cluster={"gpus": {"a": 60_000, "b": 60_000}}) == ["cluster: has more than 100000 GPUs"]


RETURN = "return decision(snap, gpu_type, count, rank=rank), state"
#: A decision made without `decision`, which would mend some of what is wrong with it.
RAW = """
        from levada.core.decision import Decision
        fields = dict(number=jobs.number, type=gpu_type, count=count, reason=count * 0, evidence=count * 0)
        return Decision(**(fields | dict(CHANGE))), state"""


def raw(change: str) -> str:
    return RAW.replace("CHANGE", change)


@pytest.mark.parametrize("queues", [{}, {"default": {}, "other": {"weight": 2}}], ids=["plain", "queues"])
@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("count[row] = kind, jobs.min[row]", "count[row] = kind, 9", "the policy smallest-first returned 9 workers for A; it allows 5 to 5"),
        ("and need[row] <= left[kind]", "", "the policy smallest-first assigned"),
        (RETURN, "return 1 / 0", "line 31): ZeroDivisionError: division by zero"),
        (RETURN, "return np.linalg.inv(np.zeros((2, 2)))", "mine.py, line 31): LinAlgError: Singular matrix"),
        (RETURN, "raise SystemExit(0)", "mine.py, line 31): SystemExit: 0"),
        (RETURN, "import sys; sys.exit(7)", "mine.py, line 31): SystemExit: 7"),
        (RETURN, "raise GeneratorExit", "mine.py, line 31): GeneratorExit"),
        (RETURN, "raise type('Odd', (BaseException,), {})('no')", "mine.py, line 31): Odd: no"),
        (RETURN, "return None, None", "must return a decision and a state, not (NoneType, NoneType)"),
        (RETURN, "return None", "must return a decision and a state, not None"),
        (RETURN, "return decision(snap, gpu_type, count)", "must return a decision and a state, not Decision"),
        (RETURN, "return decision(snap, gpu_type, count * np.nan), state", "returned count as float64; must be whole numbers (np.int64)"),
        (RETURN, "return decision(snap, gpu_type, count + 0.5), state", "returned count as float64; must be whole numbers (np.int64)"),
        (RETURN, "return decision(snap, gpu_type / 1, count), state", "returned type as float64; must be whole numbers (np.int64)"),
        (RETURN, "return decision(snap, gpu_type + 40, count), state", "returned type 41 for A, which may not run there"),
        (RETURN, raw("count=count - 7"), "returned -2 workers for A; it allows 5 to 5"),
        (RETURN, raw("count=count + 2**62"), "returned 4611686018427387909 workers for A; it allows 5 to 5"),
        (RETURN, raw("count=count[:1]"), "returned 1 values as count for the 2 jobs in view"),
        (RETURN, raw("count=[5, 0]"), "returned list as count; must be a numpy column of whole numbers"),
        (RETURN, raw("count=None"), "returned None as count; must be a numpy column of whole numbers"),
        (RETURN, raw("count=count > 0"), "returned count as bool; must be whole numbers (np.int64)"),
        (RETURN, raw("type=gpu_type - 9"), "returned type -8 for A, which may not run there"),
        (RETURN, raw("number=jobs.number[::-1]"), "must return the job numbers of the snapshot, in the same order"),
        (RETURN, raw("reason=count + 99"), "returned a reason that is not in levada.core.reasons.Code"),
        (RETURN, raw("wake_at='soon'"), "returned 'soon' as wake_at; must be a time in seconds"),
        (RETURN, raw("rank=[0, 1]"), "returned list as rank; must be a numpy column of whole numbers"),
        (RETURN, raw("rank=count[:1]"), "returned 1 values as rank for the 2 jobs in view"),
        ("return None  # it remembers nothing", "return 1 / 0", "mine.py, line 16): ZeroDivisionError: division by zero"),
        ("return None  # it remembers nothing", "return object()", "has a state that cannot be encoded: object is not supported in a policy's state"),
    ],
)  # fmt: skip
def test_policy_that_breaks_a_rule(tmp_path: Any, old: str, new: str, text: str, queues: dict[str, Any]) -> None:
    assert old in SMALLEST_FIRST
    path = tmp_path / "mine.py"
    path.write_text(SMALLEST_FIRST.replace(old, new))
    with pytest.raises(LevadaError, match="smallest-first") as caught:
        solve(f"{path}:SmallestFirst", job("A", min=5), job("B", min=5), queues=queues)
    assert text in str(caught.value)
    assert "levada/" not in str(caught.value), "not Levada's fault"
    assert not isinstance(caught.value, BadInput)


def test_a_real_interrupt_stays_one(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SMALLEST_FIRST.replace(RETURN, "raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        solve(f"{path}:SmallestFirst", job("A"))


def test_dragon_compat_tells_true_reasons() -> None:
    """One start per decision: other jobs wait for room or the next decision."""
    result = solve("dragon-compat", *(job(name, min=4, max=4, submitted=i) for i, name in enumerate("ABC")))
    assert [why["code"] for why in result["reasons"].values()] == ["runs", "new", "new"]
    assert result["reasons"]["B"]["text"] == "Waiting for the next decision: the policy starts one job per decision."

    result = solve("dragon-compat", *(job(name, min=5, max=5, submitted=i) for i, name in enumerate("ABC")))
    assert [why["code"] for why in result["reasons"].values()] == ["runs", "capacity", "capacity"]

    nodes = {"nodes": [{"name": f"n{i}", "gpus": {"v100": 3}} for i in range(3)]}
    small = job("A", min=1, max=1, gpus_per_worker=2, submitted=1)
    large = job("D", min=3, max=3, gpus_per_worker=2, submitted=9)
    result = solve("dragon-compat", small, large, cluster=nodes)
    assert result["reasons"]["D"]["code"] == "fragmented"
    assert "can hold only 2 workers" in result["reasons"]["D"]["text"]
