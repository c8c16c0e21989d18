"""`kernels.steps` without a compiler: the engine's own functions are these steps, so each answer is "the long way"."""

from __future__ import annotations

from typing import Any

import numpy as np

OFFERED = False

_NOTHING = np.zeros(0, np.int64)
_NO_SECONDS = np.zeros((3, 0))
_NO_ROWS = np.zeros((5, 0), np.int64)


def survey(*_columns: Any) -> Any:
    return False, _NOTHING, np.inf, False, False, _NOTHING


def waiting(*_columns: Any) -> Any:
    return False, _NOTHING, False, _NOTHING


def capacity(*_columns: Any) -> Any:
    return None


def could_fill(*_columns: Any) -> bool:
    return True


def commit(*_columns: Any) -> Any:
    return False, False, False


def issue(*_columns: Any) -> Any:
    return False, False, _NO_ROWS, _NO_ROWS, _NO_ROWS


def running(*_columns: Any) -> Any:
    return False, False, False, np.inf, _NO_SECONDS


def released(*_columns: Any) -> Any:
    return False, False, False, False


def vacate(*_columns: Any) -> bool:
    return False
