"""Trace files: format detected from content, chosen by suffix when writing."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from levada.errors import BadInput, did_you_mean
from levada.jobfile.read import read_bytes
from levada.sim.traces import gavel, philly, pollux, slurm, table
from levada.sim.traces.sheet import data_lines, decode_text
from levada.sim.traces.trace import Trace

#: Renderers by format.
WRITERS: Mapping[str, Callable[[Trace], str | bytes]] = {
    "csv": table.render,
    "parquet": table.render_parquet,
    **{layout.format: partial(gavel.render, layout) for layout in gavel.LAYOUTS},
    "pollux": pollux.render,
    "philly": philly.render,
    "slurm": slurm.render,
}

_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".trace": "gavel", ".tsv": "gavel-jobs"}

#: Some millions of jobs; the limit also stops at a device such as /dev/zero.
_MOST_BYTES = 512 * 2**20
#: Environment variable: a folder with published traces, which contains `gavel/`.
PEER_DATA = "LEVADA_PEER_DATA"


def read(name: str | Path) -> Trace:
    """Read a trace; raises BadInput with all faults. `find` resolves *name*."""
    return parse(read_bytes(str(find(name)), most=_MOST_BYTES), str(name))


def find(name: str | Path) -> Path:
    """Resolve *name*: a path, or a file below LEVADA_PEER_DATA/gavel or LEVADA_PEER_DATA."""
    path = Path(name)
    folder = os.environ.get(PEER_DATA, "")
    if folder and not path.is_absolute() and not path.exists():
        for parent in (Path(folder, "gavel"), Path(folder)):
            if (parent / path).exists():
                return parent / path
    return path


def parse(data: bytes, file: str) -> Trace:
    """Parse *data*, the content of *file*; raises BadInput."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput.one(f"{file}: cannot be decompressed: {error}") from None
        if len(data) > _MOST_BYTES:
            raise BadInput.one(f"{file}: is larger than {_MOST_BYTES >> 20} MiB after decompression; split it")
    trace = table.parse_parquet(file, data) if data[:4] == b"PAR1" else _parse_text(file, decode_text(data, file))
    if not len(trace):
        raise BadInput.one(f"{file}: contains no jobs")
    return trace


def write(trace: Trace, name: str | Path, format: str | None = None) -> None:
    """Write *trace*; without *format* the suffix of *name* decides. Raises BadInput."""
    path = Path(name)
    chosen = format or _SUFFIXES.get(path.suffix)
    if chosen is None:
        raise BadInput.one(f"{name}: unknown suffix {path.suffix!r}; choose a format: {', '.join(WRITERS)}")
    content = render(trace, chosen)
    try:
        path.write_bytes(content)
    except (OSError, ValueError) as error:
        raise BadInput.one(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def render(trace: Trace, format: str) -> bytes:
    """Render *trace* in this format; raises BadInput."""
    if format not in WRITERS:
        raise BadInput.one(f"unknown format {format!r}; formats: {', '.join(WRITERS)}{did_you_mean(format, WRITERS)}")
    content = WRITERS[format](trace)
    return content.encode() if isinstance(content, str) else content


def _parse_text(file: str, text: str) -> Trace:
    first = next((line for _, line in data_lines(text)), "")
    if not first:
        raise BadInput.one(f"{file}: {'contains no jobs' if text.strip() else 'is empty'}")
    if "\t" in first:
        layout = gavel.detect(file, text)
        return gavel.parse(layout, file, text)
    if "|" in first:
        return slurm.parse(file, text)
    names = {name.strip() for name in first.split(",")}
    if "arrival_s" in names:
        return table.parse(file, text)
    if {"application", "num_replicas"} <= names:
        return pollux.parse(file, text)
    if {"timestamp", "num_gpus"} <= names:
        return philly.parse(file, text)
    known = "Gavel, Shockwave, Pollux or Sia, Philly, sacct --parsable2, Levada's CSV or parquet"
    raise BadInput.one(f"{file}: unknown trace format (known: {known}); it begins with {first.strip()[:60]!r}")
