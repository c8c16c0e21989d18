"""The hot loop of rounds: which combinations (a job, or two that share devices) run next, and on which type."""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels


def take_turns(priority: Floats, need: Ints, members: Ints, left: Ints, taken: Bools) -> Ints:
    """Per combination the type it runs on, -1 = none, when (combination, type) pairs are taken by falling *priority*.

    A pair is passed over where its *need* is more than what is *left* of the type, where a member (a row of *taken*;
    -1 = none) runs already, and where its priority is minus infinity. Ties go by combination, then by type.
    *left* and *taken* are brought up to date.
    """
    return kernels("turns").take_turns(priority, need, members, left, taken)
