"""Runs to compare: of folders of sweeps, of their `runs.parquet`, and of what `levada sim run -o json` printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from levada.errors import BadInput
from levada.sim.sweep.folder import JOBS, RUNS, SHARED, TIMELINES, polars
from levada.sim.sweep.one import FINISHED, RUN_COLUMNS

#: What two sweeps may differ in without anybody minding.
_SILENT = ("levada", "files", "judged", "timeline")


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """What one argument named."""

    name: str
    #: None for the report of a single run.
    folder: Path | None
    #: What all runs have in common, as far as known.
    shared: dict[str, Any]
    rows: list[dict[str, Any]]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, each with the columns of `runs.parquet`, its `label` and its `load`; and where their jobs are."""

    rows: list[dict[str, Any]]
    #: What the load is counted in: `jobs per hour`, or `jobs`.
    load_unit: str
    folders: dict[str, Path]

    def labels(self) -> list[str]:
        """The names of what is compared, in the order of the inputs."""
        return list(dict.fromkeys(row["label"] for row in self.rows))

    def frame(self, table: str, chosen: Iterable[dict[str, Any]]) -> Any:
        """The rows of `jobs.parquet` or `timelines.parquet` of the chosen runs, with `label`; raises BadInput."""
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
        raise BadInput.one("there is no run to look at yet")
    rates = any(row["rate"] is not None for row in rows)
    for row in rows:
        row["load"] = row["rate"] if rates else row["asked_jobs"]
    return Runs(
        rows=rows,
        load_unit="jobs per hour" if rates else "jobs",
        folders={each.name: each.folder for each in inputs if each.folder is not None},
    )


def _input(name: str) -> Input:
    path = Path(name)
    if path.is_dir():
        if not (path / RUNS).exists():
            raise BadInput.one(f"{name}: is no sweep: it has no {RUNS}")
        return _sweep(name, path)
    if path.name == RUNS and path.exists():
        return _sweep(name, path.parent)
    try:
        said = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BadInput.one(f"{name}: {error.strerror}") from None
    except msgspec.DecodeError:
        said = {}
    if "policy" not in said or "avg_jct_s" not in said:
        raise BadInput.one(f"{name}: is neither the folder of a sweep nor what `levada sim run -o json` printed")
    row: dict[str, Any] = {column: said.get(column) for column in RUN_COLUMNS}
    fairness = said.get("ftf") or {}
    row |= {f"ftf_{key}": fairness.get(key) for key in ("mean", "worst", "unfair")}
    row |= {"run": name, "status": FINISHED, "cluster": said.get("cluster") or "", "seed": said.get("seed") or 0}
    if isinstance(row["queueing_s"], dict):
        row["queueing_s"] = row["queueing_s"].get("mean")
    row["jct_values"] = [value for value in (said.get("jct_s") or {}).values() if value is not None]
    return Input(name=name, folder=None, shared={}, rows=[row])


def _sweep(name: str, folder: Path) -> Input:
    try:
        shared = msgspec.json.decode((folder / SHARED).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        shared = {}
    frame = _frame(folder / RUNS)
    lacks = [column for column in RUN_COLUMNS if column not in frame.columns]
    if lacks:
        raise BadInput.one(f"{name}: its {RUNS} has no column {', '.join(lacks)}; is it of another version?")
    return Input(name=name, folder=folder, shared=shared, rows=frame.to_dicts())


def _frame(path: Path) -> Any:
    pl = polars()
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput.one(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _labelled(inputs: list[Input]) -> list[dict[str, Any]]:
    """All rows, named by policy, and by what else makes them differ."""
    told = {name for each in inputs for name in each.shared if name not in _SILENT}
    differ = [
        name
        for name in sorted(told)
        if len({msgspec.json.encode(each.shared.get(name)) for each in inputs if each.shared}) > 1
    ]
    rows = [
        dict(row, input=each.name, label=_label(row, {name: each.shared.get(name) for name in differ}))
        for each in inputs
        for row in each.rows
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
        return ",".join(f"{key}:{each}" for key, each in value.items())
    return str(value)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("label", "cluster", "rate", "asked_jobs", "seed", "profiling", "reference_models")
    return tuple(row[name] for name in names)


__all__ = ["JOBS", "TIMELINES", "Input", "Runs", "read"]
