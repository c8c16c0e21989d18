"""`kernels.turns` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels.arrays import Bools, Floats, Ints


def take_turns(priority: Floats, need: Ints, members: Ints, left: Ints, taken: Bools) -> Ints:
    types = priority.shape[1]
    runs = np.full(len(priority), -1, np.int64)
    flat = priority.ravel()
    able = (flat > -np.inf).nonzero()[0]
    order = able[np.argsort(-flat[able], kind="stable")]
    room = left.tolist()
    busy = taken.tolist()
    busy.append(False)  # nobody, the second member of a job alone
    needs, first, second = need.tolist(), members[:, 0].tolist(), members[:, 1].tolist()
    for at in order.tolist():
        row, kind = divmod(at, types)
        if needs[row] > room[kind] or busy[first[row]] or busy[second[row]]:
            continue
        room[kind] -= needs[row]
        busy[first[row]] = True
        if second[row] >= 0:
            busy[second[row]] = True
        runs[row] = kind
    left[:] = room
    taken[:] = busy[:-1]
    return runs
