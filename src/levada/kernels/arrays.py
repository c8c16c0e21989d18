"""The array types that columns are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: int64 nearly everywhere; owners of devices are int32, for they are scanned most.
Ints: TypeAlias = NDArray[np.signedinteger[Any]]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

#: For fewer numbers than this, plain Python is faster than numpy.
FEW = 32


def one_or_many(numbers: Ints) -> slice | Ints:
    """These numbers as an index. Live events speak of one job: a slice of one is several times as fast to use."""
    if len(numbers) != 1:
        return numbers
    only = int(numbers[0])
    return slice(only, only + 1)


def distinct(numbers: Ints) -> Ints:
    """Each of these numbers once, in order. Live events speak of one job, for which Python is faster than numpy."""
    if len(numbers) >= FEW:
        return np.unique(numbers)
    return np.array(sorted(set(numbers.tolist())), numbers.dtype) if len(numbers) > 1 else numbers
