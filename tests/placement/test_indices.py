import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.placement.indices import new_indices

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "dragon_cases.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["index_allocation"], ids=lambda case: f"{case['used']}+{case['new']}")
def test_allocations_match_the_golden_cases(case):
    assert new_indices(np.array(case["used"], np.int64), case["new"]).tolist() == case["assigned"]


@given(st.sets(st.integers(0, 40)), st.integers(0, 20))
def test_the_smallest_unused_indices_are_returned_in_order(used, count):
    indices = new_indices(np.array(sorted(used), np.int64), count).tolist()
    unused = (i for i in range(1000) if i not in used)
    assert indices == [next(unused) for _ in range(count)]


def test_negative_indices_of_parameter_servers_are_ignored():
    assert new_indices(np.array([-1, -2, 0]), 2).tolist() == [1, 2]
