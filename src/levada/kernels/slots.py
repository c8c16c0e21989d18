"""Jobs into slots of limited room at the least total cost, where slots are (type, position in a queue).

Both implementations do the same: jobs come one by one, and each pushes others along the cheapest chain of slots to
where there is room (successive shortest paths), which keeps the assignment optimal all the time.
"""

from __future__ import annotations

from importlib import import_module

from levada.kernels.arrays import Floats, Ints
from levada.kernels.switch import active


def cheapest_slots(time: Floats, gpu_type: Ints, position: Ints, room: Ints, order: Ints) -> Ints:
    """The slot of each job; job *j* in slot *s* costs `position[s] * time[j, gpu_type[s]]`, never where that is inf.

    Jobs come in this *order*. There must be room for all, on every type alone.
    """
    slots: Ints = import_module(f"levada.kernels.slots_{active()}").cheapest_slots(
        time, gpu_type, position, room, order
    )
    return slots
