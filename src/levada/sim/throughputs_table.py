"""Levada's throughput tables in CSV or parquet (docs/throughputs.md).

`levada profile` writes them. One row is one measurement. Without `with` it is of a job alone, and `spread` says whether
its workers were spread over nodes; with `with` it is of two jobs on the same devices, each with `workers` workers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from math import isnan
from pathlib import Path

from levada.errors import Fault
from levada.perf import Profiles
from levada.sim.measurements import MOST_WORKERS, Measurements
from levada.sim.text_rows import TextRow, csv_rows, parquet_rows, raise_faults

NEEDED = ("workload", "gpu_type", "workers", "steps_per_s")
COLUMNS = (*NEEDED, "spread", "with", "with_steps_per_s", "restart_s")
_BOOLEANS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


def read_table(path: Path) -> Profiles:
    """Return the table in a CSV or parquet file; raises BadInput."""
    measurements, faults = Measurements(), list[Fault]()
    rows = parquet_rows if path.suffix == ".parquet" else csv_rows
    for row in rows(path, NEEDED, faults):
        _add_row(measurements, row)
        faults += row.faults
    if not faults and not measurements.workloads:
        faults.append(Fault(str(path), "contains no rates"))
    raise_faults(faults)
    return measurements.profiles()


def _add_row(measurements: Measurements, row: TextRow) -> None:
    """Add one measurement, or faults to *row*."""
    workload, gpu_type = row.text("workload"), row.text("gpu_type")
    workers, rate = row.whole("workers", MOST_WORKERS), row.rate("steps_per_s")
    spread = _BOOLEANS.get(row.fields.get("spread", "").strip().lower())
    if spread is None:
        row.fault("spread", "must be true or false")
    partner = row.fields.get("with", "").strip()
    partner_rate = row.rate("with_steps_per_s") if partner else 0.0
    if partner and spread:
        row.fault("spread", "must be false if `with` is set")
    if row.fields.get("restart_s", "").strip():
        measurements.restart_s[workload] = _restart_s(row)
    if row.faults:
        return
    if partner:
        if not measurements.add_pair(workload, partner, gpu_type, workers, rate, partner_rate):
            row.fault("with", "contradicts another row with the same workload, type and size")
    elif not measurements.add(workload, gpu_type, workers, rate, spread=bool(spread)):
        row.fault("workload", "duplicate row: same workload, type and size")


def _restart_s(row: TextRow) -> float:
    before = len(row.faults)
    seconds = row.rate("restart_s")
    if len(row.faults) > before:
        row.faults[before:] = [Fault(row.faults[before].path, "must be a number of seconds, 0 or more")]
    return seconds


def table_text(profiles: Profiles) -> str:
    """Render *profiles* as CSV: every measured cell, each pair once."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_lines(profiles))
    return text.getvalue()


def _lines(profiles: Profiles) -> Iterator[tuple[object, ...]]:
    for row, workload in enumerate(profiles.workloads):
        restart_s = "" if profiles.restart_s is None else float(profiles.restart_s[row])
        for column, gpu_type in enumerate(profiles.types):
            for at, size in enumerate(profiles.sizes):
                where = (workload, gpu_type, size)
                for table, spread in ((profiles.alone, "false"), (profiles.spread, "true")):
                    if table is not None and not isnan(rate := float(table[row, column, at])):
                        yield (*where, rate, spread, "", "", restart_s)
                if profiles.together is not None:
                    pairs = profiles.together[column, at]
                    for other in range(row, len(profiles.workloads)):
                        own, others = float(pairs[row, other]), float(pairs[other, row])
                        if not (isnan(own) or isnan(others)):
                            yield (*where, own, "false", profiles.workloads[other], others, "")
