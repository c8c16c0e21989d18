"""Who runs next: both implementations agree, and nobody gets what is not there."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.kernels import turns_numba, turns_numpy

LEVELS = st.sampled_from([-np.inf, -1.5, 0.0, 0.0, 2.0, 7.25])


@st.composite
def questions(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    jobs, types = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    pairs = draw(st.lists(st.tuples(st.integers(0, jobs - 1), st.integers(0, jobs - 1)), max_size=5))
    members = [(row, -1) for row in range(jobs)] + [(min(p), max(p)) for p in pairs if p[0] != p[1]]
    size = len(members) * types
    priority = np.array(draw(st.lists(LEVELS, min_size=size, max_size=size))).reshape(len(members), types)
    need = np.array(draw(st.lists(st.integers(0, 4), min_size=len(members), max_size=len(members))), np.int64)
    left = np.array(draw(st.lists(st.integers(0, 9), min_size=types, max_size=types)), np.int64)
    taken = np.array(draw(st.lists(st.booleans(), min_size=jobs, max_size=jobs)), bool)
    return priority, need, np.array(members, np.int64), left, taken


@given(question=questions())
def test_turns_are_fair_and_the_same_in_both(question: tuple[np.ndarray, ...]) -> None:
    priority, need, members, left, taken = question
    answers = []
    for kernels in (turns_numpy, turns_numba):
        room, busy = left.copy(), taken.copy()
        answers.append((kernels.take_turns(priority, need, members, room, busy).tolist(), room.tolist(), busy.tolist()))
    assert answers[0] == answers[1]
    runs, room, busy = (np.array(part) for part in answers[0])
    on = (runs >= 0).nonzero()[0]
    used = np.bincount(runs[on], need[on], len(left)).astype(int)
    assert (room == left - used).all()
    assert (room >= np.minimum(left, 0)).all()
    who = members[on][members[on] >= 0]
    assert len(set(who.tolist())) == len(who), "nobody runs twice"
    assert not taken[who].any(), "nobody who runs already is taken again"
    # Whoever is left out had no chance: no room, a member that runs, or no priority.
    for row in (runs < 0).nonzero()[0]:
        free = not any(busy[member] for member in members[row] if member >= 0)
        for kind in range(len(left)):
            assert not (free and priority[row, kind] > -np.inf and need[row] <= room[kind])
