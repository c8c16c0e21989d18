"""`levada allocate` with share policies: golden cases, the documented example and random input."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.policies.catalog import POLICIES
from tests.allocate.gavel_golden import GOLDEN, assert_agrees, case, feasible
from tests.cli.test_allocate import CASE, GARBAGE, allocated

SHARING = [record.name for record in POLICIES if record.shares]
SMALL = GOLDEN["instances"][0]


def answer(given_case: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """Return the answer to a valid case."""
    code, out, err = allocated(json.dumps(given_case).encode(), "-o", "json", *arguments)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize(
    "policy", [name for name in SMALL["policies"] if name not in ("proportional", "fifo", "gandiva")]
)
def test_golden_case_of_gavel(policy: str) -> None:
    given_case = case(SMALL, policy)
    found = answer(given_case)
    feasible(given_case, found)
    assert_agrees(found, SMALL["policies"][policy])


def test_state_of_an_answer_is_input_of_the_next_case() -> None:
    sequence = GOLDEN["sequences"][0]
    state = None
    for step, row in zip(sequence["steps"], sequence["policies"]["finish_time_fairness_perf"], strict=True):
        found = answer(case(step, "finish_time_fairness_perf", state=state))
        assert_agrees(found, row)
        state = found["state"]


def test_documented_example() -> None:
    page = (Path(__file__).parents[2] / "docs" / "allocate.md").read_text(encoding="utf-8")
    example = json.loads(re.findall(r"<<'JSON'\n(.*?)\nJSON", page, re.DOTALL)[1])
    for policy in SHARING:
        feasible(example, answer(example, "--policy", policy))
    assert "B+C" in answer(example)["shares"]


def test_table() -> None:
    code, out, err = allocated(json.dumps(case(SMALL, "max_min_fairness_perf")).encode())
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["JOB", "v100", "%", "p100", "%", "k80", "%", "REASON"]
    assert lines[-1].startswith("max_min_normalized: 1.06193 (speed of the worst-off job relative to its weight; ")


GIVEN = st.fixed_dictionaries(
    {"throughput": st.dictionaries(st.sampled_from(["v100", "k80"]), st.floats(0, 9), min_size=1)},
    optional={
        "steps_left": st.floats(0, 1e6),
        "elapsed_s": st.floats(0, 1e5),
        "scale_factor": st.integers(1, 4),
        "weight": st.floats(0.1, 9),
        "isolated_s": st.floats(0, 1e5),
        "deadline_s": st.floats(-9, 1e5),
    },
)


@given(
    policy=st.sampled_from([*SHARING, "allox_alpha=0.5"]),
    raw=CASE,
    more=st.lists(GIVEN, min_size=6, max_size=6),
    queues=st.booleans(),
    entities=st.just({}) | st.just({"e": {"weight": 2, "policy": "fifo"}}) | GARBAGE,
)
def test_random_cases_are_answered_or_refused(
    policy: str, raw: dict[str, Any], more: list[dict[str, Any]], queues: bool, entities: Any
) -> None:
    jobs = [{**job, **extra} if isinstance(job, dict) else job for job, extra in zip(raw["jobs"], more, strict=False)]
    kept = {key: value for key, value in raw.items() if queues or key not in ("queues", "state", "options")}
    text = json.dumps({**kept, "policy": policy, "jobs": jobs, "entities": entities})
    code, out, err = allocated(text.encode(), "-o", "json")
    assert code in (0, 2), err
    assert (out == "") == (code == 2)
    assert (err == "") == (code == 0)
