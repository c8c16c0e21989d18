"""Read Sia's profile folders: seconds per iteration by placement.

The files are `<model>/placements-<type>.csv` and `<model>/scalability-<type>.csv`. A workload is a model at one batch
size per GPU, named like Gavel's: `cifar10 (batch size 64)`. A step is one batch of one GPU, so a job of n GPUs makes
n / step_time steps per second. Among the placements of a size, those on the fewest nodes give the rate alone, those on
the most nodes the spread rate; placements on the same number of nodes are averaged. If a type was measured again with
larger batches (`dgx-ext` after `dgx`), the newer files replace the older ones under the old name.
`<model>/validation-<batch>.csv` state the length of a training: one row per epoch, with the iterations so far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from levada.errors import BadInput, Fault
from levada.perf import Profiles
from levada.sim.measurements import MOST_WORKERS, Measurements
from levada.sim.text_rows import TextRow, csv_rows, raise_faults

_NEWER = "-ext"
_PLACEMENT = re.compile("[0-9]+")
#: Seconds of a restart in Sia's simulator, and the default for other models.
RESTART_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
_OTHER_RESTART_S = 30.0


def read_sia(folder: Path) -> Profiles:
    """Return the profiles of one model (a folder of CSV files) or of several (a folder of such); raises BadInput."""
    models = sorted({path.parent for path in (*folder.glob("placements-*.csv"), *folder.glob("*/placements-*.csv"))})
    if not models:
        raise BadInput.one("contains no placements-<type>.csv, directly or in a subfolder", str(folder))
    measurements, faults = Measurements(), []
    for model in models:
        types = {path.stem.removeprefix("placements-") for path in model.glob("placements-*.csv")}
        for gpu_type in sorted(types):
            if gpu_type + _NEWER not in types:
                faults += _read_type(measurements, model, gpu_type)
    raise_faults(faults)
    for name in measurements.workloads:
        measurements.restart_s[name] = RESTART_S.get(name.partition(" ")[0], _OTHER_RESTART_S)
    return measurements.profiles()


def read_iterations(folder: Path) -> dict[str, dict[int, float]]:
    """Return the iterations of a whole training by model and measured batch size; raises BadInput."""
    iterations: dict[str, dict[int, float]] = {}
    faults: list[Fault] = []
    for path in sorted((*folder.glob("validation-*.csv"), *folder.glob("*/validation-*.csv"))):
        batch = path.stem.removeprefix("validation-")
        if batch.isascii() and batch.isdigit() and int(batch):
            rows = list(csv_rows(path, ["iteration"], faults))
            done = max((row.positive("iteration") for row in rows), default=0.0)
            faults += [fault for row in rows for fault in row.faults]
            if done:
                iterations.setdefault(path.parent.name, {})[int(batch)] = done
    raise_faults(faults)
    return iterations


def _read_type(measurements: Measurements, model: Path, gpu_type: str) -> list[Fault]:
    """Add the measurements of one model on one type; returns the faults."""
    times: dict[tuple[int, int], dict[int, list[float]]] = {}  # by (batch, workers), by nodes
    faults: list[Fault] = []
    # `scalability` has sizes beyond the grid of `placements`, and some within it.
    for kind in ("placements", "scalability"):
        path = model / f"{kind}-{gpu_type}.csv"
        if path.exists():
            needed = ["placement"] if kind == "placements" else ["num_nodes", "num_replicas"]
            for row in csv_rows(path, ["local_bsz", "step_time", *needed], faults):
                _add_row(times, row, faults)
    for (batch, workers), by_nodes in sorted(times.items()):
        name = f"{model.name} (batch size {batch})"
        for nodes, spread in ((min(by_nodes), False), (max(by_nodes), True)):
            if not spread or len(by_nodes) > 1:
                measurements.add(
                    name, gpu_type.removesuffix(_NEWER), workers, workers / _mean(by_nodes[nodes]), spread=spread
                )
    return faults


def _add_row(times: dict[tuple[int, int], dict[int, list[float]]], row: TextRow, faults: list[Fault]) -> None:
    batch, seconds = row.whole("local_bsz", 1 << 30), row.positive("step_time")
    if "placement" in row.fields:
        text = row.fields["placement"].strip()
        if not _PLACEMENT.fullmatch(text) or not any(map(int, text)):
            row.fault("placement", "must have one digit per node: its GPUs")
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
