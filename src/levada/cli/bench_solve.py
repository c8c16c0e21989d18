"""`levada bench solve`: what it costs a policy to share out the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from levada.cli.output import columns, data, data_json
from levada.cli.sim_flags import Output


def add(group: typer.Typer) -> None:
    """Adds `solve` to the group `bench`."""
    group.command("solve")(solve)


def solve(
    policy: Annotated[str, typer.Option("--policy", help="A policy that gives shares of time.")],
    jobs: Annotated[str, typer.Option("--jobs", help="One instance for each number of jobs: 1024,4096.")],
    types: Annotated[int, typer.Option("--types", help="GPU types.")] = 3,
    load: Annotated[
        float | None, typer.Option("--load", help="GPUs asked for over GPUs there, 2 unless given.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs in all, instead of --load.")] = None,
    throughputs: Annotated[
        str | None, typer.Option("--throughputs", help="A table of speeds; the catalogue unless given.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Another seed, other jobs.")] = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Time a policy's solver: CPU seconds to build its model, of the first solve, and of those after small changes."""
    import msgspec

    from levada.cli.sim_sweep import parse_wholes
    from levada.errors import BadInput
    from levada.sim.catalogue import catalogue
    from levada.sim.solving import Asked, measure
    from levada.sim.throughputs import read_throughputs
    from levada.sim.traces import find

    if load is not None and gpus is not None:
        raise BadInput.one("--load and --gpus exclude each other")
    sizes = parse_wholes("--jobs", jobs)
    profiles = catalogue() if throughputs is None else read_throughputs(find(throughputs))
    asked = Asked(policy=policy, types=types, load=2.0 if load is None else load, gpus=gpus, seed=seed)
    figures = measure(asked, profiles, sizes)
    if output is Output.JSON:
        data_json(msgspec.to_builtins(figures))
        return
    rows = [
        (
            each.policy,
            f"{each.jobs:,}",
            f"{each.classes:,}",
            *(f"{1e3 * value:,.3f}" for value in (each.build_s, each.cold_s, each.solve_s)),
            "-" if each.objective is None else f"{each.objective:.9g}",
        )
        for each in figures
    ]
    data(columns(("POLICY", "JOBS", "CLASSES", "BUILD ms", "FIRST ms", "LATER ms", "OBJECTIVE"), rows))
