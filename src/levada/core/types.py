"""The types of columns, and the units that they are in.

GPUs are counted in 1/1000ths (`milli`), cores in 1/1000ths (`cpu`), memory in MiB, time in seconds since the epoch.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: int64 nearly everywhere; owners of devices are int32, for they are scanned most.
Ints: TypeAlias = NDArray[np.signedinteger[Any]]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

#: One whole GPU, in the unit that columns count.
WHOLE = 1000
#: What each of two jobs has of every device that they share, where a policy packs jobs that ask for whole ones.
PACKED = WHOLE // 2

#: The type of a worker without a GPU. It stands first among the GPU types, so that its number is always the same.
CPU_TYPE = 0
CPU_TYPE_NAME = "cpu"

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
