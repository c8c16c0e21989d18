"""Reads Sia's profile folders: `<model>/placements-<type>.csv` and `scalability-<type>.csv`, times per iteration.

A workload is a model at one batch size per GPU, named as Gavel names them: `cifar10 (batch size 64)`. A step is one
batch of one GPU, so that a whole job of n GPUs makes n / step_time of them. Of the placements of a size, those on the
fewest nodes are how it runs alone and those on the most how it runs spread; several with as many nodes are averaged.
Where a type was measured again with larger batches (`dgx-ext` after `dgx`), the newer files count, under the old name.
`<model>/validation-<batch>.csv` tell how long a training is: one row per epoch, with the iterations so far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from levada.errors import BadInput, Fault
from levada.perf import Profiles
from levada.sim.measurements import MOST_WORKERS, Measurements
from levada.sim.rows import Row, csv_rows, raise_faults

_AGAIN = "-ext"
_PLACEMENT = re.compile("[0-9]+")
#: Seconds that a restart takes, as Sia's simulator has it, and for models that it does not name.
RESTART_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
_OTHER_RESTART_S = 30.0


def read_sia(folder: Path) -> Profiles:
    """The profiles of one model (a folder of CSV files) or of several (a folder of those); raises BadInput."""
    models = sorted({path.parent for path in (*folder.glob("placements-*.csv"), *folder.glob("*/placements-*.csv"))})
    if not models:
        raise BadInput.one("holds no placements-<type>.csv, neither itself nor in a folder below", str(folder))
    found, faults = Measurements(), []
    for model in models:
        types = {path.stem.removeprefix("placements-") for path in model.glob("placements-*.csv")}
        for gpu_type in sorted(types):
            if gpu_type + _AGAIN not in types:
                faults += _read_type(found, model, gpu_type)
    raise_faults(faults)
    for name in found.workloads:
        found.restart_s[name] = RESTART_S.get(name.partition(" ")[0], _OTHER_RESTART_S)
    return found.profiles()


def read_iterations(folder: Path) -> dict[str, dict[int, float]]:
    """Iterations of a whole training by its batch size, by model, where they were tried; raises BadInput."""
    found: dict[str, dict[int, float]] = {}
    faults: list[Fault] = []
    for path in sorted((*folder.glob("validation-*.csv"), *folder.glob("*/validation-*.csv"))):
        batch = path.stem.removeprefix("validation-")
        if batch.isascii() and batch.isdigit() and int(batch):
            rows = list(csv_rows(path, ["iteration"], faults))
            done = max((row.positive("iteration") for row in rows), default=0.0)
            faults += [fault for row in rows for fault in row.faults]
            if done:
                found.setdefault(path.parent.name, {})[int(batch)] = done
    raise_faults(faults)
    return found


def _read_type(found: Measurements, model: Path, gpu_type: str) -> list[Fault]:
    """Takes what was measured of one model on one type; the faults of what it could not take."""
    times: dict[tuple[int, int], dict[int, list[float]]] = {}  # by (batch, workers), by nodes
    faults: list[Fault] = []
    # Both files hold measurements; the second those of sizes beyond the grid of the first, and of some within.
    for kind in ("placements", "scalability"):
        path = model / f"{kind}-{gpu_type}.csv"
        if path.exists():
            needed = ["placement"] if kind == "placements" else ["num_nodes", "num_replicas"]
            for row in csv_rows(path, ["local_bsz", "step_time", *needed], faults):
                _take(times, row, faults)
    for (batch, workers), by_nodes in sorted(times.items()):
        name = f"{model.name} (batch size {batch})"
        for nodes, spread in ((min(by_nodes), False), (max(by_nodes), True)):
            if not spread or len(by_nodes) > 1:
                found.add(name, gpu_type.removesuffix(_AGAIN), workers, workers / _mean(by_nodes[nodes]), spread=spread)
    return faults


def _take(times: dict[tuple[int, int], dict[int, list[float]]], row: Row, faults: list[Fault]) -> None:
    batch, seconds = row.whole("local_bsz", 1 << 30), row.positive("step_time")
    if "placement" in row.fields:
        text = row.fields["placement"].strip()
        if not _PLACEMENT.fullmatch(text) or not any(map(int, text)):
            row.fault("placement", "must be one digit per node, the GPUs used there")
        gpus = [int(digit) for digit in text if digit in "123456789"]
        nodes, workers = len(gpus), sum(gpus)
    else:
        nodes, workers = row.whole("num_nodes", MOST_WORKERS), row.whole("num_replicas", MOST_WORKERS)
    if row.faults:
        faults += row.faults
    else:
        times.setdefault((batch, workers), {}).setdefault(nodes, []).append(seconds)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
