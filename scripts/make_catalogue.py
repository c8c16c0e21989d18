"""Generate src/levada/sim/data/catalogue.json from Gavel's simulation table.

    LEVADA_PEER_DATA=... python scripts/make_catalogue.py

Levada may not distribute the table itself; the catalogue is a small model of it, with its errors.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from levada.perf import Floats, Profiles
from levada.sim import catalogue
from levada.sim.throughputs import read_gavel

#: Number of factors for scaling and spreading, and for sharing.
SCALING_RANK, SHARING_RANK = 5, 10

#: The order of the templates in Gavel's job generator.
FAMILIES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ResNet-18", (16, 32, 64, 128, 256)),
    ("ResNet-50", (16, 32, 64, 128)),
    ("Transformer", (16, 32, 64, 128, 256)),
    ("LM", (5, 10, 20, 40, 80)),
    ("Recommendation", (512, 1024, 2048, 4096, 8192)),
    ("A3C", ()),
    ("CycleGAN", ()),
)
WITHOUT_DATA = {"A3C"}


def names() -> list[str]:
    """Return the workloads in the order of the generator."""
    return [
        name
        for family, batches in FAMILIES
        for name in ([f"{family} (batch size {size})" for size in batches] or [family])
    ]


def make(table: Profiles) -> dict[str, Any]:
    """Return the catalogue of a table with these workloads, compact and spread rates, and single-worker pairs."""
    rows = [table.position(name) for name in names()]
    distributed = table.distributed()[rows]
    several = np.array(rows)[distributed]
    alone, spread = table.alone, table.spread
    together = table.together
    assert spread is not None
    assert together is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        scaling = np.log2(alone[several, :, 1:] / alone[several, :, :1]).reshape(len(several), -1)
        spreading = np.log2(spread[several, :, 1:] / alone[several, :, 1:]).reshape(len(several), -1)
    pairs = together[:, 0][:, rows][:, :, rows]
    sharing = pairs / alone[rows, :, 0].T[:, :, None]
    never = pairs == 0
    sharing[never] = np.nan
    raw: dict[str, Any] = {
        "about": "A model of 26 workloads on three GPU types; see docs/throughputs.md and scripts/make_catalogue.py.",
        "types": list(table.types),
        "sizes": list(table.sizes),
        "workloads": [
            {"name": name, "distributed": bool(capable), "needs_data": name not in WITHOUT_DATA}
            for name, capable in zip(names(), distributed, strict=True)
        ],
        "rate": [[float(f"{rate:.4g}") for rate in row] for row in alone[rows, :, 0]],
        "scaling": factors(scaling, SCALING_RANK),
        "spreading": factors(spreading, SCALING_RANK),
        "cannot_run": [
            [table.workloads[row], table.types[column], table.sizes[at]]
            for row, column, at in np.argwhere(alone == 0).tolist()
        ],
        "sharing": factors(sharing.transpose(1, 0, 2).reshape(len(rows), -1), SHARING_RANK),
        "cannot_share": {
            gpu_type: {
                str(a): others
                for a in range(len(rows))
                if (others := (a + np.flatnonzero(never[column, a, a:])).tolist())
            }
            for column, gpu_type in enumerate(table.types)
        },
    }
    return {"error": errors(catalogue.expand(raw), table), **raw}


def factors(matrix: Floats, rank: int) -> dict[str, Any]:
    """Return mean and factors of the best fit of this rank. The fit itself fills holes (NaN, infinite)."""
    holes = ~np.isfinite(matrix)
    filled = np.where(holes, 0.0, matrix)
    counts = (~holes).sum(axis=0)
    filled = np.where(holes, filled.sum(axis=0) / np.maximum(counts, 1), filled)
    for _ in range(200):
        mean = filled.mean(axis=0)
        left, strength, right = np.linalg.svd(filled - mean, full_matrices=False)
        left, right = left[:, :rank] * np.sqrt(strength[:rank]), right[:rank] * np.sqrt(strength[:rank])[:, None]
        filled = np.where(holes, mean + left @ right, filled)
    # The sign of a factor is arbitrary; make the largest entry of each positive.
    sign = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    return {"mean": rounded(mean), "rows": rounded(left * sign), "columns": rounded(right * sign[:, None])}


def rounded(values: Floats) -> Any:
    """Return lists of numbers with three decimals."""
    return (np.round(values, 3) + 0.0).tolist()


def errors(ours: Profiles, table: Profiles) -> dict[str, dict[str, float]]:
    """Return errors against the table: relative for rates, absolute for the fraction of speed kept in a pair."""
    rows = [table.position(name) for name in ours.workloads]
    assert ours.spread is not None
    assert ours.together is not None
    assert table.spread is not None
    assert table.together is not None
    single, several = np.s_[:, :, :1], np.s_[:, :, 1:]
    alone, spread = table.alone[rows], table.spread[rows]
    speed = alone[:, :, 0].T[:, :, None]
    pairs = table.together[:, 0][:, rows][:, :, rows] / speed
    return {
        "single": _summary(ours.alone[single] / alone[single] - 1),
        "several": _summary(ours.alone[several] / np.where(alone[several] > 0, alone[several], np.nan) - 1),
        "spread": _summary(ours.spread[several] / spread[several] - 1),
        "sharing": _summary(
            np.where(pairs > 0, ours.together[:, 0] / ours.alone[:, :, 0].T[:, :, None] - pairs, np.nan)
        ),
    }


def _summary(error: Floats) -> dict[str, float]:
    size = np.abs(error[~np.isnan(error)])
    statistics = {"mean": size.mean(), "p95": np.quantile(size, 0.95), "max": size.max()}
    return {name: float(f"{value:.2g}") for name, value in statistics.items()}


def main() -> None:
    """Write the file and print its errors."""
    table = read_gavel(Path(os.environ["LEVADA_PEER_DATA"], "gavel", "simulation_throughputs.json"))
    raw = make(table)
    path = Path(__file__).parents[1] / "src" / "levada" / "sim" / catalogue.FILE
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in raw.items())
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes", raw["error"], sep="\n")


if __name__ == "__main__":
    main()
