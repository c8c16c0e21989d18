"""Traces in files: which format a file has is seen from its content, and told by its name when it is written."""

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
from levada.sim.traces.sheet import rows_of, text_of
from levada.sim.traces.trace import Trace

#: How a trace is written, by format.
WRITERS: Mapping[str, Callable[[Trace], str | bytes]] = {
    "csv": table.render,
    "parquet": table.render_parquet,
    **{layout.format: partial(gavel.render, layout) for layout in gavel.LAYOUTS},
    "pollux": pollux.render,
    "philly": philly.render,
    "slurm": slurm.render,
}

_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".trace": "gavel", ".tsv": "gavel-jobs"}

#: Some millions of jobs; a device such as /dev/zero never ends by itself.
_MOST_BYTES = 512 * 2**20
#: The folder that holds other people's traces, with `gavel/` in it.
PEER_DATA = "LEVADA_PEER_DATA"


def read(name: str | Path) -> Trace:
    """The trace in a file; raises BadInput with every fault in it. See `find` for names that are no path."""
    return parse(read_bytes(str(find(name)), most=_MOST_BYTES), str(name))


def find(name: str | Path) -> Path:
    """The file that *name* means: a path, or else one under `gavel/` in the folder that LEVADA_PEER_DATA names."""
    path = Path(name)
    folder = os.environ.get(PEER_DATA, "")
    if folder and not path.is_absolute() and not path.exists():
        for parent in (Path(folder, "gavel"), Path(folder)):
            if (parent / path).exists():
                return parent / path
    return path


def parse(data: bytes, file: str) -> Trace:
    """The trace in *data*, the content of *file*; raises BadInput."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput.one(f"{file}: cannot be unpacked: {error}") from None
        if len(data) > _MOST_BYTES:
            raise BadInput.one(f"{file}: unpacked it is larger than {_MOST_BYTES >> 20} MiB; split it")
    trace = table.parse_parquet(file, data) if data[:4] == b"PAR1" else _parse_text(file, text_of(data, file))
    if not len(trace):
        raise BadInput.one(f"{file}: holds no jobs")
    return trace


def write(trace: Trace, name: str | Path, format: str | None = None) -> None:
    """Writes *trace*; without *format* the name's ending tells it. Raises BadInput, and leaves no half a file."""
    path = Path(name)
    chosen = format or _SUFFIXES.get(path.suffix)
    if chosen is None:
        raise BadInput.one(f"{name}: the ending {path.suffix!r} tells no format; formats: {', '.join(WRITERS)}")
    content = render(trace, chosen)
    try:
        path.write_bytes(content)
    except (OSError, ValueError) as error:
        raise BadInput.one(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def render(trace: Trace, format: str) -> bytes:
    """*trace* as a file of this format; raises BadInput."""
    if format not in WRITERS:
        raise BadInput.one(f"unknown format {format!r}{did_you_mean(format, WRITERS)}; formats: {', '.join(WRITERS)}")
    content = WRITERS[format](trace)
    return content.encode() if isinstance(content, str) else content


def _parse_text(file: str, text: str) -> Trace:
    first = next((line for _, line in rows_of(text)), "")
    if not first:
        raise BadInput.one(f"{file}: {'holds no jobs' if text.strip() else 'is empty'}")
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
    raise BadInput.one(f"{file}: is no trace that is known ({known}); it begins with {first.strip()[:60]!r}")
