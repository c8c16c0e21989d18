"""A long random walk over the engine: `python -m tests.engine.machine --steps 100000`."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from levada.core.cluster import Node
from levada.core.job import ParameterServers, Preemptible
from levada.core.queue import Queue
from levada.policies import registry
from tests.engine.chaos import Chaos

POLICIES = registry.names()
NODES = (
    Node.of("a", {"v100": 4}, cpu=16000, memory=65536),
    Node.of("b", {"v100": 4}, cpu=16000, memory=65536, labels={"rack": "r1"}),
    Node.of("c", {"v100": 2, "a100": 2}, gpu_memory=16384, labels={"rack": "r1"}),
    Node.of("d", {"a100": 8}, gpu_memory=40960),
)
QUEUES: tuple[tuple[Queue, ...], ...] = (
    (),
    (Queue(name="x", guaranteed={"v100": 4}, limit={"v100": 6, "a100": 4}), Queue(name="y", weight=2.0)),
    (Queue(name="x", per_user_limit={"v100": 3}), Queue(name="y", parent="x", per_user_limit={"v100": 2, "a100": 4})),
    (Queue(name="x", per_user_total=5), Queue(name="y", parent="x", limit={"a100": 6}, per_user_total=3)),
)


def one_step(chaos: Chaos, rng: random.Random, policies: tuple[str, ...] = POLICIES) -> str:
    """Lets one random thing happen; its name."""
    running, active = sorted(chaos.truth), chaos.active()
    choices: list[tuple[str, float]] = [("time", 3.0), ("submit", 3.0 if len(active) < 12 else 0.2)]
    choices += [("think", 8.0)] if chaos.thoughts else []
    choices += [("op", 8.0)] if chaos.ops else []
    choices += [("report", 10.0)] if chaos.reports else []
    choices += [("users", 1.5)] if active else []
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
        ("observe", 0.2),
    ]
    names, weights = zip(*choices, strict=True)
    what = str(rng.choices(names, weights)[0])
    if what == "time":
        chaos.pass_time(rng.choice([0.0, 1.0, 7.0, 61.0, 400.0]))
    elif what == "submit":
        chaos.submit(**random_job(rng))
    elif what == "think":
        chaos.think(rng.randrange(8), fail=rng.random() < 0.05)
    elif what == "op":
        chaos.carry_out(rng.randrange(8), lose=rng.random() < 0.08, fail=rng.random() < 0.08)
    elif what == "report":
        chaos.deliver(rng.randrange(8), lose=rng.random() < 0.1, twice=rng.random() < 0.1)
    elif what == "users":
        verb = rng.choice(["cancel", "suspend", "resume", "update"])
        low = rng.randint(1, 3)
        fields = (
            {"min": low, "max": low + rng.randint(0, 4), "priority": rng.randint(-2, 2)} if verb == "update" else {}
        )
        chaos.users(verb, rng.choice(active), **fields)
    elif what == "finish":
        chaos.finish(rng.choice(running))
    elif what == "break":
        chaos.break_job(rng.choice(running))
    elif what == "leave":
        chaos.leave(rng.choice(running))
    elif what == "worker":
        chaos.break_worker(rng.choice(running), rng.randrange(8))
    elif what == "node":
        if chaos.lost_nodes and rng.random() < 0.7:
            chaos.return_node(rng.choice(sorted(chaos.lost_nodes)))
        elif chaos.lost_nodes and rng.random() < 0.7:
            chaos.remove_node(rng.choice(list(chaos.nodes)))
        elif len(chaos.lost_nodes) < 2:
            chaos.lose_node(rng.choice([name for name in chaos.nodes if name not in chaos.lost_nodes]))
    elif what == "devices":
        name = rng.choice([name for name in chaos.nodes if name not in chaos.lost_nodes] or list(chaos.nodes))
        chaos.change_node(name, rng.randrange(len(chaos.nodes[name].devices) + 1))
        if rng.random() < 0.5:
            chaos.return_node(name)  # before anything on its way has arrived
    elif what == "checkpoint":
        chaos.save(rng.choice(running))
    elif what == "pause":
        # Mostly short, so that most jobs come to be known for resizes that cost nothing.
        chaos.paused(rng.choice(running), rng.choice([0.01, 0.01, 0.01, 5.0]))
    elif what == "cordon":
        chaos.cordon(rng.choice(list(chaos.nodes)), rng.random() < 0.5)
    elif what == "drain":
        chaos.drain(rng.choice(list(chaos.nodes)), rng.random() < 0.2)
    elif what == "foreign":
        name = f"f{rng.randrange(4)}"
        if rng.random() < 0.5:
            chaos.foreign_gone(name)
        else:
            node = rng.choice([None, *chaos.nodes])
            milli = rng.choice([0, 500, 1000, 2000])
            chaos.foreign(name, node=node, milli=milli, cpu=rng.choice([0, 2000]), serving=rng.random() < 0.5)
    elif what == "policy":
        chaos.switch_policy(rng.choice(policies))
    elif what == "queues":
        chaos.set_queues(rng.choice(QUEUES))
    else:
        chaos.observe()
    return what


def random_job(rng: random.Random) -> dict[str, object]:
    """A job of any kind."""
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
    """A walk with fresh worlds every few hundred steps; what happened how often. Raises `Broken` where a rule breaks."""
    counts: Counter[str] = Counter()
    done = 0
    while done < steps:
        rng = random.Random(f"{seed}/{done}")
        guards = rng.choice([{}, {"min_run_s": 60.0, "cooldown_s": 7.0}])
        chaos = Chaos(policy=rng.choice(policies), nodes=NODES, **guards)
        length = min(300, steps - done)
        for _ in range(length):
            counts[one_step(chaos, rng, policies)] += 1
        chaos.settle()
        counts["decisions"] += chaos.decisions
        counts["ended"] += len(chaos.ended)
        done += length
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A random walk over the engine.")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.process_time()
    seen = walk(given.steps, given.seed)
    print(
        f"{given.steps} steps, no rule broken, {time.process_time() - began:.1f} s of CPU: {dict(sorted(seen.items()))}"
    )
