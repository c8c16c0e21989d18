"""`levada profile`: measure jobs on a live server; write a throughput table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import LONG_S, Server, StateDir, connect
from levada.cli.output import TextOrJson, columns, data, data_json, message
from levada.cli.spinner import Spinner
from levada.errors import BadInput, LevadaError, did_you_mean

if TYPE_CHECKING:
    from levada.cli.profiling import Speed
    from levada.sdk.client import Client

#: Fraction of a GPU for each job of a pair.
_GPU_FRACTION = 0.5


def register(app: typer.Typer) -> None:
    """Add the verb `profile`."""
    app.command("profile")(profile)


def profile(  # noqa: PLR0913 - one parameter per flag
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="Job file: YAML or JSON.")],
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="N,…",
            help="Numbers of workers to measure.",
            show_default="1,2,4,… in the range of the job",
        ),
    ] = None,
    gpu_types: Annotated[
        str | None,
        typer.Option(
            "--gpu-types", metavar="TYPE,…", help="GPU types to measure.", show_default="all that the job allows"
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, max=86400.0, help="Measuring time per size.")] = 20.0,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also measure each pair of jobs on shared GPUs, half a GPU per worker.")
    ] = False,
    patience: Annotated[
        str, typer.Option("--patience", metavar="TIME", help="Time limit for a job to start and report steps.")
    ] = "5m",
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Throughput table to write.", show_default="JOB-throughputs.csv"),
    ] = None,
    form: Annotated[TextOrJson, typer.Option("--format", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Measure the speed of jobs by size and GPU type.

    Copies of the jobs run on the server one after the other; each is cancelled when its speed is known. The table is
    input for `levada sim run --throughputs`.
    """
    from levada.cli.documents import read_files
    from levada.cli.logs import seconds as read_seconds

    documents = read_files(file)
    for document in documents:
        if document.kind != "Job":
            raise BadInput.one(f"{document.kind} {document.name}: cannot be measured; must be of kind Job", "kind")
    worker_counts = _numbers(sizes) if sizes is not None else None
    path = output or f"{documents[0].name}-throughputs.csv"
    with connect(server, state, timeout_s=LONG_S) as client:
        bench = _Bench(client, path, seconds, read_seconds(patience, "--patience"))
        jobs = [(document, document.source) for document in documents]
        kinds = gpu_types.split(",") if gpu_types is not None else None
        plans = [(document, *_plan(document, bench.gpus, worker_counts, kinds)) for document, _ in jobs]
        try:
            for (_, source), (_, types, counts) in zip(jobs, plans, strict=True):
                bench.alone(source, types, counts)
            if pairs:
                for at, other in combinations_with_replacement(range(len(jobs)), 2):
                    types = [kind for kind in plans[at][1] if kind in plans[other][1] and kind is not None]
                    counts = [size for size in plans[at][2] if size in plans[other][2]]
                    bench.together(jobs[at][1], jobs[other][1], types, counts)
        finally:
            _show(bench, form)
    if not bench.rows:
        raise LevadaError("no speed could be measured; see the messages above")


def _plan(
    document: Any, gpus: Mapping[str, list[int]], sizes: list[int] | None, kinds: list[str] | None
) -> tuple[list[str | None], list[int]]:
    """Return the GPU types and sizes to measure; the type is None for a job without GPUs."""
    spec = document.content.spec
    least, most = spec.workers.min, spec.workers.max
    if sizes is None:
        doubled = {1 << step for step in range(20)}
        sizes = sorted({least, most} | {size for size in doubled if least <= size <= most})
    if spec.gpus_per_worker == 0:
        return [None], sizes
    for kind in kinds or ():
        if kind not in gpus:
            raise BadInput.one(f"--gpu-types: unknown GPU type {kind}" + did_you_mean(kind, gpus, ", ".join(gpus)))
    types = kinds if kinds is not None else [kind for kind in gpus if not spec.gpu_types or kind in spec.gpu_types]
    if not types:
        raise BadInput.one(
            f"{document.name}: the cluster has none of its GPU types ({', '.join(spec.gpu_types)})", "spec.gpuTypes"
        )
    return list(types), sizes


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 4096 for part in parts):
        raise BadInput.one(f"--sizes {text}: must be numbers of workers from 1 to 4096, e.g. 1,2,4")
    return sorted({int(part) for part in parts})


class _Bench:
    """Run measurements one after the other and write the table after each."""

    def __init__(self, client: Client, path: str, seconds: float, patience_s: float) -> None:
        from levada.sim.measurements import Measurements

        self.client, self.path, self.seconds, self.patience_s = client, path, seconds, patience_s
        #: GPUs of each ready node, by type, largest node first.
        self.gpus: dict[str, list[int]] = {}
        for node in client.nodes():
            for kind, amount in node["gpus"].items() if node["phase"] == "Ready" else ():
                self.gpus.setdefault(kind, []).append(amount["total"])
        for amounts in self.gpus.values():
            amounts.sort(reverse=True)
        self.rows: list[dict[str, Any]] = []
        self._measurements = Measurements()
        #: Seconds per resize, by workload, if the server has measured it.
        self._resize_s: dict[str, float] = {}

    def alone(self, source: dict[str, Any], types: Sequence[str | None], sizes: Sequence[int]) -> None:
        """Measure one job alone."""
        name, per_worker = source["metadata"]["name"], float(source["spec"].get("gpusPerWorker", 1))
        for kind, size in self._fitting(name, types, sizes, per_worker):
            (speed,) = self._measure([(source, name)], kind, size, None)
            if speed.rate is not None:
                # Workers on more nodes than necessary are slower.
                spread = kind is not None and speed.nodes > _fewest(self.gpus[kind], size * per_worker)
                self._measurements.add(name, kind or "cpu", size, speed.rate, spread=spread)
                self.rows.append(_row(name, kind, size, speed, spread=spread))
                self._write(name, speed.job)
            _report(f"{name}, {size} x {kind or 'cpu'}", [speed])

    def together(self, a: dict[str, Any], b: dict[str, Any], types: Sequence[str | None], sizes: Sequence[int]) -> None:
        """Measure two jobs on shared GPUs."""
        names = [source["metadata"]["name"] for source in (a, b)]
        # With their own names: the server would learn the speed on half a GPU as that of the job.
        copies = [(a, f"{names[0]}-pair-a"), (b, f"{names[1]}-pair-b")]
        for kind, size in self._fitting(" + ".join(names), types, sizes, 1.0):
            speeds = self._measure(copies, kind, size, _GPU_FRACTION)
            if speeds[0].places != speeds[1].places and all(speed.rate is not None for speed in speeds):
                speeds = [
                    speed._replace(rate=None, why="the two jobs were not placed on the same GPUs") for speed in speeds
                ]
            first, second = (speed.rate for speed in speeds)
            if first is not None and second is not None:
                self._measurements.add_pair(names[0], names[1], kind or "cpu", size, first, second)
                row = _row(names[0], kind, size, speeds[0])
                self.rows.append({**row, "with": names[1], "with_steps_per_s": round(second, 6)})
                self._write()
            _report(f"{' and '.join(names)}, {size} x {kind} shared", speeds)

    def _fitting(
        self, name: str, types: Sequence[str | None], sizes: Sequence[int], per_worker: float
    ) -> Iterator[tuple[str | None, int]]:
        for kind in types:
            for size in sizes:
                if kind is not None and size * per_worker > sum(self.gpus[kind]):
                    message(
                        f"{name}, {size} x {kind}: skipped: the cluster has {sum(self.gpus[kind])} GPUs of that type"
                    )
                else:
                    yield kind, size

    def _measure(
        self, jobs: Sequence[tuple[dict[str, Any], str]], kind: str | None, size: int, part: float | None
    ) -> list[Speed]:
        from levada.cli.profiling import copy_of, measure

        limit_s = 2 * self.patience_s + 4 * self.seconds
        copies = [
            copy_of(source, workers=size, gpu_type=kind, part=part, limit_s=limit_s, name=name) for source, name in jobs
        ]
        names = " and ".join(name for _, name in jobs)
        with Spinner(f"measuring {names}, {size} x {kind or 'cpu'}: {self.seconds:g} s after its first steps"):
            return measure(self.client, copies, self.seconds, self.patience_s)

    def _write(self, name: str = "", job: str = "") -> None:
        """Write the table so far; it survives an interrupt."""
        from levada.sim.throughputs_table import table_text

        if job:
            costs = {cost["change"]: cost["seconds"] for cost in self.client.curve(job)["costs"]}
            if "resize" in costs:
                self._resize_s[name] = costs["resize"]
        # A table has restart costs for all workloads or for none.
        self._measurements.restart_s = (
            self._resize_s if set(self._resize_s) == set(self._measurements.workloads) else {}
        )
        fresh = f"{self.path}.new"
        try:
            with open(fresh, "w", encoding="utf-8") as stream:
                stream.write(table_text(self._measurements.profiles()))
            os.replace(fresh, self.path)
        except OSError as error:
            raise LevadaError(
                f"cannot write {self.path}: {error.strerror}; choose another file with --output"
            ) from None


def _fewest(amounts: Sequence[int], gpus: float) -> int:
    """Return the minimum number of nodes for *gpus* GPUs."""
    for count in range(1, len(amounts) + 1):
        if sum(amounts[:count]) >= gpus:
            return count
    return len(amounts)


def _row(name: str, kind: str | None, size: int, speed: Speed, spread: bool = False) -> dict[str, Any]:
    assert speed.rate is not None
    row: dict[str, Any] = {"workload": name, "gpu_type": kind or "cpu", "workers": size}
    return {**row, "steps_per_s": round(speed.rate, 6), "nodes": speed.nodes, "spread": spread}


def _report(case: str, speeds: Sequence[Speed]) -> None:
    faults = [speed.why for speed in speeds if speed.rate is None]
    rates = " and ".join(f"{speed.rate:.4g}" for speed in speeds if speed.rate is not None)
    message(f"{case}: not measured: {faults[0]}" if faults else f"{case}: {rates} steps/s")


def _show(bench: _Bench, form: TextOrJson) -> None:
    if form is TextOrJson.JSON:
        data_json({"file": bench.path if bench.rows else None, "rows": bench.rows})
        return
    if not bench.rows:
        return
    alone = {(row["workload"], row["gpu_type"], row["workers"]): row["steps_per_s"] for row in _singles(bench.rows)}
    rows = []
    for row in bench.rows:
        name, kind, size, rate = (row[key] for key in ("workload", "gpu_type", "workers", "steps_per_s"))
        one, own = alone.get((name, kind, 1)), alone.get((name, kind, size))
        other = row.get("with")
        # Alone: speed-up over one worker; in a pair: fraction of the speed alone.
        gain = f"{rate / one:.2f}x" if one and not other else f"{rate / own:.0%} kept" if own and other else "-"
        rows.append((name, kind, str(size), f"{rate:.4g}", gain, other or "-"))
    data(columns(("WORKLOAD", "GPU", "WORKERS", "STEPS/S", "SPEED-UP", "WITH"), rows))
    message(f"wrote {bench.path}; use it with `levada sim run --throughputs {bench.path}`")


def _singles(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "with" not in row]
