"""The flags of a simulation, which `sim run` and `bench sim` have in common, and what they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from levada.sim.settings import Settings


class Output(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


class Mechanism(StrEnum):
    """How shares of time become places."""

    DEFAULT = "default"
    GAVEL = "gavel"


_OUTPUT = Annotated[Output, typer.Option("--output", "-o", help="How to print it.")]


def command(verb: Callable[[Settings, Output], None]) -> Callable[..., None]:
    """*verb* with all flags of a simulation and `-o`."""

    def run(output: Output = Output.TABLE, **flags: Any) -> None:
        verb(settings_of(**flags), output)

    printed = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=Output.TABLE, annotation=_OUTPUT)
    own = inspect.signature(settings_of, eval_str=True)
    run.__doc__ = verb.__doc__
    # The command line is read off the signature; mypy does not know that functions may have one.
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), printed], return_annotation=None
    )
    run.__annotations__ = {name: each.annotation for name, each in own.parameters.items()} | {"output": _OUTPUT}
    return run


def settings_of(
    *,
    policy: Annotated[str, typer.Option("--policy", help="A name, or path/to/file.py:Class.")],
    cluster: Annotated[str, typer.Option("--cluster", help="GPUs by type: v100=36,p100=36,k80=36.")],
    gpus_per_node: Annotated[
        str, typer.Option("--gpus-per-node", help="For all types, or by type: v100=8,k80=4.")
    ] = "4",
    trace: Annotated[str | None, typer.Option("--trace", help="Jobs from a file.")] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="Drawn jobs: gavel, gavel-trace, philly, or FILE.yaml.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="How many jobs; of a trace, the first so many.")] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Jobs per hour of a workload; 0 or not given: all at time 0."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of jobs, mechanism and policy.")] = 0,
    multi_gpu: Annotated[bool, typer.Option("--multi-gpu", help="Draw jobs of several GPUs, too.")] = False,
    priorities: Annotated[bool, typer.Option("--priorities", help="One job in five has weight 5.")] = False,
    slos: Annotated[bool, typer.Option("--slos", help="Draw deadlines.")] = False,
    fixed_duration: Annotated[
        float | None, typer.Option("--fixed-duration", help="Seconds that every drawn job takes on a v100.")
    ] = None,
    steady_state: Annotated[
        bool, typer.Option("--steady-state", help="Begin with enough jobs to fill the cluster.")
    ] = False,
    throughputs: Annotated[
        str | None, typer.Option("--throughputs", help="A table of speeds; the catalogue unless given.")
    ] = None,
    profiling: Annotated[
        float, typer.Option("--profiling", help="Part of the pairs that are measured; others are estimated.")
    ] = 1.0,
    reference_models: Annotated[
        int | None, typer.Option("--reference-models", help="Workloads that all others are measured beside.")
    ] = None,
    round_s: Annotated[float | None, typer.Option("--round", help="Seconds of a round, 360 unless given.")] = None,
    mechanism: Annotated[
        Mechanism, typer.Option("--mechanism", help="gavel: as published, for comparison.")
    ] = Mechanism.DEFAULT,
    global_queue: Annotated[
        bool, typer.Option("--global-queue", help="Mechanism gavel: one queue over all types.")
    ] = False,
    window: Annotated[
        str | None,
        typer.Option("--window", help="Measure jobs A to B-1 (A:B) and end when they are done; else all."),
    ] = None,
    ideal: Annotated[bool, typer.Option("--ideal", help="Follow shares exactly, without rounds.")] = False,
    policy_option: Annotated[
        list[str] | None, typer.Option("--policy-option", help="NAME=VALUE; may be given several times.")
    ] = None,
    prices: Annotated[str | None, typer.Option("--prices", help="$ per GPU and hour: v100=0.74,k80=0.135.")] = None,
    prices_dir: Annotated[
        str | None, typer.Option("--prices-dir", help="Prices over time, in a folder as Gavel has it.")
    ] = None,
    restart_cost: Annotated[
        str | None,
        typer.Option("--restart-cost", help="Seconds, or START:RESIZE:STOP; else as the table says."),
    ] = None,
    failures: Annotated[
        float | None, typer.Option("--failures", help="Mean hours between two failures of a node.")
    ] = None,
    repair: Annotated[float, typer.Option("--repair", help="Hours that a failure lasts.")] = 1.0,
    rounds: Annotated[str | None, typer.Option("--rounds", help="Write one line of JSON per round to a file.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Keep the state there; an interrupted run goes on with it.")
    ] = None,
) -> Any:
    """The `Settings` that these flags ask for; raises BadInput with all faults."""
    from levada.errors import BadInput, Fault
    from levada.sim import settings as sim
    from levada.sim.metrics import Window

    faults: list[Fault] = []

    def read(parse: Callable[[str], Any], text: str | None, otherwise: Any) -> Any:
        try:
            return otherwise if text is None else parse(text)
        except BadInput as error:
            faults.extend(error.faults)
            return otherwise

    made = sim.Settings(
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
    if faults:
        raise BadInput(faults)
    return made
