import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.placement.fractions import best_device

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "dragon_cases.json").read_text())

#: What KubeShare's golden cases do not say: a fresh device is wholly free and has this much memory.
FRESH_MEMORY = 8192


def chosen(case):
    """The answer to a golden case, as (node, device name)."""
    numbers = {None: 0}

    def tag(name):
        return numbers.setdefault(name, len(numbers))

    devices = []
    for node, known in enumerate(case["nodes"]):
        for name, (milli, memory, affinity, anti, exclusion) in known["vgpus"].items():
            devices.append((milli, memory, True, node, tag(affinity), tag(anti), tag(exclusion), name))
        devices += [(1000, FRESH_MEMORY, False, node, 0, 0, 0, "new")] * known["free_gpus"]
    columns = [np.array(column) for column in list(zip(*devices, strict=True))[:7]]
    tags = case["tags"]
    device = best_device(
        *columns,
        want_milli=case["request_milli"],
        want_memory=case["mem_mib"],
        want_affinity=tag(tags.get("aff")),
        want_anti_affinity=tag(tags.get("anti")),
        want_exclusion=tag(tags.get("exc")),
    )
    return None if device < 0 else {"node": case["nodes"][devices[device][3]]["name"], "gpu": devices[device][7]}


@pytest.mark.parametrize("case", GOLDEN["kubeshare_best_fit"], ids=lambda case: case["id"])
def test_golden_choices(case):
    found = chosen(case)
    assert found in case["allowed"] if case["allowed"] else found is None


def columns(*devices):
    """Columns of (free milli, free memory, open, node) with (affinity, anti-affinity, exclusion) where given."""
    full = [(*device, *(0, 0, 0))[:7] if len(device) == 4 else device for device in devices]
    return [np.array(column) for column in zip(*full, strict=True)]


def test_a_fresh_device_is_checked_for_compute_and_memory():
    assert best_device(*columns((1000, 512, False, 0)), want_milli=500, want_memory=1024) == -1
    assert best_device(*columns((400, 8192, False, 0)), want_milli=500) == -1
    assert best_device(*columns((1000, 1024, False, 0)), want_milli=1000, want_memory=1024) == 0


def test_a_node_with_a_hole_offers_no_fresh_device():
    # The fresh device of n1 is smaller, but n1 has a hole; n0 has none that fits.
    free = columns((300, 9, True, 0), (1000, 9, False, 0), (900, 9, True, 1), (700, 9, False, 1))
    assert best_device(*free, want_milli=500) == 2


def test_ties_go_to_the_lowest_node_then_the_lowest_device():
    assert best_device(*columns((700, 9, True, 1), (700, 9, True, 0), (700, 9, True, 0)), want_milli=500) == 1


def test_affinity_waits_for_its_device_or_an_idle_one():
    red, blue = 1, 2
    other = (600, 9, True, 0, blue, 0, 0)
    assert best_device(*columns(other), want_milli=500, want_affinity=red) == -1
    assert best_device(*columns(other, (1000, 9, False, 0)), want_milli=500, want_affinity=red) == 1


def test_no_exclusion_is_a_value_too():
    blue = 1
    assert best_device(*columns((600, 9, True, 0, 0, 0, blue)), want_milli=500) == -1
    assert best_device(*columns((600, 9, True, 0)), want_milli=500, want_exclusion=blue) == -1


def test_a_closed_device_is_never_chosen():
    assert best_device(*columns((0, 9, False, 0)), want_milli=0) == -1


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
def test_the_choice_is_the_rule_said_slowly(devices, milli, memory, tags):
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
    aff, anti, exc = tags
    found = best_device(
        *columns(*devices),
        want_milli=milli,
        want_memory=memory,
        want_affinity=aff,
        want_anti_affinity=anti,
        want_exclusion=exc,
    )
    assert found == (min(offers)[2] if offers else -1)
