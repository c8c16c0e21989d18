"""What there is to know about every policy of Levada without importing any: names, needs, options, sources.

`levada policy ls` and error messages read this table, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Iterable

from levada import errors
from levada.policies.gavel.table import GAVEL_POLICIES
from levada.policies.record import Option, Record

_QUEUE_LIMIT = Option("queue_limit", 3600.0, "GPU-seconds", "attained service at which a job leaves the first queue")
_PROMOTE = Option(
    "promote_knob", 8.0, "", "a waiting job returns to the first queue after waiting this many times what it has run"
)
_STARVATION = Option("starvation_s", 30.0, "s", "how long the first waiting job waits before others shrink for it")
_IDLE = Option("idle_s", 60.0, "s", "how long nothing must have happened before running jobs grow")

_VODA = "VodaScheduler 0.2.2"
_TIRESIAS = "Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019"
_DRAGON = "Lin, Yeh, Chou: DRAGON, A Dynamic Scheduling and Scaling Controller, CLOSER 2019"

POLICIES: tuple[Record, ...] = (
    Record(
        name="fifo",
        aliases=("FIFO",),
        target="levada.policies.fifo:Fifo",
        summary="By priority and in order of submission, each at its minimum; a job that does not fit is skipped",
        needs=(),
        source=_VODA,
    ),
    Record(
        name="elastic-fifo",
        aliases=("ElasticFIFO",),
        target="levada.policies.elastic_fifo:ElasticFifo",
        summary="As fifo, then spare GPUs go round one by one to jobs below their maximum",
        needs=(),
        source=_VODA,
    ),
    Record(
        name="srjf",
        aliases=("SRJF",),
        target="levada.policies.srjf:Srjf",
        summary="Shortest remaining time first, each at its minimum",
        needs=("remaining_s",),
        source=_VODA,
    ),
    Record(
        name="elastic-srjf",
        aliases=("ElasticSRJF",),
        target="levada.policies.elastic_srjf:ElasticSrjf",
        summary="As srjf, then spare GPUs go round one by one to jobs below their maximum",
        needs=("remaining_s",),
        source=_VODA,
    ),
    Record(
        name="tiresias",
        aliases=("Tiresias",),
        target="levada.policies.tiresias:Tiresias",
        summary="Least attained service in two queues, each job at the size it asked for",
        needs=("desired", "first_started", "priority"),
        source=_TIRESIAS,
        options=(_QUEUE_LIMIT, _PROMOTE),
    ),
    Record(
        name="elastic-tiresias",
        aliases=("ElasticTiresias",),
        target="levada.policies.elastic_tiresias:ElasticTiresias",
        summary="As tiresias, then shrinks jobs when many wait and grows those that gain most",
        needs=("desired", "first_started", "priority", "speedup"),
        source="Wu et al., Elastic Deep Learning in Multi-Tenant GPU Clusters, TPDS 2021",
        options=(
            _QUEUE_LIMIT,
            _PROMOTE,
            Option("compaction_threshold", 10, "jobs", "when more than this many wait, second-queue jobs shrink"),
        ),
    ),
    Record(
        name="ffdl",
        aliases=("FfDLOptimizer",),
        target="levada.policies.ffdl:Ffdl",
        summary="The sizes with the largest sum of speed-ups over the oldest jobs that fit",
        needs=("speedup",),
        source="Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020",
    ),
    Record(
        name="afs-l",
        aliases=("AFS-L",),
        target="levada.policies.afs_l:AfsL",
        summary="GPU by GPU to the job where it shortens the average completion time most",
        needs=("remaining_s", "speedup"),
        source="Hwang et al., Elastic Resource Sharing for Distributed Deep Learning, NSDI 2021",
    ),
    Record(
        name="dragon",
        aliases=(),
        target="levada.policies.dragon:Dragon",
        summary="Gangs with parameter servers by node; shrinks for starving jobs and serving pods, grows when idle",
        needs=("nodes",),
        source=_DRAGON,
        options=(
            _STARVATION,
            _IDLE,
            Option("hold_down_s", 60.0, "s", "how long after serving has left before training grows back"),
            Option("reservation_s", 60.0, "s", "how long room made for a serving pod is kept"),
            Option(
                "serving_preempt",
                "never",
                "",
                "who is stopped for serving: never, preemptible-only, lowest-priority",
            ),
        ),
    ),
    Record(
        name="dragon-compat",
        aliases=(),
        target="levada.policies.dragon_compat:DragonCompat",
        summary="Decides as the original DRAGON could have, without its crashes",
        needs=("nodes",),
        source=_DRAGON,
        options=(_STARVATION, _IDLE),
    ),
    *GAVEL_POLICIES,
)

_BY_NAME = {name: record for record in POLICIES for name in (record.name, *record.aliases)}


def lookup(name: str) -> Record | None:
    """The policy of this exact name or alias, if there is one. `allox_alpha=0.5` is `allox` with that option."""
    return _BY_NAME.get("allox" if alpha_of(name) is not None else name)


def alpha_of(name: str) -> float | None:
    """The option that stands in the name `allox_alpha=0.5`, as Gavel spells it; None in any other name."""
    before, equals, value = name.partition("=")
    if not equals or before != "allox_alpha":
        return None
    try:
        return float(value)
    except ValueError:
        return None


def nearest(name: str) -> list[str]:
    """The policy names that *name* may have been meant for, best first; a clear winner comes alone."""
    return list(dict.fromkeys(_BY_NAME[close].name for close in errors.nearest(name, _BY_NAME)))


def unknown(name: str, others: Iterable[str] = ()) -> str:
    """The sentence for a name that is no policy, with the names close to it, of the table or of *others*."""
    names = {**_BY_NAME, **{other: None for other in others if other not in _BY_NAME}}
    close = list(dict.fromkeys(known.name if (known := names[each]) else each for each in errors.nearest(name, names)))
    return f"unknown policy {name!r}; " + (f"did you mean {' or '.join(close)}?" if close else "see levada policy ls")
