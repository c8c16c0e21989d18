"""A long random walk over the engine: `python -m tests.engine.random_walk --steps 100000`."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from levada.core.cluster import Node
from levada.core.job import ParameterServers, Preemptible
from levada.core.queue import Queue
from levada.policies import registry
from tests.engine.faulty_world import FaultyWorld

POLICIES = registry.names()
NODES = (
    Node.of("a", {"v100": 4}, cpu=16000, memory=65536, open_to=("x",)),
    Node.of("b", {"v100": 4}, cpu=16000, memory=65536, labels={"rack": "r1"}),
    Node.of("c", {"v100": 2, "a100": 2}, gpu_memory=16384, labels={"rack": "r1"}, open_to=("x", "y")),
    Node.of("d", {"a100": 8}, gpu_memory=40960, open_to=("y",)),
)
QUEUES: tuple[tuple[Queue, ...], ...] = (
    (),
    (Queue(name="x", guaranteed={"v100": 4}, limit={"v100": 6, "a100": 4}), Queue(name="y", weight=2.0)),
    (Queue(name="x", per_user_limit={"v100": 3}), Queue(name="y", parent="x", per_user_limit={"v100": 2, "a100": 4})),
    (Queue(name="x", per_user_total=5), Queue(name="y", parent="x", limit={"a100": 6}, per_user_total=3)),
)


def one_step(system: FaultyWorld, rng: random.Random, policies: tuple[str, ...] = POLICIES) -> str:
    """Execute one random step; return its name."""
    running, active = sorted(system.truth), system.active()
    if system.away and rng.random() < 0.3:
        system.set_away(False)
    choices: list[tuple[str, float]] = [("time", 3.0), ("submit", 3.0 if len(active) < 12 else 0.2)]
    choices += [("think", 8.0)] if system.thoughts else []
    choices += [("users", 1.5)] if active else []
    if system.away:
        running = []
    else:
        choices += [("op", 8.0)] if system.ops else []
        choices += [("report", 10.0)] if system.reports else []
        choices += [("away", 0.2), ("observe", 0.2)]
    choices += [("finish", 2.0), ("break", 0.4), ("leave", 0.2), ("worker", 0.5)] if running else []
    choices += [("checkpoint", 0.5), ("pause", 1.0)] if running else []
    choices += [
        ("node", 0.4),
        ("devices", 0.8),
        ("cordon", 0.4),
        ("drain", 0.2),
        ("foreign", 0.5),
        ("policy", 0.2),
        ("queues", 0.2),
    ]
    names, weights = zip(*choices, strict=True)
    what = str(rng.choices(names, weights)[0])
    if what == "time":
        system.pass_time(rng.choice([0.0, 1.0, 7.0, 61.0, 400.0]))
    elif what == "submit":
        system.submit(**random_job(rng))
    elif what == "think":
        system.think(rng.randrange(8), fail=rng.random() < 0.05)
    elif what == "op":
        system.carry_out(rng.randrange(8), lose=rng.random() < 0.08, fail=rng.random() < 0.08)
    elif what == "report":
        system.deliver(rng.randrange(8), lose=rng.random() < 0.1, twice=rng.random() < 0.1)
    elif what == "users":
        verb = rng.choice(["cancel", "suspend", "resume", "update"])
        low = rng.randint(1, 3)
        fields = (
            {"min": low, "max": low + rng.randint(0, 4), "priority": rng.randint(-2, 2)} if verb == "update" else {}
        )
        system.users(verb, rng.choice(active), **fields)
    elif what == "finish":
        system.finish(rng.choice(running))
    elif what == "break":
        system.break_job(rng.choice(running))
    elif what == "leave":
        system.leave(rng.choice(running))
    elif what == "worker":
        system.break_worker(rng.choice(running), rng.randrange(8))
    elif what == "node":
        if system.lost_nodes and rng.random() < 0.7:
            system.return_node(rng.choice(sorted(system.lost_nodes)))
        elif system.lost_nodes and rng.random() < 0.7:
            system.remove_node(rng.choice(list(system.nodes)))
        elif len(system.lost_nodes) < 2:
            system.lose_node(rng.choice([name for name in system.nodes if name not in system.lost_nodes]))
    elif what == "devices":
        name = rng.choice([name for name in system.nodes if name not in system.lost_nodes] or list(system.nodes))
        system.change_node(name, rng.randrange(len(system.nodes[name].devices) + 1))
        if rng.random() < 0.5:
            system.return_node(name)  # before pending messages arrive
    elif what == "checkpoint":
        system.save(rng.choice(running))
    elif what == "pause":
        # Mostly short, so that most jobs have cheap resizes.
        system.paused(rng.choice(running), rng.choice([0.01, 0.01, 0.01, 5.0]))
    elif what == "cordon":
        system.cordon(rng.choice(list(system.nodes)), rng.random() < 0.5)
    elif what == "drain":
        system.drain(rng.choice(list(system.nodes)), rng.random() < 0.2)
    elif what == "foreign":
        name = f"f{rng.randrange(4)}"
        if rng.random() < 0.5:
            system.foreign_gone(name)
        else:
            node = rng.choice([None, *system.nodes])
            milli = rng.choice([0, 500, 1000, 2000])
            fields = {"milli": milli, "cpu": rng.choice([0, 2000]), "node_class": rng.choice(["", "x", "z"])}
            system.foreign(name, node=node, serving=rng.random() < 0.5, **fields)
    elif what == "policy":
        system.switch_policy(rng.choice(policies))
    elif what == "queues":
        system.set_queues(rng.choice(QUEUES))
    elif what == "away":
        system.set_away(True)
    else:
        system.observe()
    return what


def random_job(rng: random.Random) -> dict[str, object]:
    """Fields of a random job."""
    low = rng.choice([1, 1, 1, 2, 4])
    step = rng.choice([1, 1, 1, 2])
    fields: dict[str, object] = {
        "min": low,
        "max": low + step * rng.choice([0, 1, 3]),
        "step": step,
        "steps": float(rng.randint(10, 1000)),
        "queue": rng.choice(["default", "x", "y"]),
        "user": rng.choice(["ann", "bob"]),
        "gpu_types": rng.choice([(), (), ("v100",), ("a100", "v100"), ("k80",)]),
        "retries": rng.choice([0, 1, 3]),
        "preemptible": rng.choice([Preemptible.ALWAYS, Preemptible.ALWAYS, Preemptible.AUTO, Preemptible.NEVER]),
        "resizes_in_place": rng.random() < 0.7,
        "workload": rng.choice(["w1", "w2"]),
        "node_class": rng.choice(["", "", "x", "y", "z"]),
    }
    kind = rng.random()
    if kind < 0.1:
        fields |= {"milli": 0, "cpu": 2000, "memory": 1024}
    elif kind < 0.2:
        fields |= {"milli": rng.choice([250, 500, 700]), "gpu_memory": 4096, "cpu": rng.choice([0, 1000])}
    elif kind < 0.3:
        fields |= {"milli": 2000}
    elif kind < 0.4:
        fields |= {"cpu": 3000, "memory": 4096}
    elif kind < 0.5:
        fields |= {"servers": ParameterServers(replicas=rng.choice([1, 2]), cpu=1000, memory=512)}
    if rng.random() < 0.1:
        fields["after"] = (f"j{rng.randint(1, 30)}",)
    if rng.random() < 0.05:
        fields["time_limit_s"] = 500.0
    return fields


def walk(steps: int, seed: int, policies: tuple[str, ...] = POLICIES) -> Counter[str]:
    """A walk with a new world every 300 steps; return counts by step. Raises `InvariantViolated`."""
    counts: Counter[str] = Counter()
    done = 0
    while done < steps:
        rng = random.Random(f"{seed}/{done}")
        guards = rng.choice([{}, {"min_run_s": 60.0, "cooldown_s": 7.0}])
        system = FaultyWorld(policy=rng.choice(policies), nodes=NODES, **guards)
        length = min(300, steps - done)
        for _ in range(length):
            counts[one_step(system, rng, policies)] += 1
        system.settle()
        counts["decisions"] += system.decisions
        counts["ended"] += len(system.ended)
        done += length
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A random walk over the engine.")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.process_time()
    counts = walk(arguments.steps, arguments.seed)
    print(
        f"{arguments.steps} steps, no invariant violated, {time.process_time() - began:.1f} s of CPU: {dict(sorted(counts.items()))}"
    )
