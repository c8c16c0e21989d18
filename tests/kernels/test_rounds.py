"""`kernels.rounds`: credit follows time, capacity is respected, every job has a reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core.reasons import Code
from levada.core.types import Floats, Ints
from levada.kernels import rounds, view
from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

rounds_interpreted = Kernels("rounds", "interpreted")

KERNELS = rounds_interpreted, Kernels("rounds", "compiled")

LEVELS = st.sampled_from([-np.inf, -1.5, 0.0, 0.0, 2.0, 7.25])
PARTS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])
SPEEDS = st.sampled_from([0.0, 0.5, 1.0])
CREDITS = st.sampled_from([-700.0, -30.0, 0.0, 0.0, 45.5, 700.0])
WEIGHTS = (1800.0, 2880.0, 7200.0, 0.1)


class Scene:
    """Random jobs, their combinations and the capacity."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.count, self.types = draw(st.integers(0, 7)), draw(st.integers(1, 4))
        numbers = draw(st.lists(st.integers(0, 20), min_size=self.count, max_size=self.count, unique=True))
        if draw(st.booleans()):
            numbers.sort()
        self.size = self.ints(st.integers(0, 3), self.count)
        self.unit = self.ints(st.sampled_from([0, 500, 1000]), self.count)
        runs = self.ints(st.integers(-1, self.types - 1), self.count)
        least = self.ints(st.integers(0, 3), self.count)
        milli = np.where(self.ints(st.booleans(), self.count) > 0, self.unit, 0)
        self.jobs = np.stack([np.array(numbers, np.int64), self.size, self.unit, runs, least, milli])
        ages = st.sampled_from([0.0, 10.0, 4000.0])
        self.reals = np.stack([self.floats(st.sampled_from([1.0, 2.0]), self.count), self.floats(ages, self.count)])
        pairs = []
        if self.count > 1 and draw(st.booleans()):
            pick = st.integers(0, self.count - 1)
            drawn = draw(st.lists(st.tuples(pick, pick), max_size=4))
            pairs = sorted({(min(pair), max(pair)) for pair in drawn if pair[0] != pair[1]})
        alone = [(row, -1) for row in range(self.count)]
        self.members = np.array(alone + pairs, np.int64).reshape(-1, 2)
        self.pairs = pairs
        shape = (len(self.members), self.types)
        self.share = self.floats(PARTS, shape[0] * shape[1]).reshape(shape)
        self.credit = self.floats(CREDITS, shape[0] * shape[1]).reshape(shape)
        self.speed = self.floats(SPEEDS, self.count * self.types).reshape(self.count, self.types)
        self.capacity = self.ints(st.sampled_from([0, 500, 1000, 4000, 1 << 50]), self.types)
        self.partner = np.zeros(0, np.int64)
        if pairs:
            self.partner = np.full(self.count, -2, np.int64)
            for a, b in pairs[:1]:
                self.partner[[a, b]] = b, a
        self.need, self.runs = rounds_interpreted.running(self.members, self.jobs, self.partner)

    def ints(self, values: st.SearchStrategy[Any], size: int) -> Any:
        return np.array(self._draw(st.lists(values, min_size=size, max_size=size)), np.int64)

    def floats(self, values: st.SearchStrategy[Any], size: int) -> Any:
        return np.array(self._draw(st.lists(values, min_size=size, max_size=size)), np.float64)

    def use(self, chosen: Any) -> Any:
        on = (chosen >= 0).nonzero()[0]
        used = np.zeros(self.types, np.int64)
        np.add.at(used, chosen[on], self.need[on])
        return used


scenes = st.composite(Scene)()


@st.composite
def questions(draw: st.DrawFn) -> tuple[Any, ...]:
    jobs, types = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    pairs = draw(st.lists(st.tuples(st.integers(0, jobs - 1), st.integers(0, jobs - 1)), max_size=5))
    members = [(row, -1) for row in range(jobs)] + [(min(p), max(p)) for p in pairs if p[0] != p[1]]
    size = len(members) * types
    priority = np.array(draw(st.lists(LEVELS, min_size=size, max_size=size))).reshape(len(members), types)
    need = np.array(draw(st.lists(st.integers(0, 4), min_size=len(members), max_size=len(members))), np.int64)
    left = np.array(draw(st.lists(st.integers(0, 9), min_size=types, max_size=types)), np.int64)
    total = left + np.array(draw(st.lists(st.sampled_from([0, 1, 9]), min_size=types, max_size=types)), np.int64)
    taken = np.array(draw(st.lists(st.booleans(), min_size=jobs, max_size=jobs)), bool)
    return priority, need, np.array(members, np.int64), left, total, taken


@given(question=questions())
def test_take_by_priority_is_fair_and_equal_in_both_modes(question: tuple[Any, ...]) -> None:
    priority, need, members, left, total, taken = question
    equal_in_both_modes(KERNELS, "take_by_priority", *question)
    room, busy = left.copy(), taken.copy()
    runs = rounds_interpreted.take_by_priority(priority, need, members, room, total, busy)
    on = (runs >= 0).nonzero()[0]
    used = np.bincount(runs[on], need[on], len(left)).astype(int)
    assert (room == left - used).all()
    assert (room >= np.minimum(left, 0)).all()
    running = members[on][members[on] >= 0]
    assert len(set(running.tolist())) == len(running), "no job runs twice"
    assert not taken[running].any(), "no running job is taken again"
    # Others had no room, a member that runs, or no priority.
    for row in (runs < 0).nonzero()[0]:
        free = not any(busy[member] for member in members[row] if member >= 0)
        for kind in range(len(left)):
            assert not (free and priority[row, kind] > -np.inf and need[row] <= room[kind])


def test_ties_go_to_the_type_with_the_largest_free_fraction() -> None:
    """Six equal jobs on types of 2, 8 and 4 GPUs."""
    members = np.stack([np.arange(6), np.full(6, -1)], axis=1)
    priority, need = np.ones((6, 3)), np.ones(6, np.int64)
    for kernel in KERNELS:
        left, total = np.array([2, 8, 4]), np.array([2, 8, 4])
        runs = kernel.take_by_priority(priority, need, members, left, total, np.zeros(6, bool))
        assert runs.tolist() == [0, 1, 2, 1, 1, 2]
        assert left.tolist() == [1, 5, 2]
    # Priority comes first, and what others use of a type counts.
    faster = np.where(np.arange(3) == 2, 2.0, 1.0) * priority
    for kernel in KERNELS:
        runs = kernel.take_by_priority(
            faster, need, members, np.array([2, 4, 4]), np.array([2, 8, 4]), np.zeros(6, bool)
        )
        assert runs.tolist() == [2, 2, 2, 2, 0, 0]


@given(data=st.data(), jobs=st.integers(1, 40), types=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_contested_combinations_are_found(data: st.DataObject, jobs: int, types: int, seed: int) -> None:
    """Types are slightly oversubscribed by many jobs: only the last few are contested."""
    drawn = np.random.default_rng(seed)
    priority = drawn.integers(0, data.draw(st.sampled_from([3, 1000])), (jobs, types)).astype(np.float64)
    priority[drawn.random((jobs, types)) < 0.1] = -np.inf
    need = drawn.integers(0, data.draw(st.integers(1, 4)), jobs) + 1
    asked = np.bincount(priority.argmax(axis=1), need, types).astype(np.int64)
    left = asked + drawn.integers(-3, 4, types)
    members = np.stack([np.arange(jobs), np.full(jobs, -1)], axis=1)
    equal_in_both_modes(
        KERNELS,
        "take_by_priority",
        priority,
        need,
        members,
        left,
        left + drawn.integers(0, 4, types),
        drawn.random(jobs) < 0.1,
    )


FILLED = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=4, unique_by=lambda job: job[0])


@given(scene=scenes, later=scenes, passed=st.sampled_from([-1.0, 0.0, 100.0, 9e9, math.inf]), filled=FILLED)
def test_state_follows_the_jobs(scene: Scene, later: Scene, passed: float, filled: list[tuple[int, int]]) -> None:
    numbers_of = np.where(scene.members >= 0, scene.jobs[0][scene.members], -1) if scene.count else scene.members
    asked, allowed = np.zeros((scene.count, 4)), later.speed > 0
    room = np.full(later.types, 3000)
    started = np.array([(number, kind, 33.0) for number, kind in filled]).reshape(-1, 3)
    memory = (numbers_of, scene.share, scene.credit, asked, room, started)
    members, share, credit, now_asked, need, runs, stale, crowded = equal_in_both_modes(
        *(
            KERNELS,
            "carry_over",
            memory,
            later.jobs,
            later.reals,
            allowed,
            later.partner,
            room,
            later.capacity,
            passed,
            WEIGHTS,
        )
    )
    assert stale == (now_asked.tolist() != asked.tolist())
    again = (numbers_of, scene.share, scene.credit, now_asked, room, started)
    for change in range(2 * later.count):
        types = allowed.copy()
        types[change // 2] ^= bool(change % 2)
        arguments = (again, later.jobs, later.reals, types, later.partner, room, later.capacity, passed, WEIGHTS)
        assert equal_in_both_modes(KERNELS, "carry_over", *arguments)[6] == bool(change % 2), (
            "shares are stale if allowed types change"
        )
    assert now_asked[:, 0].tolist() == sorted(later.jobs[0].tolist())
    assert crowded == bool((_used(runs, need, later.types) > later.capacity).any())
    before = {tuple(name): at for at, name in enumerate(numbers_of.tolist())}
    width = min(scene.types, later.types)
    for at, (a, b) in enumerate(members.tolist()):
        old = before.get((int(later.jobs[0][a]), int(later.jobs[0][b]) if b >= 0 else -1))
        assert old is not None or b < 0, "only pairs that had a share are there"
        had = np.zeros(later.types)
        if old is not None:
            assert share[at, :width].tolist() == scene.share[old, :width].tolist()
            had[:width] = scene.credit[old, :width]
        if 0 < passed < math.inf:
            had += share[at] * passed * paces(share, need, runs)
            if runs[at] >= 0:
                had[runs[at]] -= passed
            had = np.clip(had, -WEIGHTS[1], WEIGHTS[1])
        if b < 0 and (int(later.jobs[0][a]), int(runs[at])) in filled:
            had[runs[at]] += 33.0  # it did not run during the first 33 s
        assert credit[at].tolist() == had.tolist()


@given(scene=scenes)
def test_free_capacity_goes_to_pending_jobs(scene: Scene) -> None:
    jobs = scene.jobs.copy()
    jobs[view.RUNS] = -1
    allowed = scene.speed > 0
    slots, liking = np.arange(scene.count), np.zeros((scene.types, scene.count), np.int16)
    total = np.maximum(scene.capacity, 4000)
    decision, started = equal_in_both_modes(
        KERNELS, "fill", jobs, scene.speed.copy(), allowed, liking, slots, scene.capacity, total, 33.0
    )
    runs = decision[rounds.COUNT].nonzero()[0]
    assert started.tolist() == [[jobs[0, row], decision[rounds.TYPE, row], 33.0] for row in runs]
    need = scene.size * scene.unit
    left = scene.capacity - _used(decision[rounds.TYPE], need, scene.types)
    assert (left >= np.minimum(scene.capacity, 0)).all()
    assert (decision[rounds.RANK] == -1).all()
    for row in (decision[rounds.TYPE] < 0).nonzero()[0]:
        assert not need[row] or not (allowed[row] & (need[row] <= left)).any()


def paces(share: Floats, need: Ints, runs: Ints) -> list[float]:
    """Per type the served fraction of the owed shares."""
    result = []
    for kind in range(share.shape[1]):
        owed = served = 0.0
        for at in range(len(share)):
            owed += share[at, kind] * need[at]
            if runs[at] >= 0 and share[at].any():
                whole = 0.0
                for part in share[at]:
                    whole += part
                served += share[at, kind] * need[at] / whole
        result.append(served / owed if owed > served else 1.0)
    return result


def _used(runs: Any, need: Any, types: int) -> Any:
    on = (runs >= 0).nonzero()[0]
    return np.bincount(runs[on], need[on], types)


@given(scene=scenes, due=st.booleans(), strict=st.booleans(), owed_only=st.booleans())
def test_combinations_run_only_where_there_is_room(scene: Scene, due: bool, strict: bool, owed_only: bool) -> None:
    columns = (scene.members, scene.share, scene.credit, scene.need, scene.runs)
    limits = (scene.speed, scene.capacity, scene.capacity + 1000, WEIGHTS)
    owed_only = owed_only or strict
    chosen = equal_in_both_modes(KERNELS, "choose", due, strict, owed_only, *columns, *limits)
    used = scene.use(chosen)
    before = scene.use(scene.runs)
    for at, kind in enumerate(chosen.tolist()):
        if kind < 0 or (not due and kind == scene.runs[at]):
            continue
        assert used[kind] <= scene.capacity[kind]
        assert at >= scene.count or scene.speed[at, kind] > 0
        assert not strict or scene.share[at, kind] > 0
    running = scene.members[chosen >= 0]
    running = running[running >= 0]
    if due:
        assert len(set(running.tolist())) == len(running)
    else:
        on = scene.runs >= 0
        assert (chosen[on] == scene.runs[on]).all(), "between rounds no job is stopped"
        assert (used >= before).all()


@given(scene=scenes, data=st.data(), owed_only=st.booleans())
def test_every_job_has_a_reason(scene: Scene, data: st.DataObject, owed_only: bool) -> None:
    room = scene.capacity.copy()
    chosen = rounds_interpreted.take_by_priority(
        np.where(scene.share > 0, scene.credit, -np.inf),
        scene.need,
        scene.members,
        room,
        scene.capacity,
        np.zeros(scene.count, bool),
    )
    allowed = scene.speed > 0
    slots = np.arange(scene.count)[::-1].copy()
    likes = st.lists(
        st.sampled_from([0, 32767]), min_size=scene.count * scene.types, max_size=scene.count * scene.types
    )
    liking = np.array(data.draw(likes), np.int16).reshape(scene.types, scene.count)
    total = scene.capacity + 1000
    decision, numbers_of, kept, ran, quiet_s = equal_in_both_modes(
        KERNELS,
        "build_decision",
        *(owed_only, scene.jobs, scene.members, scene.share, scene.credit, scene.runs, chosen),
        *(scene.speed, allowed, liking, slots, scene.capacity, total, WEIGHTS),
    )
    assert quiet_s >= 0
    if len(scene.members) == scene.count and not (scene.speed > 0).any():
        assert quiet_s == math.inf, "a job that can run nowhere overtakes none"
    assert (kept, ran) == (((scene.runs >= 0) & (chosen == scene.runs)).sum(), (scene.runs >= 0).sum())
    assert ((numbers_of >= 0) == (scene.members >= 0)).all()
    assert sorted(decision[rounds.RANK].tolist()) == list(range(scene.count))
    owed = np.maximum(scene.credit[: scene.count].max(axis=1, initial=0.0), 0.0)
    assert (np.diff(owed[np.argsort(decision[rounds.RANK])]) <= 0).all()
    runs = decision[rounds.COUNT] > 0
    assert (runs == (decision[rounds.TYPE] >= 0)).all()
    assert (runs == (decision[rounds.REASON] == Code.RUNS)).all()
    assert (decision[rounds.COUNT][runs] == scene.size[runs]).all()
    for row in (~runs).nonzero()[0]:
        reason, need = int(decision[rounds.REASON, row]), scene.need[row]
        fast = [kind for kind in range(scene.types) if scene.speed[row, kind] > 0]
        if reason == Code.TOO_LARGE:
            likes = [kind for kind in range(scene.types) if liking[kind, slots[row]] == 0]
            most = max([0, *(total[kind] // max(scene.unit[row], 1) for kind in likes)])
            assert decision[rounds.EVIDENCE, row] == most < scene.jobs[view.LEAST, row]
        elif reason == Code.UNKNOWN_TYPE:
            assert not allowed[row].any()
        elif reason == Code.IN_LINE:
            assert any(room[kind] >= need for kind in fast)
        elif reason == Code.CAPACITY:
            # Cores count only while a job could use them, so the first type is not checked.
            assert not any(room[kind] >= need and scene.capacity[kind] > 0 for kind in fast if kind > 0)
        else:
            assert reason == Code.CANNOT_RUN
            assert not any(scene.capacity[kind] > 0 for kind in fast if kind > 0)
