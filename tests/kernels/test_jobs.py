"""`kernels.jobs` accounts for time once, the same in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout as c
from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

SLOTS = 5
MODULES: Any = (Kernels("jobs", "interpreted"), Kernels("jobs", "compiled"))
TIMES = st.floats(0, 1e9, allow_subnormal=False)
COUNTED = (c.SINCE, c.WAITING_S, c.RUNNING_S, c.GPU_SECONDS, c.RUN_WAITING_S, c.RUN_RUNNING_S, c.RUN_GPU_SECONDS)


def _per_slot(values: st.SearchStrategy[Any], dtype: Any = np.int64) -> st.SearchStrategy[Any]:
    return st.lists(values, min_size=SLOTS, max_size=SLOTS).map(lambda of: np.array(of, dtype))


def _blocks(observed: Any, phase: Any, milli: Any, columns: Any) -> tuple[Any, Any]:
    ints = np.zeros((len(c.INT_COLUMNS), len(observed)), np.int64)
    ints[c.OBSERVED], ints[c.PHASE], ints[c.MILLI] = observed, phase, milli
    floats = np.zeros((len(c.FLOAT_COLUMNS), len(observed)))
    for row, column in zip(COUNTED, columns, strict=True):
        floats[row] = column
    return ints, floats


def _accrue(ints: Any, floats: Any, slots: Any, now: float) -> Any:
    equal_in_both_modes(MODULES, "accrue_all", ints, floats, slots, now)
    MODULES[0].accrue_all(ints, floats, slots, now)
    return np.stack([floats[row] for row in COUNTED])


@given(
    _per_slot(st.integers(0, 9)),
    _per_slot(st.integers(0, 8)),
    _per_slot(st.sampled_from([0, 250, 333, 1000, 8000])),
    st.lists(_per_slot(TIMES, np.float64), min_size=7, max_size=7),
    TIMES,
    st.lists(st.integers(0, SLOTS - 1), unique=True),
)
def test_time_goes_to_running_or_waiting_never_to_both(
    observed: Any, phase: Any, milli: Any, columns: list[Any], now: float, chosen: list[int]
) -> None:
    ints, floats = _blocks(observed, phase, milli, columns)
    after = _accrue(ints, floats, np.array(chosen, np.int64), now)
    for slot in range(SLOTS):
        before = np.array([column[slot] for column in columns])
        passed = max(now - before[0], 0.0) if slot in chosen else 0.0
        ran = passed if observed[slot] > 0 else 0.0
        waited = passed if observed[slot] == 0 and phase[slot] < c.SUSPENDED else 0.0
        gpus = ran * observed[slot] * (milli[slot] / 1000)
        since = max(before[0], now) if slot in chosen else before[0]
        spent = np.array([waited, ran, gpus, waited, ran, gpus])
        assert after[:, slot].tolist() == [since, *(before[1:] + spent)]


def test_time_is_counted_once() -> None:
    ints, floats = _blocks(np.array([2]), np.array([c.RUNNING]), np.array([500]), np.zeros((7, 1)))
    for now in (10.0, 10.0, 4.0, 16.0):
        after = _accrue(ints, floats, np.array([0]), now)
    assert after[:, 0].tolist() == [16.0, 0.0, 16.0, 16.0, 0.0, 16.0, 16.0]
