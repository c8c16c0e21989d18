"""`levada bench`: what Levada costs in CPU time."""

from __future__ import annotations

import typer

from levada.cli import bench_solve, sim_bench


def register(app: typer.Typer) -> None:
    """Adds the group `bench`."""
    group = typer.Typer(help="Measure what Levada costs in CPU time.", rich_markup_mode=None)
    bench_solve.add(group)
    sim_bench.add(group)
    app.add_typer(group, name="bench")
