"""`levada profile`: measures jobs on a live server, and writes a throughput table that simulations read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import LONG_S, Server, State, connect
from levada.cli.output import TextOrJson, chatter, columns, data, data_json
from levada.cli.waiting import Waiting
from levada.errors import BadInput, LevadaError, did_you_mean

if TYPE_CHECKING:
    from levada.cli.profiling import Speed
    from levada.sdk.client import Client

#: What each of two jobs gets of the GPUs that they share.
_PART = 0.5


def register(app: typer.Typer) -> None:
    """Adds the verb `profile`."""
    app.command("profile")(profile)


def profile(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="A file of jobs: YAML or JSON.")],
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="N,…", help="Numbers of workers.", show_default="1, 2, 4 … in the job's range"),
    ] = None,
    gpu_types: Annotated[
        str | None,
        typer.Option("--gpu-types", metavar="TYPE,…", help="GPU types.", show_default="all that the job may use"),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, max=86400.0, help="How long each size is measured.")
    ] = 20.0,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Measure every two of the jobs on the same GPUs, too, half of them each.")
    ] = False,
    patience: Annotated[
        str, typer.Option("--patience", metavar="TIME", help="How long a job may take to run and make its first steps.")
    ] = "5m",
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="The table to write.", show_default="JOB-throughputs.csv"),
    ] = None,
    form: Annotated[TextOrJson, typer.Option("--format", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Measure how fast jobs are: each alone at several sizes and GPU types, one after the other.

    Copies of the jobs run on the server until their speed is known, and are cancelled then. The table that is written
    is what `levada sim run --throughputs` reads.
    """
    from levada.cli.documents import read_files
    from levada.cli.logs import seconds as read_seconds

    read = read_files(file)
    for document in read:
        if document.kind != "Job":
            raise BadInput.one(f"{document.kind} {document.name}: only jobs of kind Job can be measured", "kind")
    wanted = _numbers(sizes) if sizes is not None else None
    path = output or f"{read[0].name}-throughputs.csv"
    with connect(server, state, timeout_s=LONG_S) as client:
        bench = _Bench(client, path, seconds, read_seconds(patience, "--patience"))
        jobs = [(document, document.source) for document in read]
        kinds = gpu_types.split(",") if gpu_types is not None else None
        plans = [(document, *_plan(document, bench.gpus, wanted, kinds)) for document, _ in jobs]
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
        raise LevadaError("nothing could be measured; what stands in the way is said above")


def _plan(
    document: Any, gpus: Mapping[str, list[int]], sizes: list[int] | None, kinds: list[str] | None
) -> tuple[list[str | None], list[int]]:
    """GPU types and sizes to measure a job at; None is the type of jobs without GPUs."""
    spec = document.content.spec
    least, most = spec.workers.min, spec.workers.max
    if sizes is None:
        doubled = {1 << step for step in range(20)}
        sizes = sorted({least, most} | {size for size in doubled if least <= size <= most})
    if spec.gpus_per_worker == 0:
        return [None], sizes
    for kind in kinds or ():
        if kind not in gpus:
            raise BadInput.one(f"--gpu-types: there is no GPU type {kind}" + did_you_mean(kind, gpus, ", ".join(gpus)))
    types = kinds if kinds is not None else [kind for kind in gpus if not spec.gpu_types or kind in spec.gpu_types]
    if not types:
        raise BadInput.one(f"{document.name}: none of the GPU types that it may use is there", "spec.gpuTypes")
    return list(types), sizes


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 4096 for part in parts):
        raise BadInput.one(f"--sizes {text}: must be numbers of workers from 1 to 4096, as in 1,2,4")
    return sorted({int(part) for part in parts})


class _Bench:
    """Measurements one after the other, kept in a file as they come."""

    def __init__(self, client: Client, path: str, seconds: float, patience_s: float) -> None:
        from levada.sim.measurements import Measurements

        self.client, self.path, self.seconds, self.patience_s = client, path, seconds, patience_s
        #: GPUs of each node that can be used, by type, the largest first.
        self.gpus: dict[str, list[int]] = {}
        for node in client.nodes():
            for kind, amount in node["gpus"].items() if node["phase"] == "Ready" else ():
                self.gpus.setdefault(kind, []).append(amount["total"])
        for amounts in self.gpus.values():
            amounts.sort(reverse=True)
        self.rows: list[dict[str, Any]] = []
        self._kept = Measurements()
        #: What a resize costs, where the server knows it from jobs before.
        self._costs: dict[str, float] = {}

    def alone(self, source: dict[str, Any], types: Sequence[str | None], sizes: Sequence[int]) -> None:
        """Measures one job by itself."""
        name, per_worker = source["metadata"]["name"], float(source["spec"].get("gpusPerWorker", 1))
        for kind, size in self._fitting(name, types, sizes, per_worker):
            (speed,) = self._measure([(source, name)], kind, size, None)
            if speed.rate is not None:
                # Workers on more nodes than they need are slower than they could be.
                spread = kind is not None and speed.nodes > _fewest(self.gpus[kind], size * per_worker)
                self._kept.add(name, kind or "cpu", size, speed.rate, spread=spread)
                self.rows.append(_row(name, kind, size, speed, spread=spread))
                self._keep(name, speed.job)
            _tell(f"{name} with {size} on {kind or 'cpu'}", [speed])

    def together(self, a: dict[str, Any], b: dict[str, Any], types: Sequence[str | None], sizes: Sequence[int]) -> None:
        """Measures two jobs that share their GPUs."""
        names = [each["metadata"]["name"] for each in (a, b)]
        # Under names of their own: half a GPU would teach the server a wrong speed of the job itself.
        copies = [(a, f"{names[0]}-pair-a"), (b, f"{names[1]}-pair-b")]
        for kind, size in self._fitting(" + ".join(names), types, sizes, 1.0):
            speeds = self._measure(copies, kind, size, _PART)
            if speeds[0].places != speeds[1].places and all(speed.rate is not None for speed in speeds):
                speeds = [speed._replace(rate=None, why="they were not placed on the same GPUs") for speed in speeds]
            first, second = (speed.rate for speed in speeds)
            if first is not None and second is not None:
                self._kept.add_pair(names[0], names[1], kind or "cpu", size, first, second)
                row = _row(names[0], kind, size, speeds[0])
                self.rows.append({**row, "with": names[1], "with_steps_per_s": round(second, 6)})
                self._keep()
            _tell(f"{' and '.join(names)} with {size} each on the same {kind}", speeds)

    def _fitting(
        self, name: str, types: Sequence[str | None], sizes: Sequence[int], per_worker: float
    ) -> Iterator[tuple[str | None, int]]:
        for kind in types:
            for size in sizes:
                if kind is not None and size * per_worker > sum(self.gpus[kind]):
                    chatter(
                        f"{name} with {size} on {kind}: left out, there are {sum(self.gpus[kind])} GPUs of that type"
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
        what = f"{' and '.join(name for _, name in jobs)} with {size} on {kind or 'cpu'}"
        with Waiting(f"{what} is measured, {self.seconds:g} s once it trains"):
            return measure(self.client, copies, self.seconds, self.patience_s)

    def _keep(self, name: str = "", job: str = "") -> None:
        """Writes what there is: who interrupts a long measurement has the table so far."""
        from levada.sim.throughputs_table import table_text

        if job:
            costs = {cost["change"]: cost["seconds"] for cost in self.client.curve(job)["costs"]}
            if "resize" in costs:
                self._costs[name] = costs["resize"]
        # A table says it of all workloads or of none.
        self._kept.restart_s = self._costs if set(self._costs) == set(self._kept.workloads) else {}
        fresh = f"{self.path}.new"
        try:
            with open(fresh, "w", encoding="utf-8") as stream:
                stream.write(table_text(self._kept.profiles()))
            os.replace(fresh, self.path)
        except OSError as error:
            raise LevadaError(f"{self.path}: cannot be written: {error.strerror}; name another with --output") from None


def _fewest(amounts: Sequence[int], gpus: float) -> int:
    """Nodes that so many GPUs need at least."""
    for count in range(1, len(amounts) + 1):
        if sum(amounts[:count]) >= gpus:
            return count
    return len(amounts)


def _row(name: str, kind: str | None, size: int, speed: Speed, spread: bool = False) -> dict[str, Any]:
    assert speed.rate is not None
    row: dict[str, Any] = {"workload": name, "gpu_type": kind or "cpu", "workers": size}
    return {**row, "steps_per_s": round(speed.rate, 6), "nodes": speed.nodes, "spread": spread}


def _tell(what: str, speeds: Sequence[Speed]) -> None:
    faults = [speed.why for speed in speeds if speed.rate is None]
    rates = " and ".join(f"{speed.rate:.4g}" for speed in speeds if speed.rate is not None)
    chatter(f"{what}: {faults[0]}" if faults else f"{what}: {rates} steps/s")


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
        # Alone, how much faster than one worker; in a pair, which part of its speed it keeps.
        gain = f"{rate / one:.2f}x" if one and not other else f"{rate / own:.0%} kept" if own and other else "-"
        rows.append((name, kind, str(size), f"{rate:.4g}", gain, other or "-"))
    data(columns(("WORKLOAD", "GPU", "WORKERS", "STEPS/S", "SPEED-UP", "WITH"), rows))
    chatter(f"written to {bench.path}; levada sim run --throughputs {bench.path} reads it")


def _singles(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "with" not in row]
