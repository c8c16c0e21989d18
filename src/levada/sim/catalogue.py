"""The catalogue: 26 training workloads on three GPU types, so that a simulation needs no files.

It is not a table of measurements but a small model of one, made by `scripts/make_catalogue.py`: single-GPU rates with
four digits, and low-rank factors for how workloads scale, what spreading them over nodes costs, and how two of them
share a GPU. Its errors against the table it was fitted to stand in the file itself, under `error`, and in
docs/throughputs.md. The order of the workloads is that of the job generator's templates, and part of its contract.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np

from levada.perf import Floats, Profiles

FILE = "data/catalogue.json"


class Template(msgspec.Struct, frozen=True):
    """What a job generator has to know of a workload."""

    name: str
    #: It may run with several workers.
    distributed: bool
    #: It reads a data set.
    needs_data: bool


class Factors(msgspec.Struct, frozen=True):
    """A matrix of workloads by columns as `mean + rows @ columns`."""

    mean: Floats
    rows: Floats
    columns: Floats

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Factors:
        """From lists, as they stand in the file."""
        return cls(*(np.array(raw[name], np.float64) for name in ("mean", "rows", "columns")))

    def matrix(self) -> Floats:
        """All of it."""
        return self.mean + self.rows @ self.columns


@cache
def templates() -> tuple[Template, ...]:
    """The workloads in the generator's order."""
    return tuple(Template(**row) for row in _raw()["workloads"])


@cache
def catalogue() -> Profiles:
    """The catalogue as profiles; their arrays are shared and cannot be written to."""
    profiles = expand(_raw())
    for values in (profiles.alone, profiles.spread, profiles.together):
        if values is not None:
            values.setflags(write=False)
    return profiles


def errors() -> dict[str, dict[str, float]]:
    """How far the catalogue is from the table it was fitted to, as its file states it."""
    return _raw()["error"]


@cache
def _raw() -> Any:
    return json.loads(files("levada.sim").joinpath(FILE).read_text(encoding="utf-8"))


def expand(raw: dict[str, Any]) -> Profiles:
    """The profiles that the catalogue's numbers stand for.

    - alone[w, type, size] = rate[w, type] x 2^scaling; spread = alone x 2^spreading; both for the distributed only.
    - together[type, 1, a, b] = alone[a] x sharing, within [0, 1]; 0 for the pairs that do not fit on one GPU, and for
      all pairs of more than one worker.
    """
    names = [row["name"] for row in raw["workloads"]]
    types, sizes = raw["types"], raw["sizes"]
    several = np.flatnonzero([row["distributed"] for row in raw["workloads"]])
    shape = (several.size, len(types), len(sizes) - 1)

    alone = np.full((len(names), len(types), len(sizes)), np.nan)
    alone[:, :, 0] = raw["rate"]
    spread = alone.copy()
    alone[several, :, 1:] = alone[several, :, :1] * np.exp2(Factors.of(raw["scaling"]).matrix().reshape(shape))
    spread[several, :, 1:] = alone[several, :, 1:] * np.exp2(Factors.of(raw["spreading"]).matrix().reshape(shape))
    for name, gpu_type, size in raw["cannot_run"]:
        at = (names.index(name), types.index(gpu_type), sizes.index(size))
        alone[at] = spread[at] = 0.0

    sharing = Factors.of(raw["sharing"]).matrix().reshape(len(names), len(types), len(names))
    together = np.zeros((len(types), len(sizes), len(names), len(names)))
    together[:, 0] = alone[:, :, 0].T[:, :, None] * np.clip(sharing.transpose(1, 0, 2), 0.0, 1.0)
    together[:, 1:] = np.where(np.isnan(alone[:, :, 1:]).transpose(1, 2, 0)[:, :, :, None], np.nan, 0.0)
    together = np.where(np.isnan(together.transpose(0, 1, 3, 2)), np.nan, together)
    for gpu_type, pairs in raw["cannot_share"].items():
        for a, others in pairs.items():
            for b in others:
                together[types.index(gpu_type), 0, [int(a), b], [b, int(a)]] = 0.0
    return Profiles(
        workloads=tuple(names), types=tuple(types), sizes=tuple(sizes), alone=alone, spread=spread, together=together
    )
