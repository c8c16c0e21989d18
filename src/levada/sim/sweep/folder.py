"""The folder of a sweep.

    sweep.json            what all its runs have in common
    runs.parquet          one row per run
    jobs.parquet          one row per job and run
    timelines.parquet     who had which GPUs from when to when, where that was asked for
    parts/KEY.json        a run that is over: its row, and what its result depends on
    parts/KEY.jobs.parquet, parts/KEY.timeline.parquet

Every file appears whole or not at all, and a run's JSON comes last: a run counts when that is there. The three tables
are made anew from the parts whenever a sweep ends or is interrupted, in the order of what runs are, not of when.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from levada.errors import BadInput, LevadaError
from levada.sim.sweep.one import RUN_COLUMNS, Outcome
from levada.sim.sweep.plan import Plan, Task

SHARED, RUNS, JOBS, TIMELINES = "sweep.json", "runs.parquet", "jobs.parquet", "timelines.parquet"
_HALF = ".half"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a run leaves behind when it is over."""

    fingerprint: str
    row: dict[str, Any]


class Folder:
    """Where a sweep is kept."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._parts = self.path / "parts"

    def open(self, plan: Plan) -> None:
        """Makes the folder, or takes one of the same sweep; raises BadInput where another one is in it."""
        shared = plan.shared()
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            there = (self.path / SHARED).read_bytes() if (self.path / SHARED).exists() else None
        except OSError as error:
            raise BadInput.one(f"--out {self.path}: {error.strerror}") from None
        if there is not None:
            self._compare(there, shared)
        for half in self.path.rglob(f"*{_HALF}"):
            half.unlink(missing_ok=True)
        if there is None:
            _write(self.path / SHARED, msgspec.json.format(msgspec.json.encode(shared), indent=2) + b"\n")

    def is_done(self, task: Task) -> bool:
        """Whether this very run is over; one of other settings or another version in its place is not."""
        part = self._part(self._parts / f"{task.key}.json")
        return part is not None and part.fingerprint == task.fingerprint and all(map(_is_table, self._tables(task.key)))

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Writes down what came of a run, in such an order that it counts only when all is there."""
        own = self._parts / f"{task.key}.json"
        own.unlink(missing_ok=True)
        for kind, columns in (("jobs", outcome.jobs), ("timeline", outcome.timeline)):
            path = self._parts / f"{task.key}.{kind}.parquet"
            path.unlink(missing_ok=True)
            if columns:
                _write_table(path, polars().DataFrame(columns, nan_to_null=True))
        _write(own, msgspec.json.encode(Part(fingerprint=task.fingerprint, row=outcome.row)))

    def gather(self) -> int:
        """Makes the tables from all runs that are over; how many there are. Those with damaged files are not."""
        broken = (polars().exceptions.PolarsError, OSError)
        try:
            return self._gather()
        except broken:
            self._forget_damaged()
        try:
            return self._gather()
        except broken as error:
            why = str(error).splitlines()[0]
            raise LevadaError(f"{self.path}: its tables cannot be made: {why}; name another folder") from None

    def _forget_damaged(self) -> None:
        """Runs whose tables cannot be read are not over."""
        pl = polars()
        for own in self._parts.glob("*.json"):
            for table in self._tables(own.stem):
                try:
                    pl.read_parquet(table)
                except (pl.exceptions.PolarsError, OSError):
                    own.unlink(missing_ok=True)

    def _tables(self, key: str) -> list[Path]:
        """The tables of a run that are there."""
        paths = [self._parts / f"{key}.{kind}.parquet" for kind in ("jobs", "timeline")]
        return [path for path in paths if path.exists()]

    def _gather(self) -> int:
        pl = polars()
        parts = {path.stem: self._part(path) for path in self._parts.glob("*.json")}
        rows = sorted((part.row for part in parts.values() if part is not None), key=_order)
        kinds = {str: pl.String, int: pl.Int64, float: pl.Float64}
        schema = {name: kinds[kind] for name, kind in RUN_COLUMNS.items()}
        _write_table(self.path / RUNS, pl.DataFrame(rows, schema=schema, orient="row"))
        for name, kind in ((JOBS, "jobs"), (TIMELINES, "timeline")):
            paths = [self._parts / f"{row['run']}.{kind}.parquet" for row in rows]
            paths = [path for path in paths if path.exists()]
            if paths:
                half = self.path / f"{name}{_HALF}"
                # Job tables of a large sweep do not fit in memory.
                pl.scan_parquet(paths).sink_parquet(half, maintain_order=True)
                os.replace(half, self.path / name)
            else:
                (self.path / name).unlink(missing_ok=True)
        return len(rows)

    @staticmethod
    def _part(path: Path) -> Part | None:
        """What a run left behind; None where it is damaged, or another's."""
        try:
            part = msgspec.json.decode(path.read_bytes(), type=Part)
        except (OSError, ValueError):
            return None
        row = part.row
        fits = all(name in row and _fits(row[name], kind) for name, kind in RUN_COLUMNS.items())
        return part if fits and len(row) == len(RUN_COLUMNS) and row["run"] == path.stem else None

    def _compare(self, there: bytes, shared: dict[str, Any]) -> None:
        try:
            known = msgspec.json.decode(there, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BadInput.one(f"--out {self.path}: its {SHARED} is no sweep's; name another folder") from None
        mine = msgspec.json.decode(msgspec.json.encode(shared))
        differ = [name for name in mine if known.get(name) != mine[name]]
        if differ:
            raise BadInput.one(
                f"--out {self.path}: holds a sweep with other settings ({_told(differ, known, mine)}); "
                "name another folder, or delete it"
            )


def polars() -> Any:
    """polars, which takes a while to load; raises LevadaError where it is not installed."""
    try:
        import polars as pl
    except ImportError:
        raise LevadaError("sweeps need polars: pip install 'levada[sim]'") from None
    return pl


def _told(names: Iterable[str], known: dict[str, Any], mine: dict[str, Any]) -> str:
    return "; ".join(
        f"what is in its {name} has changed"
        if name == "files"
        else f"{name} {known.get(name)} there, {mine[name]} here"
        for name in names
    )


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """By what a run is: nobody shall see from a table in which order its runs ended."""
    names = ("policy", "cluster", "rate", "asked_jobs", "profiling", "reference_models", "seed")
    return tuple((row[name] is not None, row[name] if row[name] is not None else 0) for name in names)


def _fits(value: Any, kind: type) -> bool:
    if value is None or (kind is float and type(value) is int):
        return True
    return type(value) is kind and (not isinstance(value, int) or -(2**63) <= value < 2**63)


def _is_table(path: Path) -> bool:
    """Whether a file begins and ends as a table does: one that was cut off does not."""
    mark = b"PAR1"
    try:
        with path.open("rb") as file:
            begins = file.read(len(mark)) == mark
            file.seek(-len(mark), os.SEEK_END)
            return begins and file.read() == mark
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    """The file appears whole or not at all, also when the power fails."""
    half = path.with_name(f"{path.name}{_HALF}")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    except OSError as error:
        raise LevadaError(f"{path}: {error.strerror}") from None


def _write_table(path: Path, frame: Any) -> None:
    from io import BytesIO

    buffer = BytesIO()
    frame.write_parquet(buffer)
    _write(path, buffer.getvalue())
