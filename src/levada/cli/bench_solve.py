"""`levada bench solve`: CPU time of the solver of a policy."""

from __future__ import annotations

from typing import Annotated

import typer

from levada.cli.output import columns, data, data_json
from levada.cli.sim_flags import SimFormat


def add(group: typer.Typer) -> None:
    """Add `solve` to the group `bench`."""
    group.command("solve")(solve)


def solve(
    policy: Annotated[str, typer.Option("--policy", help="Policy that computes shares of time.")],
    jobs: Annotated[str, typer.Option("--jobs", help="Instance sizes in jobs, e.g. 1024,4096.")],
    types: Annotated[int, typer.Option("--types", help="Number of GPU types.")] = 3,
    load: Annotated[
        float | None, typer.Option("--load", help="Requested GPUs divided by available GPUs.", show_default="2")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="Total number of GPUs, instead of --load.")] = None,
    throughputs: Annotated[
        str | None, typer.Option("--throughputs", help="Throughput table.", show_default="built-in catalogue")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the random jobs.")] = 0,
    output: Annotated[SimFormat, typer.Option("--output", "-o", help="Output format.")] = SimFormat.TABLE,
) -> None:
    """Measure the CPU time of a policy's solver.

    Measures building the model, the first solve, and solves after small changes.
    """
    import msgspec

    from levada.cli.sim_sweep import parse_wholes
    from levada.errors import BadInput
    from levada.sim.catalogue import catalogue
    from levada.sim.solver_bench import BenchSettings, measure
    from levada.sim.throughputs import read_throughputs
    from levada.sim.traces import find

    if load is not None and gpus is not None:
        raise BadInput.one("--load and --gpus are mutually exclusive; give one of them")
    sizes = parse_wholes("--jobs", jobs)
    profiles = catalogue() if throughputs is None else read_throughputs(find(throughputs))
    settings = BenchSettings(policy=policy, types=types, load=2.0 if load is None else load, gpus=gpus, seed=seed)
    results = measure(settings, profiles, sizes)
    if output is SimFormat.JSON:
        data_json(msgspec.to_builtins(results))
        return
    rows = [
        (
            row.policy,
            f"{row.jobs:,}",
            f"{row.classes:,}",
            *(f"{1e3 * value:,.3f}" for value in (row.build_s, row.cold_s, row.solve_s)),
            "-" if row.objective is None else f"{row.objective:.9g}",
        )
        for row in results
    ]
    data(columns(("POLICY", "JOBS", "CLASSES", "BUILD ms", "FIRST ms", "LATER ms", "OBJECTIVE"), rows))
