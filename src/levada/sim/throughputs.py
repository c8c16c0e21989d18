"""Read throughput tables of Gavel, Sia and Levada (docs/throughputs.md).

Gavel's are JSON, Sia's are profile folders. `read_throughputs` detects the format. Errors name the file, the line or
field, and what is expected there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from levada.errors import BadInput, Fault
from levada.perf import Profiles
from levada.sim.measurements import MOST_WORKERS, Measurements, rate_fault
from levada.sim.text_rows import raise_faults, read_text
from levada.sim.throughputs_sia import read_sia
from levada.sim.throughputs_table import read_table

#: Gavel's suffix of a GPU type for jobs that are spread over nodes.
_SPREAD = "_unconsolidated"
_KEY = re.compile(r"""\(\s*(?P<quote>['"])(?P<name>.*)(?P=quote)\s*,\s*(?P<size>[0-9]+)\s*\)""")


def read_throughputs(path: str | Path) -> Profiles:
    """Return the table in a file or folder of any of the three formats; raises BadInput."""
    place = Path(path)
    if place.is_dir():
        return read_sia(place)
    if place.is_file() and place.stat().st_size == 0:
        raise BadInput.one("is empty", str(place))
    if place.suffix in (".csv", ".parquet"):
        return read_table(place)
    return read_gavel(place)


def read_gavel(path: str | Path) -> Profiles:
    """Return a table in Gavel's JSON; raises BadInput.

    Format: `{type: {"('model', workers)": {"null": alone, "('other', workers)": [own, other's]}}}`.
    Types named `*_unconsolidated` are the same types with workers spread over nodes; their pairs are not used.
    """
    from levada.jobfile.text import parse_json  # imports pydantic and YAML, which other formats do not need

    place = Path(path)
    text = read_text(place)
    try:
        raw = parse_json(text)
    except BadInput as error:
        raise BadInput(Fault(str(place), str(fault)) for fault in error.faults) from None
    if not isinstance(raw, dict):
        raise BadInput.one("must be a mapping from GPU types to rates", str(place))
    measurements, faults = Measurements(), []
    for gpu_type, rows in raw.items():
        if not isinstance(rows, dict):
            faults.append(Fault(f"{place}: {gpu_type}", "must be a mapping from jobs to rates"))
            continue
        for key, cells in rows.items():
            faults += _read_gavel_row(measurements, gpu_type, key, cells, f"{place}: {gpu_type}[{key!r}]")
    if not faults and not measurements.workloads:
        faults.append(Fault(str(place), "contains no rates"))
    raise_faults(faults)
    return measurements.profiles()


def _read_gavel_row(measurements: Measurements, gpu_type: str, key: str, cells: Any, where: str) -> list[Fault]:
    """Add the rates of one job on one type; returns the faults."""
    job = _gavel_key(key)
    if job is None:
        return [Fault(where, f"must look like ('ResNet-18 (batch size 16)', 2), with at most {MOST_WORKERS} workers")]
    if not isinstance(cells, dict) or "null" not in cells:
        return [Fault(where, "must be a mapping with the rate alone under null")]
    (name, size), faults = job, []
    is_spread = gpu_type.endswith(_SPREAD)
    gpu_type = gpu_type.removesuffix(_SPREAD)
    for other, value in cells.items():
        if other == "null":
            if fault := rate_fault(value):
                faults.append(Fault(f"{where}.null", fault))
            else:
                measurements.add(name, gpu_type, size, float(value), spread=is_spread)
            continue
        partner = _gavel_key(other)
        if partner is None or partner[1] != size:
            faults.append(Fault(f"{where}[{other!r}]", f"must name a job with {size} workers, too"))
        elif not isinstance(value, list) or len(value) != 2 or any(map(rate_fault, value)):
            faults.append(Fault(f"{where}[{other!r}]", "must be two rates, each a number of steps/s, 0 or more"))
        elif not is_spread and not measurements.add_pair(name, partner[0], gpu_type, size, *map(float, value)):
            faults.append(Fault(f"{where}[{other!r}]", f"contradicts the rates under {other}"))
    return faults


def _gavel_key(text: str) -> tuple[str, int] | None:
    """Parse model and workers of `('model', workers)`; None for other texts."""
    match = _KEY.fullmatch(text)
    if match is None or not 1 <= (size := int(match["size"][:9])) <= MOST_WORKERS:
        return None
    return match["name"], size
