"""`dragon-compat` against an independent implementation of the original rules."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.allocate.dragon import answer
from levada.policies.dragon.compat import DragonCompat
from tests.engine.faulty_world import faulty_world
from tests.policies.dragon_harness import Story, job, node

MIB = 1 << 20


class Free:
    """Free resources of one node, as the original counted them."""

    def __init__(self, cpu: int, mem: int, devices: int, device_mem: int) -> None:
        self.cpu, self.mem, self.devices, self.device_mem = cpu, mem, devices, device_mem
        self.vgpus: dict[str, list[int]] = {}
        self.opened = 0

    def copy(self) -> Free:
        twin = Free(self.cpu, self.mem, self.devices, self.device_mem)
        twin.vgpus = {name: list(vgpu) for name, vgpu in self.vgpus.items()}
        twin.opened = self.opened
        return twin

    def take(self, need: dict[str, int]) -> str | None:
        """Take one process; its device's name ("" without one), or None without room."""
        if self.cpu < need["cpu"] or self.mem < need["mem"] or self.devices < need["gpu"]:
            return None
        name = ""
        if need["milli"]:
            fitting = [n for n, (milli, mem) in self.vgpus.items() if milli >= need["milli"] and mem >= need["gmem"]]
            if fitting:
                name = fitting[0]
                self.vgpus[name][0] -= need["milli"]
                self.vgpus[name][1] -= need["gmem"]
            elif self.devices > 0:
                self.opened += 1
                name = f"new{self.opened}"
                self.devices -= 1
                self.vgpus[name] = [1000 - need["milli"], self.device_mem - need["gmem"]]
            else:
                return None
        self.cpu -= need["cpu"]
        self.mem -= need["mem"]
        self.devices -= need["gpu"]
        return name


def demand(group: dict[str, Any], mode: str) -> dict[str, int]:
    share = mode == "kubeshare" and float(group.get("gpu_request") or 0) > 0
    return {
        "cpu": group["cpu"],
        "mem": group["mem"],
        "gpu": group["gpu"] if mode == "nvidia" else 0,
        "milli": math.ceil(1000 * float(group["gpu_request"])) if share else 0,
        "gmem": int(group["gpu_mem"]) if share else 0,
    }


def place(groups: list[list[dict[str, int]]], free: dict[str, Free]) -> list[list[tuple[str, str]]]:
    best, best_score = None, 0
    for name in free:
        trial, done, stopped = free[name].copy(), [0] * len(groups), False
        for i, group in enumerate(groups):
            for need in group:
                stopped = stopped or trial.take(need) is None
                done[i] += not stopped
        if not stopped:
            best = name
            break
        if max(done) > best_score:
            best, best_score = name, max(done)
    if best is None:
        return [[] for _ in groups]
    order = [best, *(name for name in free if name != best)]
    left = {name: free[name].copy() for name in free}
    placed: list[list[tuple[str, str]]] = [[] for _ in groups]
    for i, group in enumerate(groups):
        for need in group:
            while order and (device := left[order[0]].take(need)) is None:
                order.pop(0)
            if not order:
                return placed
            placed[i].append((order[0], device))
    return placed


def succeeds(want: list[dict[str, int]], free: dict[str, Free]) -> bool:
    return len(place([want], free)[0]) == len(want)


def shrink(case: dict[str, Any], want: list[dict[str, int]], free: dict[str, Free]) -> Counter[Any] | None:
    removed: Counter[Any] = Counter()
    for job_ in case["running"]:
        workers, need = job_["placement"]["worker"], demand(job_["worker"], case["mode"])
        home = job_["placement"]["ps"][0]["node"]
        quota, count, over = len(workers) - job_["min"], 0, False
        nodes = sorted({worker["node"] for worker in workers} - {home})
        for name in [*nodes, home]:
            for worker in [worker for worker in workers if worker["node"] == name]:
                if over:
                    break
                if succeeds(want, free):
                    return removed
                if count >= quota:
                    over = True
                    break
                if worker.get("critical"):
                    continue
                at = free[name]
                at.cpu += need["cpu"]
                at.mem += need["mem"]
                at.devices += need["gpu"]
                if need["milli"]:
                    at.vgpus[worker["gpuid"]][0] += need["milli"]
                    at.vgpus[worker["gpuid"]][1] += need["gmem"]
                count += 1
                removed[job_["name"], name] += 1
    return removed if succeeds(want, free) else None


def original(case: dict[str, Any]) -> dict[str, Any]:
    """What the original does when its maps happen to be sorted."""
    mode = case["mode"]
    free = {n["name"]: Free(n["cpu"], n["mem"], n["gpus"], n["gpu_mem_mib"] * MIB) for n in case["nodes"]}
    for job_ in case["running"]:
        for kind in ("ps", "worker"):
            need = demand(job_[kind], mode)
            for at in job_["placement"][kind]:
                here = free[at["node"]]
                here.cpu -= need["cpu"]
                here.mem -= need["mem"]
                here.devices -= need["gpu"]
                if need["milli"]:
                    if at["gpuid"] not in here.vgpus:
                        here.devices -= 1
                        here.vgpus[at["gpuid"]] = [1000, here.device_mem]
                    here.vgpus[at["gpuid"]][0] -= need["milli"]
                    here.vgpus[at["gpuid"]][1] -= need["gmem"]
    result: dict[str, Any] = {"admit": None, "bind": None, "down": Counter(), "up": Counter()}
    clock, now, want = case["last_action"], case["now"], None
    if case["priority_pods"]:
        want = [demand(case["priority_pods"][0], mode)]
    elif case["pending"] and case["pending"][0]["waited"] >= 30.0:
        head = case["pending"][0]
        want = [demand(head["worker"], mode)] * head["min"]
    removed: Counter[Any] | None = Counter()
    if want is not None:
        removed = shrink(case, want, {name: here.copy() for name, here in free.items()})
        clock = now
    if removed is not None:
        result["down"] = removed
        if case["priority_pods"]:
            placed = place([want], free)[0]
            result["bind"] = placed[0][0] if placed else None
        else:
            for waiting in case["pending"]:
                servers = [demand(waiting["ps"], mode)] * waiting["ps"]["replicas"]
                workers = [demand(waiting["worker"], mode)] * waiting["worker"]["replicas"]
                placed_all = place([servers, workers], free)
                if len(placed_all[0]) == len(servers) and len(placed_all[1]) >= waiting["min"]:
                    result["admit"] = (waiting["name"], [Counter(name for name, _ in group) for group in placed_all])
                    clock = now
                    break
    if now - clock >= 60.0:
        result["up"] = grow(case, free)
        clock = now
    result["reset"] = clock == now
    return result


def grow(case: dict[str, Any], free: dict[str, Free]) -> Counter[Any]:
    added: Counter[Any] = Counter()
    i, running = 0, case["running"]
    for name in free:
        while i < len(running):
            job_, misfit = running[i], False
            room = job_["max"] - len(job_["placement"]["worker"])
            while room > 0 and not misfit:
                misfit = free[name].take(demand(job_["worker"], case["mode"])) is None
                if not misfit:
                    added[job_["name"], name] += 1
                    room -= 1
            if misfit:
                break
            i += 1
    return added


def seen(case: dict[str, Any]) -> dict[str, Any]:
    """What `dragon-compat` does, in the same words."""
    outcome = answer(case, "dragon-compat")["outcome"]
    admit, bind = outcome["admit"], outcome["bind_priority_pod"]
    down: Counter[Any] = Counter()
    for name, nodes in outcome["scale_down"].items():
        for where, lost in nodes.items():
            down[name, where] += lost if isinstance(lost, int) else sum(lost.values())
    up = {(name, where): n for name, more in outcome["scale_up"].items() for where, n in more["workers"].items()}
    return {
        "admit": None if admit is None else (admit["job"], [Counter(admit["ps"]), Counter(admit["workers"])]),
        "bind": None if bind is None else bind["node"],
        "down": down,
        "up": Counter(up),
        "reset": outcome["last_action_reset"],
    }


GROUPS = {
    "nvidia": st.builds(
        lambda cpu, gpu: {"cpu": cpu, "mem": 512, "gpu": gpu}, st.sampled_from([0, 500, 2000]), st.integers(0, 2)
    ),
    "kubeshare": st.builds(
        lambda cpu, share: {"cpu": cpu, "mem": 512, "gpu": 0, "gpu_request": share[0], "gpu_mem": str(share[1] * MIB)},
        st.sampled_from([0, 500, 2000]),
        st.sampled_from([(None, 1), ("0.25", 1), ("0.5", 3000), ("0.5", 9000), ("0.6", 1), ("0.1", 3000), ("1.0", 0)]),
    ),
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A small cluster with running jobs, pending jobs, and perhaps serving pods."""
    mode = draw(st.sampled_from(["nvidia", "kubeshare"]))
    groups = GROUPS[mode]
    nodes = [
        {"name": f"n{i}", "cpu": draw(st.sampled_from([3000, 8000])), "mem": 8192, "gpus": draw(st.integers(0, 4))}
        | {"gpu_mem_mib": draw(st.sampled_from([0, 4096, 8192]))}
        for i in range(draw(st.integers(1, 4)))
    ]
    free = {n["name"]: Free(n["cpu"], n["mem"], n["gpus"], n["gpu_mem_mib"] * MIB) for n in nodes}
    running = []
    for i in range(draw(st.integers(0, 3))):
        server = {"cpu": 500, "mem": 512, "gpu": 0, "replicas": 1}
        worker = draw(groups)
        at = draw(st.sampled_from(nodes))["name"]
        if free[at].take(demand(server, mode)) is None:
            continue
        places = []
        for _ in range(draw(st.integers(1, 4))):
            where = draw(st.sampled_from(nodes))["name"]
            device = free[where].take(demand(worker, mode))
            if device is not None:
                places.append({"node": where, "gpuid": f"{where}-{device}"} if device else {"node": where})
        if not places:
            continue
        places[draw(st.integers(0, len(places) - 1))]["critical"] = True
        least = draw(st.integers(1, len(places)))
        plan = {"ps": [{"node": at}], "worker": places}
        limits = {"min": least, "max": len(places) + draw(st.integers(0, 3))}
        running.append(
            {"name": f"r{i}", "ps": server, "worker": {**worker, "replicas": 1}, "placement": plan, **limits}
        )
    pending, waited = [], draw(st.sampled_from([5.0, 29.0, 30.0, 90.0]))
    for i in range(draw(st.integers(0, 3))):
        replicas = draw(st.integers(1, 5))
        pending.append(
            {
                "name": f"j{i}",
                "waited": max(waited - i, 0.0),
                "min": draw(st.integers(1, replicas)),
                "max": replicas,
                "ps": {"cpu": 500, "mem": 512, "gpu": 0, "replicas": draw(st.integers(1, 2))},
                "worker": {**draw(groups), "replicas": replicas},
            }
        )
    pods = [{"name": "srv", **draw(groups)}] if draw(st.integers(0, 3)) == 0 else []
    clock = draw(st.sampled_from([1000.0, 1030.0, 1080.0]))
    return {
        "mode": mode,
        "now": 1090.0,
        "last_action": clock,
        "nodes": nodes,
        "running": running,
        "pending": pending,
        "priority_pods": pods,
    }


@given(cases())
@settings(max_examples=200, deadline=None)
def test_it_decides_as_the_original(case):
    assert seen(case) == original(case)


def test_with_clamp_nobody_exceeds_the_maximum():
    for clamp, most in ((True, 4), (False, 5)):
        story = Story(node("n1", 3), node("n2", 2), policy=DragonCompat(clamp=clamp))
        story.submit(job("r", 0.0, 1, 4))
        snap = story.world.snapshot(0.0)
        result, state = story.policy.decide(snap, None, story.state)
        assert result.count.tolist() == [1]
        story.decide(0.0)
        result, _ = story.policy.decide(story.world.snapshot(60.0), None, state)
        assert result.count.tolist() == [most]


def test_one_start_per_decision_and_the_others_are_told():
    story = Story(node("n1", 4), policy=DragonCompat())
    story.submit(job("a", 0.0), job("b", 1.0))
    result = story.decide(2.0)
    assert result.count.tolist() == [1, 0]
    story.decide(3.0)
    assert story.sizes() == {"a": 1, "b": 1}
    assert np.isfinite(story.last.wake_at)


def test_steps_of_a_job_leave_together() -> None:
    system = faulty_world(3, policy="dragon-compat")
    system.submit(min=1, max=3, desired=3, step=2)
    system.calm()
    assert system.sizes() == {"j1": 3}
    system.submit(min=1, max=1)
    for _ in range(10):
        system.pass_time(30.0)
        system.calm()
    assert system.sizes() == {"j1": 1, "j2": 1}
    assert system.engine.query.last_rejection == ""
