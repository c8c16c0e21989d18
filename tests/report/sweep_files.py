"""Sweeps for tests, made by hand: figures that one can check in the head."""

import json
from pathlib import Path
from typing import Any

import polars as pl

from levada.sim.sweep.run import FINISHED, RUN_COLUMNS

KINDS = {str: pl.String, int: pl.Int64, float: pl.Float64}


def run(policy: str, rate: float | None = 1.0, seed: int = 0, hours: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One row; its mean completion time in hours."""
    known = {
        "run": f"{policy}-{rate}-{seed}",
        "status": FINISHED,
        "policy": policy,
        "cluster": "v100=4",
        "gpus": 4,
        "rate": rate,
        "seed": seed,
        "profiling": 1.0,
        "avg_jct_s": None if hours is None else hours * 3600.0,
        "utilization": 0.5,
    }
    return {**dict.fromkeys(RUN_COLUMNS), **known, **more}


def sweep(folder: Path, rows: list[dict[str, Any]], shared: dict[str, Any] | None = None) -> str:
    """The folder with these runs."""
    folder.mkdir()
    schema = {name: KINDS[kind] for name, kind in RUN_COLUMNS.items()}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(folder / "runs.parquet")
    (folder / "sweep.json").write_text(json.dumps({"levada": "0", "mechanism": "default", **(shared or {})}))
    return str(folder)
