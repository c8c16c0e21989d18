"""Types and units of columns.

GPUs are counted in 1/1000ths (`milli`), cores in 1/1000ths (`cpu`), memory in MiB, time in seconds since the epoch.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Mostly int64; device owners are int32, because they are scanned most.
Ints: TypeAlias = NDArray[np.signedinteger[Any]]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

#: One whole GPU, in 1/1000ths.
WHOLE = 1000
#: Part of a device for each of two packed jobs, that is, jobs for whole GPUs that a policy lets share devices.
PACKED = WHOLE // 2

#: The type of workers without a GPU, always the first GPU type.
CPU_TYPE = 0
CPU_TYPE_NAME = "cpu"

#: For fewer numbers than this, plain Python is faster than numpy.
FEW = 32


def one_or_many(numbers: Ints) -> slice | Ints:
    """These numbers as an index; a slice for a single number, which is several times as fast."""
    if len(numbers) != 1:
        return numbers
    only = int(numbers[0])
    return slice(only, only + 1)


def distinct(numbers: Ints) -> Ints:
    """The sorted distinct numbers; few numbers, as in live events, are handled without numpy, which is faster."""
    if len(numbers) >= FEW:
        return np.unique(numbers)
    return np.array(sorted(set(numbers.tolist())), numbers.dtype) if len(numbers) > 1 else numbers
