import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.placement.fractions import DeviceColumns, ShareRequest, best_device

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "dragon_cases.json").read_text())

#: Not in KubeShare's golden cases: memory of a fresh device, which is completely free.
FRESH_MEMORY = 8192


def chosen(case):
    """The chosen (node, device) of a golden case."""
    numbers = {None: 0}

    def tag(name):
        return numbers.setdefault(name, len(numbers))

    devices = []
    for node, known in enumerate(case["nodes"]):
        for name, (milli, memory, affinity, anti, exclusion) in known["vgpus"].items():
            devices.append((milli, memory, True, node, tag(affinity), tag(anti), tag(exclusion), name))
        devices += [(1000, FRESH_MEMORY, False, node, 0, 0, 0, "new")] * known["free_gpus"]
    tags = case["tags"]
    share = ShareRequest(
        milli=case["request_milli"],
        memory=case["mem_mib"],
        affinity=tag(tags.get("aff")),
        anti_affinity=tag(tags.get("anti")),
        exclusion=tag(tags.get("exc")),
    )
    device = best_device(columns(*[device[:7] for device in devices]), share)
    return None if device < 0 else {"node": case["nodes"][devices[device][3]]["name"], "gpu": devices[device][7]}


@pytest.mark.parametrize("case", GOLDEN["kubeshare_best_fit"], ids=lambda case: case["id"])
def test_choices_match_the_golden_cases(case):
    choice = chosen(case)
    assert choice in case["allowed"] if case["allowed"] else choice is None


def columns(*devices):
    """Columns of (free milli, free memory, open, node) with (affinity, anti-affinity, exclusion) where given."""
    full = [(*device, *(0, 0, 0))[:7] if len(device) == 4 else device for device in devices]
    return DeviceColumns(*[np.array(column) for column in zip(*full, strict=True)])


def test_a_fresh_device_is_checked_for_compute_and_memory():
    assert best_device(columns((1000, 512, False, 0)), ShareRequest(500, memory=1024)) == -1
    assert best_device(columns((400, 8192, False, 0)), ShareRequest(500)) == -1
    assert best_device(columns((1000, 1024, False, 0)), ShareRequest(1000, memory=1024)) == 0


def test_a_node_with_a_gap_offers_no_fresh_device():
    # The fresh device of n1 is smaller, but n1 has a partly used device that fits; n0 has none.
    free = columns((300, 9, True, 0), (1000, 9, False, 0), (900, 9, True, 1), (700, 9, False, 1))
    assert best_device(free, ShareRequest(500)) == 2


def test_ties_go_to_the_lowest_node_then_the_lowest_device():
    assert best_device(columns((700, 9, True, 1), (700, 9, True, 0), (700, 9, True, 0)), ShareRequest(500)) == 1


def test_affinity_needs_a_tagged_or_idle_device():
    red, blue = 1, 2
    other = (600, 9, True, 0, blue, 0, 0)
    assert best_device(columns(other), ShareRequest(500, affinity=red)) == -1
    assert best_device(columns(other, (1000, 9, False, 0)), ShareRequest(500, affinity=red)) == 1


def test_an_empty_exclusion_is_a_value():
    blue = 1
    assert best_device(columns((600, 9, True, 0, 0, 0, blue)), ShareRequest(500)) == -1
    assert best_device(columns((600, 9, True, 0)), ShareRequest(500, exclusion=blue)) == -1


def test_a_closed_device_is_never_chosen():
    assert best_device(columns((0, 9, False, 0)), ShareRequest(0)) == -1


DEVICE = st.tuples(
    st.integers(0, 1000),
    st.integers(0, 16),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)


@given(
    st.lists(DEVICE, min_size=1, max_size=8),
    st.integers(1, 1000),
    st.integers(0, 16),
    st.tuples(*[st.integers(0, 2)] * 3),
)
def test_the_choice_equals_a_naive_implementation(devices, milli, memory, tags):
    # A fresh device carries no tags.
    devices = [d if d[2] else (*d[:4], 0, 0, 0) for d in devices]

    def joins(d):
        aff, anti, exc = tags
        return d[6] == exc and (not aff or d[4] == aff) and (not anti or d[5] != anti)

    fits = [d[0] >= milli and d[1] >= memory for d in devices]
    holes = [ok and d[2] and joins(d) for ok, d in zip(fits, devices, strict=True)]
    nodes_with_hole = {d[3] for hole, d in zip(holes, devices, strict=True) if hole}
    offers = [
        (d[0] - milli, d[3], i)
        for i, ok, hole, d in zip(count(), fits, holes, devices, strict=False)
        if hole or (ok and not d[2] and d[3] not in nodes_with_hole)
    ]
    assert best_device(columns(*devices), ShareRequest(milli, memory, *tags)) == (min(offers)[2] if offers else -1)
