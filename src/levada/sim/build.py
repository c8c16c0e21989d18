"""From settings to a world: cluster, policy, what is true and what is believed, prices, failures."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from levada.core.cluster import Cluster, Node
from levada.core.events import PricesChanged
from levada.core.types import Ints
from levada.engine import Engine, Options
from levada.errors import BadInput
from levada.perf import Completed, ProfileModel, measured
from levada.plugins import find_policy
from levada.policies.gavel.published import Published
from levada.policies.protocol import AnyPolicy
from levada.policies.rounds import Rounds
from levada.policies.table import lookup
from levada.sim.arrivals import Arrivals
from levada.sim.failures import Breakdowns, Failures
from levada.sim.ideal import IdealWorld
from levada.sim.prices import read_prices
from levada.sim.protocol import SimulatedCluster
from levada.sim.published_world import PublishedWorld
from levada.sim.settings import GPUS_PER_NODE, Settings
from levada.sim.simulation import Simulation
from levada.sim.source import Source

#: The whole state is checked after so many answers of the engine, and at the end.
CHECK_EVERY = 256
#: Nothing is late in a simulation: an operation may take as long as it likes.
_PATIENT = Options(op_timeout_s=math.inf)
_PUBLISHED = msgspec.structs.replace(_PATIENT, rate_limit_s=0.0)


def cluster_of(settings: Settings) -> Cluster:
    """Nodes of one type each, types in the order in which they were given; the last one of a type has what is left.

    In Gavel's world types stand by name: its rounds tell of GPUs by their numbers.
    """
    nodes = []
    for name in sorted(settings.cluster) if settings.mechanism == "gavel" else settings.cluster:
        size = settings.gpus_per_node.get(name, settings.gpus_per_node.get("", GPUS_PER_NODE))
        whole, rest = divmod(settings.cluster[name], size)
        nodes += [Node.of(f"{name}-{place}", {name: size}) for place in range(whole)]
        if rest:
            nodes.append(Node.of(f"{name}-{whole}", {name: rest}))
    return Cluster(nodes=tuple(nodes))


def policy_of(settings: Settings) -> tuple[AnyPolicy, dict[str, Any]]:
    """The policy, and the options it was made with; raises BadInput."""
    record = lookup(settings.policy)
    options = dict(settings.policy_options)
    with_shares = record is not None and record.shares
    asked = {
        "--mechanism gavel": settings.mechanism == "gavel",
        "--ideal": settings.ideal,
        "--round": settings.round_s is not None,
    }
    for flag, there in asked.items():
        if there and not with_shares:
            near = f"gavel-{settings.policy}"
            hint = f"; did you mean {near}?" if lookup(near) is not None else ""
            raise BadInput.one(f"{flag} is for policies that give shares of time, not for {settings.policy}{hint}")
    if options.get("mechanism") == "gavel" and settings.mechanism != "gavel":
        raise BadInput.one("--policy-option mechanism=gavel: use --mechanism gavel, which simulates its rounds, too")
    if settings.round_s is not None:
        options["round_s"] = settings.round_s
    if settings.mechanism == "gavel":
        options["mechanism"] = "gavel"
        if settings.global_queue:
            options["global_queue"] = True
        if record is not None and any(option.name == "shares" for option in record.options):
            options.setdefault("shares", "interior")
    return find_policy(settings.policy, options), options


def world_of(
    settings: Settings, source: Source, arrivals: Arrivals, policy: AnyPolicy, options: dict[str, Any]
) -> SimulatedCluster:
    cluster = cluster_of(settings)
    truth = ProfileModel(source.profiles)
    belief = belief_of(settings, truth)
    prices = prices_of(settings)
    if settings.ideal:
        assert isinstance(policy, Rounds)  # `policy_of` refuses others
        return IdealWorld(cluster, policy.policy, truth, arrivals, belief=belief, seed=settings.seed, prices=prices)
    published = settings.mechanism == "gavel"
    engine = Engine(
        cluster=cluster,
        policy=settings.policy,
        policy_options=options,
        options=_PUBLISHED if published else _PATIENT,
        perf=belief,
        seed=settings.seed,
        make_policy=find_policy,
    )
    for model in (truth, belief):
        engine.attach(model)
    if published:
        assert isinstance(policy, Published)
        return PublishedWorld(engine, truth, arrivals, round_s=policy.round_s, prices=prices, check_every=CHECK_EVERY)
    broken = None
    if settings.failures_every_s is not None:
        failures = Failures(every_s=settings.failures_every_s, repair_s=settings.repair_s, seed=settings.seed)
        broken = Breakdowns(cluster, failures)
    simulation = Simulation(
        engine,
        truth,
        settings.restart_cost,
        arrivals=arrivals,
        breakdowns=broken,
        segments=False,
        check_every=CHECK_EVERY,
    )
    for change in prices:
        simulation.add(change)
    return simulation


def belief_of(settings: Settings, truth: ProfileModel) -> ProfileModel:
    """What the policy knows: the truth, or what a profiler saw of it, completed."""
    profiles = truth.profiles
    count = len(profiles.workloads)
    asked = count if settings.reference_models is None else settings.reference_models
    if not 1 <= asked <= count:
        raise BadInput.one(f"--reference-models must be from 1 to {count}, the workloads of the throughput table")
    if settings.profiling == 1 and asked == count:
        return truth
    if profiles.together is None:
        raise BadInput.one("--profiling and --reference-models are about pairs, and the throughput table has none")
    rng = np.random.default_rng([settings.seed, 4])
    references: Ints = np.sort(rng.choice(count, asked, replace=False))
    return Completed(measured(profiles, references, settings.profiling, rng), rng, references=references)


def prices_of(settings: Settings) -> list[PricesChanged]:
    strange = [name for name in settings.prices if name not in settings.cluster]
    if strange:
        raise BadInput.one(f"--prices: the cluster has no {', '.join(strange)}; it has {', '.join(settings.cluster)}")
    if settings.prices_dir is not None:
        return read_prices(settings.prices_dir, sorted(settings.cluster))
    return [PricesChanged(at=0.0, prices=settings.prices)] if settings.prices else []
