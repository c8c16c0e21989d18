"""`kernels.fill`: compiled and interpreted results are bit-identical and correct."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core.layout import NOT_ALLOWED
from levada.kernels import fill
from tests.kernel_modes import Kernels

fill_interpreted = Kernels("fill", "interpreted")

fill_compiled = Kernels("fill", "compiled")

Columns = dict[str, Any]
JOBS = ("ints", "slots", "columns")
ROOM = ("preference", "exists", "capacity", "totals", "order", "size", "most")
ASSIGN = (*ROOM, "lineage", "room", "guarantee", "fair")


def ints(numbers: list[int]) -> Any:
    return np.array(numbers, np.int64)


class View:
    """Random jobs in view, capacity and order, by name of the kernel parameter."""

    def __init__(self, draw: st.DrawFn) -> None:
        jobs, kinds = draw(st.integers(0, 8)), draw(st.integers(1, 4))
        capacity = jobs + 3
        shuffled = st.permutations(range(capacity))
        block = np.full((len(fill.COLUMNS) + 1, capacity), 1 << 40, np.int64)
        columns = draw(st.permutations(range(len(block))))[: len(fill.COLUMNS)]
        slots = draw(shuffled)[:jobs]
        self.job: list[dict[str, int]] = []
        for number, slot in enumerate(slots):
            least = draw(st.integers(1, 3))
            job = {
                "number": number,
                "min": least,
                "max": least + draw(st.integers(0, 6)),
                "step": draw(st.integers(1, 3)),
                "milli": draw(st.sampled_from([0, 250, 1000, 1000, 2000])),
                "cpu": draw(st.sampled_from([0, 500, 1500])),
                "count": draw(st.integers(0, 3)),
                "type": draw(st.integers(-1, kinds - 1)),
                "any_type": draw(st.integers(0, 1)),
            }
            block[columns, slot] = [job[name] for name in fill.COLUMNS]
            job["unit"] = job["milli"] or job["cpu"]
            self.job.append(job)
        ranks = st.lists(st.sampled_from([0, 1, 2, NOT_ALLOWED]), min_size=capacity, max_size=capacity)
        allowed = np.array([draw(ranks) for _ in range(kinds)], np.int16)
        amounts = st.sampled_from([0, 500, 1000, 2500, 4000, 9000])
        queues, depth = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        per_queue = st.lists(st.lists(amounts, min_size=kinds, max_size=kinds), min_size=queues, max_size=queues)
        lines = [draw(st.permutations([*range(queues), -1, -1]))[:depth] for _ in range(jobs)]
        # A job is always in a queue; the queues above it are optional.
        lines = [[abs(line[0]) % queues, *line[1:]] if depth else [] for line in lines]
        total = ints([draw(amounts) for _ in range(kinds)])
        self.all: Columns = {
            "ints": block,
            "slots": ints(slots),
            "columns": ints(columns),
            "preference": np.ascontiguousarray(allowed[:, slots]),
            "exists": np.array([draw(st.booleans()) or bool(amount) for amount in total], bool),
            "allowed": allowed,
            "capacity": total,
            "totals": total + ints([draw(amounts) for _ in range(kinds)]),
            "order": ints(draw(st.permutations(range(jobs)))),
            "size": ints([draw(st.integers(job["min"], job["max"])) for job in self.job]),
            "most": ints([job["max"] for job in self.job]),
            "lineage": ints(lines).reshape(jobs, depth),
            "room": ints(draw(per_queue)),
            "guarantee": ints(draw(per_queue)),
            "fair": ints(draw(per_queue)),
            "types": ints([draw(st.integers(-1, kinds - 1)) for _ in range(jobs)]),
            "left": np.array([draw(st.sampled_from([np.nan, 0.0, 60.0, np.inf])) for _ in range(jobs)], np.float64),
            "reason": ints([draw(st.integers(2, 5)) for _ in range(jobs)]),
            "code": 2,
            "other": 3,
            "codes": ints([0, 7, 6]),
            "grow": draw(st.booleans()),
        }
        left = [int(amount) for amount in total]
        sizes = []
        for job, kind in zip(self.job, self.all["types"], strict=True):
            fits = kind >= 0 and job["min"] * job["unit"] <= left[kind] and draw(st.booleans())
            sizes.append(job["min"] if fits else 0)
            left[kind] -= sizes[-1] * job["unit"]
        # Grants that fit.
        self.all["count"] = ints(sizes)

    def equal_in_both_modes(self, name: str, *more: str) -> Any:
        """The result of both modes; asserts that they are equal and leave their arguments unchanged."""
        mine = {key: np.copy(self.all[key]) if key in JOBS else self.all[key] for key in (*JOBS, *more)}
        result = getattr(fill_interpreted, name)(**mine)
        compiled = getattr(fill_compiled, name)(**mine)
        for one, other in zip(
            *(part if isinstance(part, tuple) else (part,) for part in (result, compiled)), strict=True
        ):
            assert np.asarray(one).dtype == np.asarray(other).dtype
            assert np.asarray(one).tolist() == np.asarray(other).tolist()
        for key, value in mine.items():
            assert np.asarray(value).tobytes() == np.asarray(self.all[key]).tobytes()
        return result

    def line(self, row: int) -> list[int]:
        """The queues of a job."""
        return [queue for queue in self.all["lineage"][row].tolist() if queue >= 0]

    def may_use(self, row: int, kind: int) -> int:
        """What a single job could use of a type."""
        most = self.all["most"][row] * self.job[row]["unit"]
        return int(min([most, self.all["totals"][kind], *(self.all["room"][queue, kind] for queue in self.line(row))]))

    def fits(self, row: int, kind: int, units: int, left: Any, room: Any) -> bool:
        """Whether a type and the queues of a job have *units* left."""
        return bool(units <= left[kind] and all(units <= room[queue, kind] for queue in self.line(row)))

    def slack(self, row: int, kind: int, left: Any, fair: Any) -> float:
        """What would be left of a type, and of the fair part of a job's queue, as a fraction."""
        units, queue = self.may_use(row, kind), self.line(row)[:1]
        parts = [(fair[each, kind] - units) / max(self.all["fair"][each, kind], 1) for each in queue]
        return float(min([(left[kind] - units) / max(self.all["totals"][kind], 1), *parts]))

    def preferred(self, row: int, kinds: list[int], left: Any, fair: Any) -> list[int]:
        """*kinds* by rank, equal ones by the largest free part of the type and of the fair part of the job's queue."""

        def free_part(kind: int) -> float:
            parts = [fair[each, kind] / max(self.all["fair"][each, kind], 1) for each in self.line(row)[:1]]
            return float(min([left[kind] / max(self.all["totals"][kind], 1), *parts]))

        return sorted(kinds, key=lambda kind: (self.all["preference"][kind, row], -free_part(kind), kind))

    def take(self, row: int, kind: int, units: int, left: Any, room: Any) -> None:
        left[kind] -= units
        for queue in self.line(row):
            room[queue, kind] -= units

    def ranked(self, row: int) -> list[int]:
        """The types that a job may use and that exist, best first."""
        rank, exists = self.all["preference"][:, row], self.all["exists"]
        return sorted((k for k in range(len(rank)) if exists[k] and rank[k] < NOT_ALLOWED), key=lambda k: (rank[k], k))

    def keeps(self, row: int) -> bool:
        job, size = self.job[row], self.all["size"][row]
        here = job["count"] > 0 and job["type"] in self.ranked(row)
        return bool(here and size * job["unit"] <= self.all["capacity"][job["type"]])


@st.composite
def views(draw: st.DrawFn) -> View:
    return View(draw)


@given(views())
def test_home_types(view: View) -> None:
    homes = view.equal_in_both_modes("home_types", "preference", "exists", "capacity", "size")
    for row, home in enumerate(homes):
        assert home == (view.job[row]["type"] if view.keeps(row) else next(iter(view.ranked(row)), -1))


@given(views())
def test_assign_types(view: View) -> None:
    types = view.equal_in_both_modes("assign_types", *ASSIGN)
    capacity, room, size, line = (view.all[name] for name in ("capacity", "room", "size", "lineage"))
    needed, wished = (capacity.copy(), room.copy()), (capacity.copy(), room.copy())
    fair = view.all["fair"].copy()
    stay = [row for row in range(len(types)) if view.keeps(row)]
    for row in stay:
        assert types[row] == view.job[row]["type"]
        view.take(row, types[row], size[row] * view.job[row]["unit"], *needed)
        view.take(row, types[row], view.may_use(row, types[row]), *wished)
        fair[line[row, :1], types[row]] -= view.may_use(row, types[row])
    for row in (row for row in view.all["order"] if row not in stay):
        ranked, need = view.ranked(row), size[row] * view.job[row]["unit"]
        fitting = [kind for kind in ranked if view.fits(row, kind, need, *needed)]
        roomy = [kind for kind in fitting if view.fits(row, kind, view.may_use(row, kind), *wished)]
        roomy = view.preferred(row, roomy, wished[0], fair)
        if view.job[row]["any_type"] and not roomy:
            slack = {kind: view.slack(row, kind, wished[0], fair) for kind in fitting}
            fitting.sort(key=lambda kind: -slack[kind])
        large = [kind for kind in ranked if view.fits(row, kind, need, capacity, room)]
        sure = [kind for kind in large if line.shape[1] and need <= view.all["guarantee"][line[row, 0], kind]]
        assert types[row] == next(iter([*roomy, *fitting, *sure, *large, *ranked]), -1)
        if fitting:
            view.take(row, types[row], need, *needed)
            view.take(row, types[row], view.may_use(row, types[row]), *wished)
            fair[line[row, :1], types[row]] -= view.may_use(row, types[row])


@given(views())
def test_a_job_that_may_use_only_its_need_takes_the_preferred_type_that_fits(view: View) -> None:
    view.all["most"] = view.all["size"]
    types = view.equal_in_both_modes("assign_types", *ASSIGN)
    left, rooms, size = view.all["capacity"].copy(), view.all["room"].copy(), view.all["size"]
    fair, line = view.all["fair"].copy(), view.all["lineage"]
    need = [size[row] * job["unit"] for row, job in enumerate(view.job)]
    stay = [row for row in range(len(types)) if view.keeps(row)]
    for row in stay:
        view.take(row, types[row], need[row], left, rooms)
        fair[line[row, :1], types[row]] -= view.may_use(row, types[row])
    for row in (row for row in view.all["order"] if row not in stay):
        fitting = [kind for kind in view.ranked(row) if view.fits(row, kind, need[row], left, rooms)]
        if fitting:
            assert types[row] == view.preferred(row, fitting, left, fair)[0]
            view.take(row, types[row], need[row], left, rooms)
            fair[line[row, :1], types[row]] -= view.may_use(row, types[row])


@given(views())
def test_fill_in_order(view: View) -> None:
    count = view.equal_in_both_modes("fill_in_order", "capacity", "order", "types", "size")
    left = view.all["capacity"].copy()
    for row in view.all["order"]:
        kind, size = view.all["types"][row], view.all["size"][row]
        need = size * view.job[row]["unit"]
        gets = kind >= 0 and need <= left[kind]
        assert count[row] == (size if gets else 0)
        if gets:
            left[kind] -= need


@given(views())
def test_grow_in_turns(view: View) -> None:
    grown = view.equal_in_both_modes("grow_in_turns", "capacity", "order", "types", "count").tolist()
    expected = view.all["count"].tolist()
    free = view.equal_in_both_modes("free_after", "capacity", "types", "count")
    grew = True
    while grew:
        grew = False
        for row in view.all["order"]:
            job, kind = view.job[row], view.all["types"][row]
            cost = job["step"] * job["unit"]
            if 0 < expected[row] <= job["max"] - job["step"] and (cost == 0 or cost <= free[kind]):
                expected[row] += job["step"]
                free[kind] -= cost
                grew = True
    assert grown == expected


@given(views(), st.sampled_from(["min", "max", "count"]))
def test_on_grid(view: View, name: str) -> None:
    view.all["column"] = int(view.all["columns"][fill.COLUMNS.index(name)])
    for job, size in zip(view.job, view.equal_in_both_modes("on_grid", "column").tolist(), strict=True):
        grid = range(job["min"], job["max"] + 1, job["step"])
        assert size == max([job["min"], *(size for size in grid if size <= job[name])])


@given(views())
def test_growable(view: View) -> None:
    view.all["free"] = view.equal_in_both_modes("free_after", "capacity", "types", "count")
    rows = view.equal_in_both_modes("growable", "free", "order", "types", "count")
    expected = []
    for row in view.all["order"]:
        job, kind, count = view.job[row], view.all["types"][row], view.all["count"][row]
        grows = job["step"] if count > 0 else job["min"]
        pays = job["unit"] == 0 or (kind >= 0 and grows * job["unit"] <= view.all["free"][kind])
        if kind >= 0 and count + grows <= job["max"] and pays:
            expected.append(row)
    assert rows.tolist() == expected


@given(views())
def test_fitting_reasons(view: View) -> None:
    view.all["free"] = view.equal_in_both_modes("free_after", "capacity", "types", "count")
    reasons = view.equal_in_both_modes("fitting_reasons", "free", "types", "code", "other")
    for job, kind, reason in zip(view.job, view.all["types"], reasons, strict=True):
        fits = kind >= 0 and job["min"] * job["unit"] <= view.all["free"][kind]
        assert reason == (view.all["code"] if fits else view.all["other"])


@given(views())
def test_free_after(view: View) -> None:
    left = view.equal_in_both_modes("free_after", "capacity", "types", "count")
    for kind, amount in enumerate(view.all["capacity"]):
        mine = [row for row, of in enumerate(view.all["types"]) if of == kind]
        assert left[kind] == amount - sum(view.all["count"][row] * view.job[row]["unit"] for row in mine)


@given(views())
def test_attribute_wait(view: View) -> None:
    reasons = view.equal_in_both_modes("attribute_wait", "capacity", "types", "count", "left", "code", "other")
    types, unknown, capacity = view.all["types"], np.isnan(view.all["left"]), view.all["capacity"]
    known = [row for row in range(len(types)) if not unknown[row] and view.all["count"][row] > 0]
    for row, kind in enumerate(types):
        need = view.job[row]["min"] * view.job[row]["unit"]
        others = sum(view.all["count"][other] * view.job[other]["unit"] for other in known if types[other] == kind)
        is_cause = unknown[row] and kind >= 0 and capacity[kind] - others < need <= capacity[kind]
        assert reasons[row] == (view.all["code"] if is_cause else view.all["other"])


@given(views())
def test_build_decision(view: View) -> None:
    decision = view.equal_in_both_modes(
        "build_decision", "allowed", "totals", "order", "types", "count", "reason", "codes"
    )
    number, kind, count, reason, evidence, rank = decision.tolist()
    assert number == list(range(len(view.job)))
    assert [rank[row] for row in view.all["order"]] == list(range(len(rank)))
    assert count == view.all["count"].tolist()
    for row, job in enumerate(view.job):
        allowed = view.all["allowed"][:, view.all["slots"][row]] < NOT_ALLOWED
        most = max([0, *(view.all["totals"][allowed] // max(job["unit"], 1))])
        if count[row] > 0:
            expected = (view.all["types"][row], 0, 0)
        elif view.all["types"][row] < 0:
            expected = (-1, 7, 0)
        elif job["unit"] > 0 and most < job["min"]:
            expected = (-1, 6, most)
        else:
            expected = (-1, view.all["reason"][row], 0)
        assert (kind[row], reason[row], evidence[row]) == expected


@given(views())
def test_decide_in_order_equals_its_steps(view: View) -> None:
    view.all["lineage"] = view.all["lineage"][:, :0]
    decision = view.equal_in_both_modes("decide_in_order", *ROOM, "allowed", "grow", "code", "codes")
    view.all["types"] = view.equal_in_both_modes("assign_types", *ASSIGN)
    view.all["count"] = view.equal_in_both_modes("fill_in_order", "capacity", "order", "types", "size")
    if view.all["grow"]:
        view.all["count"] = view.equal_in_both_modes("grow_in_turns", "capacity", "order", "types", "count")
    view.all["reason"] = np.full(len(view.job), view.all["code"], np.int64)
    again = view.equal_in_both_modes(
        "build_decision", "allowed", "totals", "order", "types", "count", "reason", "codes"
    )
    assert decision.tolist() == again.tolist()
