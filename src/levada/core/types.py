"""The units that columns are in.

GPUs are counted in 1/1000ths (`milli`), cores in 1/1000ths (`cpu`), memory in MiB, time in seconds since the epoch.
"""

from __future__ import annotations

from levada.kernels.arrays import FEW, Bools, Floats, Ints, distinct, one_or_many

__all__ = [
    "CPU_TYPE",
    "CPU_TYPE_NAME",
    "FEW",
    "PACKED",
    "WHOLE",
    "Bools",
    "Floats",
    "Ints",
    "distinct",
    "one_or_many",
]

#: One whole GPU, in the unit that columns count.
WHOLE = 1000
#: What each of two jobs has of every device that they share, where a policy packs jobs that ask for whole ones.
PACKED = WHOLE // 2

#: The type of a worker without a GPU. It stands first among the GPU types, so that its number is always the same.
CPU_TYPE = 0
CPU_TYPE_NAME = "cpu"
