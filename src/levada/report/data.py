"""The runs to compare: from sweep folders, `runs.parquet`, or `sim run -o json`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from levada.errors import BadInput
from levada.sim.sweep.folder import JOBS, RUNS, SHARED, TIMELINES, polars
from levada.sim.sweep.run import FINISHED, RUN_COLUMNS

#: Settings in which two sweeps may differ without a note in the label.
_SILENT = ("levada", "files", "judged", "timeline")


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one input argument."""

    name: str
    #: None for the report of a single run.
    folder: Path | None
    #: The settings of all its runs, as far as known.
    shared: dict[str, Any]
    rows: list[dict[str, Any]]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """All runs: the columns of `runs.parquet`, `label` and `load`; and their folders."""

    rows: list[dict[str, Any]]
    #: The unit of the load: `jobs per hour`, or `jobs`.
    load_unit: str
    folders: dict[str, Path]

    def labels(self) -> list[str]:
        """The names of the compared runs, in the order of the inputs."""
        return list(dict.fromkeys(row["label"] for row in self.rows))

    def frame(self, table: str, chosen: Iterable[dict[str, Any]]) -> Any:
        """The rows of a Parquet table for the chosen runs, with `label`; raises BadInput."""
        pl = polars()
        by_folder: dict[str, list[dict[str, Any]]] = {}
        for row in chosen:
            if row["input"] in self.folders:
                by_folder.setdefault(row["input"], []).append(row)
        frames = []
        for name, rows in by_folder.items():
            path = self.folders[name] / table
            if not path.exists():
                hint = "; sweep with --timelines" if table == TIMELINES else ""
                raise BadInput.one(f"{name}: has no {table}{hint}")
            labels = pl.DataFrame({"run": [row["run"] for row in rows], "label": [row["label"] for row in rows]})
            frames.append(_frame(path).join(labels, on="run", how="inner", maintain_order="left"))
        if not frames:
            raise BadInput.one(f"none of the inputs is a sweep with {table}")
        return pl.concat(frames)


def read(paths: Sequence[str]) -> Runs:
    """The runs of all inputs; raises BadInput with every fault."""
    inputs: list[Input] = []
    faults = []
    for path in dict.fromkeys(paths):
        try:
            inputs.append(_input(path))
        except BadInput as error:
            faults += error.faults
    if faults:
        raise BadInput(faults)
    rows = _labelled(inputs)
    if not rows:
        raise BadInput.one("the inputs contain no runs yet")
    rates = any(row["rate"] is not None for row in rows)
    for row in rows:
        row["load"] = row["rate"] if rates else row["asked_jobs"]
    return Runs(
        rows=rows,
        load_unit="jobs per hour" if rates else "jobs",
        folders={source.name: source.folder for source in inputs if source.folder is not None},
    )


def _input(name: str) -> Input:
    path = Path(name)
    if path.is_dir():
        if not (path / RUNS).exists():
            raise BadInput.one(f"{name}: not a sweep: it has no {RUNS}")
        return _sweep(name, path)
    if path.name == RUNS and path.exists():
        return _sweep(name, path.parent)
    try:
        report = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BadInput.one(f"{name}: {error.strerror}") from None
    except msgspec.DecodeError:
        report = {}
    if "policy" not in report or "avg_jct_s" not in report:
        raise BadInput.one(f"{name}: neither a sweep folder nor the output of `levada sim run -o json`")
    row: dict[str, Any] = {column: report.get(column) for column in RUN_COLUMNS}
    fairness = report.get("ftf") or {}
    row |= {f"ftf_{key}": fairness.get(key) for key in ("mean", "worst", "unfair")}
    row |= {"run": name, "status": FINISHED, "cluster": report.get("cluster") or "", "seed": report.get("seed") or 0}
    if isinstance(row["queueing_s"], dict):
        row["queueing_s"] = row["queueing_s"].get("mean")
    row["jct_values"] = [value for value in (report.get("jct_s") or {}).values() if value is not None]
    return Input(name=name, folder=None, shared={}, rows=[row])


def _sweep(name: str, folder: Path) -> Input:
    try:
        shared = msgspec.json.decode((folder / SHARED).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        shared = {}
    frame = _frame(folder / RUNS)
    missing = [column for column in RUN_COLUMNS if column not in frame.columns]
    if missing:
        raise BadInput.one(f"{name}: {RUNS} has no column {', '.join(missing)}; it may be from another version")
    return Input(name=name, folder=folder, shared=shared, rows=frame.to_dicts())


def _frame(path: Path) -> Any:
    pl = polars()
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput.one(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _labelled(inputs: list[Input]) -> list[dict[str, Any]]:
    """All rows, labelled by policy and by the settings in which the inputs differ."""
    settings = {name for source in inputs for name in source.shared if name not in _SILENT}
    differ = [
        name
        for name in sorted(settings)
        if len({msgspec.json.encode(source.shared.get(name)) for source in inputs if source.shared}) > 1
    ]
    rows = [
        dict(row, input=source.name, label=_label(row, {name: source.shared.get(name) for name in differ}))
        for source in inputs
        for row in source.rows
    ]
    for axis in ("profiling", "reference_models"):
        if len({row[axis] for row in rows if row[axis] is not None}) > 1:
            for row in rows:
                row["label"] += f" {axis.replace('_', ' ')} {row[axis]}" if row[axis] is not None else ""
    seen: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        seen.setdefault(_place(row), set()).add(row["input"])
    if any(len(names) > 1 for names in seen.values()):
        for row in rows:
            row["label"] += f" [{row['input']}]"
    return rows


def _label(row: dict[str, Any], more: dict[str, Any]) -> str:
    settings = [f"{name}={_short(value)}" for name, value in more.items() if value not in (None, {}, [], False)]
    return str(row["policy"]) + (f" ({', '.join(settings)})" if settings else "")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    return str(value)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("label", "cluster", "rate", "asked_jobs", "seed", "profiling", "reference_models")
    return tuple(row[name] for name in names)


__all__ = ["JOBS", "TIMELINES", "Input", "Runs", "read"]
