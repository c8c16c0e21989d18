"""`levada bench`: measure the CPU time of solvers and simulations."""

from __future__ import annotations

import typer

from levada.cli import bench_solve, sim_bench


def register(app: typer.Typer) -> None:
    """Add the group `bench`."""
    group = typer.Typer(help="Measure the CPU time of solvers and simulations.", rich_markup_mode=None)
    bench_solve.add(group)
    sim_bench.add(group)
    app.add_typer(group, name="bench")
