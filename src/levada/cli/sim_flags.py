"""Flags of a simulation, shared by `sim run`, `sim sweep` and `bench sim`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from levada.errors import Fault
    from levada.sim.settings import Settings


class SimFormat(StrEnum):
    """Output formats of a simulation."""

    TABLE = "table"
    JSON = "json"


class Mechanism(StrEnum):
    """How shares of time become placements."""

    DEFAULT = "default"
    GAVEL = "gavel"


_OUTPUT = Annotated[SimFormat, typer.Option("--output", "-o", help="Output format.")]


def command(verb: Callable[[Settings, SimFormat], None]) -> Callable[..., None]:
    """Return *verb* as a command with all flags of a simulation and `-o`."""

    def run(output: SimFormat = SimFormat.TABLE, **flags: Any) -> None:
        verb(settings_of(**flags), output)

    printed = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=SimFormat.TABLE, annotation=_OUTPUT)
    own = inspect.signature(settings_of, eval_str=True)
    run.__doc__ = verb.__doc__
    # Typer reads the flags from the signature; mypy does not know `__signature__`.
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), printed], return_annotation=None
    )
    run.__annotations__ = {name: parameter.annotation for name, parameter in own.parameters.items()} | {
        "output": _OUTPUT
    }
    return run


_Policy = Annotated[str, typer.Option("--policy", help="Policy: name or path/to/file.py:Class.")]
_Cluster = Annotated[str, typer.Option("--cluster", help="GPUs by type, e.g. v100=36,p100=36,k80=36.")]
_GpusPerNode = Annotated[
    str, typer.Option("--gpus-per-node", help="GPUs per node, for all types or by type (v100=8,k80=4).")
]
_Trace = Annotated[str | None, typer.Option("--trace", help="Trace file with the jobs.")]
_Workload = Annotated[
    str | None, typer.Option("--workload", help="Generate jobs: gavel, gavel-trace, philly or FILE.yaml.")
]
_Jobs = Annotated[
    int | None, typer.Option("--jobs", help="Number of jobs; with --trace, only the first N.", metavar="N")
]
_Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Arrivals per hour of generated jobs; 0 (default): all at time 0."),
]
_Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of jobs, mechanism and policy.")]
_MultiGpu = Annotated[bool, typer.Option("--multi-gpu", help="Also generate jobs with several GPUs.")]
_Priorities = Annotated[bool, typer.Option("--priorities", help="Give 20 % of the generated jobs weight 5.")]
_Slos = Annotated[bool, typer.Option("--slos", help="Generate deadlines.")]
_FixedDuration = Annotated[
    float | None, typer.Option("--fixed-duration", help="Duration of each generated job on a v100, in seconds.")
]
_SteadyState = Annotated[bool, typer.Option("--steady-state", help="Start with enough jobs to fill the cluster.")]
_Throughputs = Annotated[
    str | None, typer.Option("--throughputs", help="Throughput table.", show_default="built-in catalogue")
]
_Profiling = Annotated[
    float, typer.Option("--profiling", help="Fraction of job pairs that is measured; the rest is estimated.")
]
_ReferenceModels = Annotated[
    int | None,
    typer.Option("--reference-models", help="Number of reference workloads that others are measured with."),
]
_RoundS = Annotated[float | None, typer.Option("--round", help="Length of a round in seconds.", show_default="360")]
_Mechanism = Annotated[
    Mechanism,
    typer.Option("--mechanism", help="How shares become placements; gavel: as published, for comparison."),
]
_GlobalQueue = Annotated[
    bool, typer.Option("--global-queue", help="With --mechanism gavel: one queue for all GPU types.")
]
_Window = Annotated[
    str | None,
    typer.Option("--window", metavar="A:B", help="Measure jobs A to B-1; end when they finish. Default: all jobs."),
]
_Ideal = Annotated[bool, typer.Option("--ideal", help="Follow the shares exactly, without rounds.")]
_PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--policy-option", metavar="NAME=VALUE", help="Option of the policy; repeatable."),
]
_Prices = Annotated[str | None, typer.Option("--prices", help="USD per GPU-hour by type, e.g. v100=0.74,k80=0.135.")]
_PricesDir = Annotated[
    str | None, typer.Option("--prices-dir", help="Folder with prices over time, in Gavel's format.")
]
_RestartCost = Annotated[
    str | None,
    typer.Option("--restart-cost", help="Seconds, or START:RESIZE:STOP. Default: from the throughput table."),
]
_Failures = Annotated[
    float | None, typer.Option("--failures", help="Mean time between failures of a node, in hours. Default: none.")
]
_Repair = Annotated[float, typer.Option("--repair", help="Duration of a failure in hours.")]
_Rounds = Annotated[str | None, typer.Option("--rounds", help="Write one JSON line per round to this file.")]
_Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Checkpoint file; the same command resumes an interrupted run.")
]


def settings_of(
    *,
    policy: _Policy,
    cluster: _Cluster,
    gpus_per_node: _GpusPerNode = "4",
    trace: _Trace = None,
    workload: _Workload = None,
    jobs: _Jobs = None,
    rate: _Rate = None,
    seed: _Seed = 0,
    multi_gpu: _MultiGpu = False,
    priorities: _Priorities = False,
    slos: _Slos = False,
    fixed_duration: _FixedDuration = None,
    steady_state: _SteadyState = False,
    throughputs: _Throughputs = None,
    profiling: _Profiling = 1.0,
    reference_models: _ReferenceModels = None,
    round_s: _RoundS = None,
    mechanism: _Mechanism = Mechanism.DEFAULT,
    global_queue: _GlobalQueue = False,
    window: _Window = None,
    ideal: _Ideal = False,
    policy_option: _PolicyOption = None,
    prices: _Prices = None,
    prices_dir: _PricesDir = None,
    restart_cost: _RestartCost = None,
    failures: _Failures = None,
    repair: _Repair = 1.0,
    rounds: _Rounds = None,
    checkpoint: _Checkpoint = None,
) -> Any:
    """Return the `Settings` for these flags; raises BadInput with all errors."""
    from levada.errors import BadInput
    from levada.sim import settings as sim
    from levada.sim.metrics import Window

    read = _FlagReader()
    settings = sim.Settings(
        policy=policy,
        cluster=read(sim.parse_cluster, cluster, {}),
        gpus_per_node=read(sim.parse_gpus_per_node, gpus_per_node, {}),
        trace=trace,
        workload=workload,
        jobs=jobs,
        rate=rate,
        seed=seed,
        multi_gpu=multi_gpu,
        priorities=priorities,
        slos=slos,
        fixed_duration_s=fixed_duration,
        steady_state=steady_state,
        throughputs=throughputs,
        profiling=profiling,
        reference_models=reference_models,
        round_s=round_s,
        mechanism=mechanism.value,
        global_queue=global_queue,
        window=read(Window.parse, window, Window()),
        ideal=ideal,
        policy_options=dict(read(sim.parse_option, text, ("", None)) for text in policy_option or ()),
        prices=read(sim.parse_prices, prices, {}),
        prices_dir=prices_dir,
        restart_cost=read(sim.parse_restart_cost, restart_cost, sim.BY_TABLE),
        failures_every_s=None if failures is None else failures * 3600.0,
        repair_s=repair * 3600.0,
        rounds=rounds,
        checkpoint=checkpoint,
    )
    if read.faults:
        raise BadInput(read.faults)
    return settings


class _FlagReader:
    """Parse flags and collect the errors of all of them."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def __call__(self, parse: Callable[[str], Any], text: str | None, default: Any) -> Any:
        """Return *default* if the flag is not given or invalid."""
        from levada.errors import BadInput

        try:
            return default if text is None else parse(text)
        except BadInput as error:
            self.faults.extend(error.faults)
            return default
