"""The output folder of a sweep.

    sweep.json            settings that all runs have in common
    runs.parquet          one row per run
    jobs.parquet          one row per job and run
    timelines.parquet     which job had which GPUs when (with --timelines)
    parts/KEY.json        a completed run: its row, and the fingerprint of its inputs
    parts/KEY.jobs.parquet, parts/KEY.timeline.parquet

Files are written atomically. The JSON of a run is written last: a run is complete when it exists. The three tables are
rebuilt from the parts when a sweep ends or is interrupted, sorted by axes, not by time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from levada.errors import BadInput, LevadaError, MissingExtra
from levada.sim.sweep.plan import SweepPlan, Task
from levada.sim.sweep.run import RUN_COLUMNS, RunOutcome

SHARED, RUNS, JOBS, TIMELINES = "sweep.json", "runs.parquet", "jobs.parquet", "timelines.parquet"
_PARTIAL = ".half"


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Content of parts/KEY.json."""

    fingerprint: str
    row: dict[str, Any]


class Folder:
    """The output folder of a sweep."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._parts = self.path / "parts"

    def open(self, plan: SweepPlan) -> None:
        """Create the folder, or reuse that of the same sweep; raises BadInput if it contains another sweep."""
        shared = plan.shared()
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            existing = (self.path / SHARED).read_bytes() if (self.path / SHARED).exists() else None
        except OSError as error:
            raise BadInput.one(f"--out {self.path}: {error.strerror}") from None
        if existing is not None:
            self._compare(existing, shared)
        for partial in self.path.rglob(f"*{_PARTIAL}"):
            partial.unlink(missing_ok=True)
        if existing is None:
            _write(self.path / SHARED, msgspec.json.format(msgspec.json.encode(shared), indent=2) + b"\n")

    def is_done(self, task: Task) -> bool:
        """Return whether this run is complete, with the same settings and version."""
        part = self._part(self._parts / f"{task.key}.json")
        return part is not None and part.fingerprint == task.fingerprint and all(map(_is_table, self._tables(task.key)))

    def save(self, task: Task, outcome: RunOutcome) -> None:
        """Save the result of a run; the JSON file, which marks it complete, is written last."""
        part = self._parts / f"{task.key}.json"
        part.unlink(missing_ok=True)
        for kind, columns in (("jobs", outcome.jobs), ("timeline", outcome.timeline)):
            path = self._parts / f"{task.key}.{kind}.parquet"
            path.unlink(missing_ok=True)
            if columns:
                _write_table(path, polars().DataFrame(columns, nan_to_null=True))
        _write(part, msgspec.json.encode(RunResult(fingerprint=task.fingerprint, row=outcome.row)))

    def gather(self) -> int:
        """Build the tables from all complete runs and return their number. Damaged runs are dropped."""
        damaged = (polars().exceptions.PolarsError, OSError)
        try:
            return self._gather()
        except damaged:
            self._drop_damaged()
        try:
            return self._gather()
        except damaged as error:
            why = str(error).splitlines()[0]
            raise LevadaError(f"{self.path}: cannot build the tables: {why}; choose another folder") from None

    def _drop_damaged(self) -> None:
        """Delete the JSON of runs whose tables cannot be read, so that they run again."""
        pl = polars()
        for part in self._parts.glob("*.json"):
            for table in self._tables(part.stem):
                try:
                    pl.read_parquet(table)
                except (pl.exceptions.PolarsError, OSError):
                    part.unlink(missing_ok=True)

    def _tables(self, key: str) -> list[Path]:
        """Return the existing tables of a run."""
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
                partial = self.path / f"{name}{_PARTIAL}"
                # Job tables of a large sweep do not fit in memory.
                pl.scan_parquet(paths).sink_parquet(partial, maintain_order=True)
                os.replace(partial, self.path / name)
            else:
                (self.path / name).unlink(missing_ok=True)
        return len(rows)

    @staticmethod
    def _part(path: Path) -> RunResult | None:
        """Read parts/KEY.json; None if it is damaged or belongs to another run."""
        try:
            part = msgspec.json.decode(path.read_bytes(), type=RunResult)
        except (OSError, ValueError):
            return None
        row = part.row
        fits = all(name in row and _fits(row[name], kind) for name, kind in RUN_COLUMNS.items())
        return part if fits and len(row) == len(RUN_COLUMNS) and row["run"] == path.stem else None

    def _compare(self, existing: bytes, shared: dict[str, Any]) -> None:
        try:
            stored = msgspec.json.decode(existing, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BadInput.one(f"--out {self.path}: {SHARED} is damaged; choose another folder") from None
        current = msgspec.json.decode(msgspec.json.encode(shared))
        differ = [name for name in current if stored.get(name) != current[name]]
        if differ:
            raise BadInput.one(
                f"--out {self.path}: contains a sweep with other settings ({_differences(differ, stored, current)}); "
                "choose another folder, or delete it"
            )


def polars() -> Any:
    """Import polars, which is slow; raises MissingExtra if it is not installed."""
    try:
        import polars as pl
    except ImportError:
        raise MissingExtra("a sweep", "sim") from None
    return pl


def _differences(names: Iterable[str], stored: dict[str, Any], current: dict[str, Any]) -> str:
    return "; ".join(
        "content of files has changed" if name == "files" else f"{name}: {stored.get(name)} there, {current[name]} now"
        for name in names
    )


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sort key by axes, so that tables do not depend on the order in which runs end."""
    names = ("policy", "cluster", "rate", "asked_jobs", "profiling", "reference_models", "seed")
    return tuple((row[name] is not None, row[name] if row[name] is not None else 0) for name in names)


def _fits(value: Any, kind: type) -> bool:
    if value is None or (kind is float and type(value) is int):
        return True
    return type(value) is kind and (not isinstance(value, int) or -(2**63) <= value < 2**63)


def _is_table(path: Path) -> bool:
    """Return whether a file begins and ends like parquet; a truncated file does not."""
    mark = b"PAR1"
    try:
        with path.open("rb") as file:
            begins = file.read(len(mark)) == mark
            file.seek(-len(mark), os.SEEK_END)
            return begins and file.read() == mark
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    partial = path.with_name(f"{path.name}{_PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise LevadaError(f"{path}: {error.strerror}") from None


def _write_table(path: Path, frame: Any) -> None:
    from io import BytesIO

    buffer = BytesIO()
    frame.write_parquet(buffer)
    _write(path, buffer.getvalue())
