"""Build a simulated cluster from settings.

Parts: nodes, policy, true and believed speeds, prices, failures.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from levada.compat.gavel.published_rounds import Published
from levada.compat.gavel.simulator import GavelSimulator
from levada.core.cluster import Cluster, Node
from levada.core.events import PricesChanged
from levada.core.types import Ints
from levada.engine import Engine, Options
from levada.errors import BadInput
from levada.perf import Completed, ProfileModel, measured
from levada.plugins import find_policy
from levada.policies.protocol import AnyPolicy
from levada.policies.registry import lookup
from levada.policies.rounds import Rounds
from levada.sim.arrivals import Arrivals
from levada.sim.failures import FailureRates, NodeFailures
from levada.sim.ideal import IdealWorld
from levada.sim.prices import read_prices
from levada.sim.protocol import SimulatedCluster
from levada.sim.settings import GPUS_PER_NODE, Settings
from levada.sim.simulation import Simulation
from levada.sim.source import Source

#: The whole state is checked after this many calls of the engine, and at the end.
CHECK_EVERY = 256
#: Simulated operations never time out.
_NO_TIMEOUT = Options(op_timeout_s=math.inf)
_PUBLISHED = msgspec.structs.replace(_NO_TIMEOUT, rate_limit_s=0.0)


def cluster_of(settings: Settings) -> Cluster:
    """Return nodes of one GPU type each, types in the order of the settings; the last node of a type has the rest.

    For Gavel's mechanism types are sorted by name, because its round logs identify GPUs by number.
    """
    nodes = []
    for name in sorted(settings.cluster) if settings.mechanism == "gavel" else settings.cluster:
        size = settings.gpus_per_node.get(name, settings.gpus_per_node.get("", GPUS_PER_NODE))
        full, rest = divmod(settings.cluster[name], size)
        nodes += [Node.of(f"{name}-{index}", {name: size}) for index in range(full)]
        if rest:
            nodes.append(Node.of(f"{name}-{full}", {name: rest}))
    return Cluster(nodes=tuple(nodes))


def policy_of(settings: Settings) -> tuple[AnyPolicy, dict[str, Any]]:
    """Return the policy and its options; raises BadInput."""
    record = lookup(settings.policy)
    options = dict(settings.policy_options)
    is_share_policy = record is not None and record.shares
    flags = {
        "--mechanism gavel": settings.mechanism == "gavel",
        "--ideal": settings.ideal,
        "--round": settings.round_s is not None,
    }
    for flag, is_set in flags.items():
        if is_set and not is_share_policy:
            near = f"gavel-{settings.policy}"
            hint = f"; did you mean {near}?" if lookup(near) is not None else ""
            raise BadInput.one(f"{flag} needs a policy that computes shares of time, not {settings.policy}{hint}")
    if options.get("mechanism") == "gavel" and settings.mechanism != "gavel":
        raise BadInput.one("--policy-option mechanism=gavel: use --mechanism gavel, which also simulates its rounds")
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
    """Return the simulated cluster that these settings ask for; raises BadInput."""
    cluster = cluster_of(settings)
    truth = ProfileModel(source.profiles)
    belief = belief_of(settings, truth)
    prices = prices_of(settings)
    if settings.ideal:
        assert isinstance(policy, Rounds)  # `policy_of` rejects others
        return IdealWorld(cluster, policy.policy, truth, arrivals, belief=belief, seed=settings.seed, prices=prices)
    published = settings.mechanism == "gavel"
    engine = Engine(
        cluster=cluster,
        policy=settings.policy,
        policy_options=options,
        options=_PUBLISHED if published else _NO_TIMEOUT,
        perf=belief,
        seed=settings.seed,
        make_policy=find_policy,
    )
    for model in (truth, belief):
        engine.attach(model)
    if published:
        assert isinstance(policy, Published)
        return GavelSimulator(engine, truth, arrivals, round_s=policy.round_s, prices=prices, check_every=CHECK_EVERY)
    node_failures = None
    if settings.failures_every_s is not None:
        rates = FailureRates(every_s=settings.failures_every_s, repair_s=settings.repair_s, seed=settings.seed)
        node_failures = NodeFailures(cluster, rates)
    simulation = Simulation(
        engine,
        truth,
        settings.restart_cost,
        arrivals=arrivals,
        node_failures=node_failures,
        segments=False,
        check_every=CHECK_EVERY,
    )
    for change in prices:
        simulation.add(change)
    return simulation


def belief_of(settings: Settings, truth: ProfileModel) -> ProfileModel:
    """Return the speeds that the policy knows: the truth, or measurements of a part of it, completed."""
    profiles = truth.profiles
    count = len(profiles.workloads)
    reference_count = count if settings.reference_models is None else settings.reference_models
    if not 1 <= reference_count <= count:
        raise BadInput.one(f"--reference-models must be from 1 to {count}, the workloads of the throughput table")
    if settings.profiling == 1 and reference_count == count:
        return truth
    if profiles.together is None:
        raise BadInput.one("--profiling and --reference-models need pair rates, which the throughput table lacks")
    rng = np.random.default_rng([settings.seed, 4])
    references: Ints = np.sort(rng.choice(count, reference_count, replace=False))
    return Completed(measured(profiles, references, settings.profiling, rng), rng, references=references)


def prices_of(settings: Settings) -> list[PricesChanged]:
    """Return the price changes by time; raises BadInput."""
    unknown = [name for name in settings.prices if name not in settings.cluster]
    if unknown:
        raise BadInput.one(f"--prices: the cluster has no {', '.join(unknown)}; it has {', '.join(settings.cluster)}")
    if settings.prices_dir is not None:
        return read_prices(settings.prices_dir, sorted(settings.cluster))
    return [PricesChanged(at=0.0, prices=settings.prices)] if settings.prices else []
