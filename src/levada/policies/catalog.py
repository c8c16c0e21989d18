"""The built-in policies as data: names, aliases, options, needs, sources, classes.

`levada policy ls` and error messages read this list, so it must not import anything expensive. `registry` looks
policies up and creates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Option(NamedTuple):
    """One option of a policy."""

    name: str
    default: float | int | bool | str
    unit: str  #: empty for plain numbers
    meaning: str


class PolicyInfo(NamedTuple):
    """One policy as listed by `levada policy ls`."""

    name: str
    aliases: tuple[str, ...]
    target: str  #: `module:Class`
    summary: str
    needs: tuple[str, ...]  #: fields of a case, or of its jobs, besides id, submitted, min and max
    source: str
    options: tuple[Option, ...] = ()
    #: The policy returns shares of time; `rounds` turns them into sizes.
    shares: bool = False


_VODA = "VodaScheduler 0.2.2"
_TIRESIAS = "Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019"
_DRAGON = "Lin, Yeh, Chou: DRAGON, A Dynamic Scheduling and Scaling Controller, CLOSER 2019"
_GAVEL = "Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020"
_THEMIS = "Mahajan et al., Themis: Fair and Efficient GPU Cluster Scheduling, NSDI 2020, as in Gavel"

_QUEUE_LIMIT = Option("queue_limit", 3600.0, "GPU-seconds", "attained service at which a job leaves the first queue")
_PROMOTE = Option(
    "promote_knob", 8.0, "", "ratio of waiting to running time at which a pending job returns to the first queue"
)
_STARVATION = Option("starvation_s", 30.0, "s", "waiting time after which others shrink for the first pending job")
_IDLE = Option("idle_s", 60.0, "s", "time without a change before running jobs grow")

_SHARES = Option("shares", "leximin", "", "which of many optimal shares: leximin, or interior as published")
_EFFICIENT = Option(
    "shares",
    "efficient",
    "",
    "efficient: the most total speed with at least half of each job's fair rate; leximin; or interior as published",
)
_PLACEMENT = Option("placement", False, "", "use the rate of a spread job for jobs larger than a node")
_ENTITIES = Option("entities", "", "", "groups that share the cluster by weight: name: {weight, policy: fairness|fifo}")
#: Options of every share policy.
_ROUNDS = (
    Option("round_s", 360.0, "s", "duration of a round"),
    Option("mechanism", "default", "", "how shares become sizes: default, or gavel as published"),
    Option("global_queue", False, "", "mechanism gavel: one queue over all types instead of one per type"),
)

#: What the variants of a Gavel family add to its name, class, summary and needs.
_AGNOSTIC, _PERF, _PACKED = "", "_perf", "_packed"
_CLASS_SUFFIX = {_AGNOSTIC: "", _PERF: "Perf", _PACKED: "Packed"}
_VARIANT_SUMMARY = {
    _AGNOSTIC: "; treats all GPU types as equal",
    _PERF: "; uses the speed on each GPU type",
    _PACKED: "; uses the speed on each GPU type, and two jobs may share GPUs",
}


def _voda(
    name: str, target: str, summary: str, needs: tuple[str, ...] = (), *, alias: str, source: str = _VODA,
    options: tuple[Option, ...] = (),
) -> PolicyInfo:  # fmt: skip
    """A policy of VodaScheduler, with Voda's own name as alias."""
    return PolicyInfo(name, (alias,), f"levada.policies.{target}", summary, needs, source, options)


def _gavel(
    name: str,
    target: str,
    summary: str,
    needs: tuple[str, ...] = (),
    options: tuple[Option, ...] = (),
    source: str = _GAVEL,
) -> PolicyInfo:
    """A share policy; the options of rounds follow its own."""
    target = f"levada.policies.gavel.{target}"
    return PolicyInfo(name, (), target, summary, needs, source, (*options, *_ROUNDS), shares=True)


def _family(
    name: str,
    target: str,
    summary: str,
    needs: tuple[str, ...] = (),
    options: Mapping[str, tuple[Option, ...]] = {_AGNOSTIC: (_SHARES,), _PERF: (_SHARES,), _PACKED: (_SHARES,)},
    source: str = _GAVEL,
    *,
    note: str = "",
) -> tuple[PolicyInfo, ...]:
    """A Gavel policy in up to three variants: agnostic, `_perf` and `_packed`.

    Agnostic to GPU types, aware of them, and aware with space sharing. *needs* are those of the agnostic variant;
    *options* lists the variants with their own options.
    """
    return tuple(
        _gavel(
            name + variant,
            target + _CLASS_SUFFIX[variant],
            summary + _VARIANT_SUMMARY[variant] + note,
            _variant_needs(needs, variant),
            (*own, _PLACEMENT) if variant == _PERF else own,
            source,
        )
        for variant, own in options.items()
    )


def _variant_needs(needs: tuple[str, ...], variant: str) -> tuple[str, ...]:
    if variant == _AGNOSTIC:
        return needs
    throughput = needs if "throughput" in needs else ("throughput", *needs)
    return (*throughput, "pairs") if variant == _PACKED else throughput


POLICIES: tuple[PolicyInfo, ...] = (
    _voda(
        "fifo",
        "fifo:Fifo",
        "By priority, then order of submission, each job at its minimum; jobs that do not fit are skipped",
        alias="FIFO",
    ),
    _voda(
        "elastic-fifo",
        "elastic_fifo:ElasticFifo",
        "Like fifo; then spare GPUs go in turns to jobs below their maximum",
        alias="ElasticFIFO",
    ),
    _voda(
        "srjf",
        "srjf:Srjf",
        "Shortest remaining time first, each job at its minimum",
        ("remaining_s",),
        alias="SRJF",
    ),
    _voda(
        "elastic-srjf",
        "elastic_srjf:ElasticSrjf",
        "Like srjf; then spare GPUs go in turns to jobs below their maximum",
        ("remaining_s",),
        alias="ElasticSRJF",
    ),
    _voda(
        "tiresias",
        "tiresias:Tiresias",
        "Least attained service in two queues, each job at its requested size",
        ("desired", "first_started", "priority"),
        alias="Tiresias",
        source=_TIRESIAS,
        options=(_QUEUE_LIMIT, _PROMOTE),
    ),
    _voda(
        "elastic-tiresias",
        "elastic_tiresias:ElasticTiresias",
        "Like tiresias; then shrinks jobs while many wait and grows those that gain most",
        ("desired", "first_started", "priority", "speedup"),
        alias="ElasticTiresias",
        source="Wu et al., Elastic Deep Learning in Multi-Tenant GPU Clusters, TPDS 2021",
        options=(
            _QUEUE_LIMIT,
            _PROMOTE,
            Option("compaction_threshold", 10, "jobs", "with more pending jobs than this, second-queue jobs shrink"),
        ),
    ),
    _voda(
        "ffdl",
        "ffdl:Ffdl",
        "Sizes with the largest sum of speed-ups over the oldest jobs that fit",
        ("speedup",),
        alias="FfDLOptimizer",
        source="Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020",
    ),
    _voda(
        "afs-l",
        "afs_l:AfsL",
        "Each GPU goes to the job where it shortens the average completion time most",
        ("remaining_s", "speedup"),
        alias="AFS-L",
        source="Hwang et al., Elastic Resource Sharing for Distributed Deep Learning, NSDI 2021",
    ),
    PolicyInfo(
        name="dragon",
        aliases=(),
        target="levada.policies.dragon.policy:Dragon",
        summary="Gangs with parameter servers by node; jobs shrink for starving jobs and serving pods, grow when idle",
        needs=("nodes",),
        source=_DRAGON,
        options=(
            _STARVATION,
            _IDLE,
            Option("hold_down_s", 60.0, "s", "time without growth after serving pods come or go"),
            Option("reservation_s", 60.0, "s", "how long room for a serving pod stays reserved"),
            Option(
                "serving_preempt",
                "never",
                "",
                "whole jobs that may stop for serving pods: never, preemptible-only, lowest-priority",
            ),
        ),
    ),
    PolicyInfo(
        name="dragon-compat",
        aliases=(),
        target="levada.policies.dragon.compat:DragonCompat",
        summary="Decisions that the original DRAGON could take, without its crashes",
        needs=("nodes",),
        source=_DRAGON,
        options=(_STARVATION, _IDLE),
    ),
    _gavel("isolated", "isolated:Isolated", "Each job gets 1/n of every GPU type"),
    _gavel("gavel-fifo", "gavel_fifo:GavelFifo", "In order of submission; each job keeps one GPU type"),
    _gavel(
        "gavel-fifo_perf",
        "gavel_fifo:GavelFifoPerf",
        "In order of submission, each job on its fastest type with room",
        ("throughput",),
    ),
    _gavel(
        "gavel-fifo_packed",
        "gavel_fifo:GavelFifoPacked",
        "Like gavel-fifo_perf; then pending jobs join running ones on their GPUs",
        ("throughput", "pairs"),
    ),
    _gavel(
        "allox",
        "allox:Allox",
        "Least average completion time by queue positions on each GPU; jobs of one GPU only",
        ("throughput", "steps_left", "elapsed_s"),
        (Option("alpha", 1.0, "", "fraction of the pending jobs, oldest first, that is considered"),),
        "Le et al., AlloX: Compute Allocation in Hybrid Clusters, EuroSys 2020, as in Gavel",
    ),
    _gavel(
        "gandiva",
        "gandiva:Gandiva",
        "Equal shares; on overload, random pairs of jobs share GPUs while that pays",
        ("throughput", "pairs"),
        source="Xiao et al., Gandiva: Introspective Cluster Scheduling for Deep Learning, OSDI 2018, as in Gavel",
    ),
    *_family(
        "max_min_fairness",
        "max_min:MaxMinFairness",
        "Maximises the throughput of the worst-off job",
        options={_AGNOSTIC: (_SHARES,), _PERF: (_EFFICIENT,), _PACKED: (_EFFICIENT,)},
    ),
    *_family(
        "max_min_fairness_water_filling",
        "water_filling:WaterFilling",
        "Maximises the lowest throughput, then the second lowest, and so on",
        options=dict.fromkeys((_AGNOSTIC, _PERF, _PACKED), (_SHARES, _ENTITIES)),
    ),
    *_family(
        "max_min_fairness_strategy_proof",
        "strategy_proof:StrategyProof",
        "Maximises the geometric mean, discounted so that no job gains by misreporting",
        options={_AGNOSTIC: (), _PERF: ()},
        note="; for few jobs",
    ),
    *_family(
        "finish_time_fairness",
        "finish_time_fairness:FinishTimeFairness",
        "Minimises the largest slowdown against 1/n of the cluster",
        ("throughput", "steps_left", "elapsed_s"),
        source=_THEMIS,
    ),
    *_family(
        "min_total_duration",
        "total_duration:MinTotalDuration",
        "Finishes all jobs as early as possible",
        ("throughput", "steps_left"),
    ),
    _gavel(
        "shortest_job_first",
        "shortest_job_first:ShortestJobFirst",
        "Shortest jobs first, each on the type with the largest free fraction; treats all GPU types as equal",
        ("throughput", "steps_left"),
    ),
    _gavel(
        "shortest_job_first_perf",
        "shortest_job_first:ShortestJobFirstPerf",
        "Shortest jobs first, each on its fastest type with room",
        ("throughput", "steps_left"),
        (_PLACEMENT,),
    ),
    _gavel(
        "max_sum_throughput_perf",
        "total_throughput:MaxSumThroughputPerf",
        "Maximises the total steps per second",
        ("throughput",),
        (_SHARES, _PLACEMENT),
    ),
    _gavel(
        "max_sum_throughput_normalized_by_cost_perf",
        "total_throughput:MaxSumThroughputByCostPerf",
        "Maximises the total steps per dollar",
        ("throughput", "prices"),
        (_SHARES, _PLACEMENT),
    ),
    _gavel(
        "max_sum_throughput_normalized_by_cost_perf_SLOs",
        "total_throughput:MaxSumThroughputByCostPerfSlos",
        "Maximises the total steps per dollar and meets all deadlines",
        ("throughput", "prices", "steps_left", "deadline_s"),
        (_SHARES, _PLACEMENT),
    ),
    _gavel(
        "max_sum_throughput_normalized_by_cost_packed_SLOs",
        "total_throughput:MaxSumThroughputByCostPackedSlos",
        "Maximises the total steps per dollar and meets all deadlines; two jobs may share GPUs",
        ("throughput", "prices", "steps_left", "deadline_s", "pairs"),
        (_SHARES,),
    ),
)

#: The policy of a new server: it needs no information about jobs.
RECOMMENDED = "elastic-fifo"
