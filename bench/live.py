"""A live server under load: submissions from many clients, and jobs that report progress."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.report import Printer, Record

#: Jobs that report every second, and the limit of CPU use in cores.
RUNNING, MOST_CORE = 1_000, 0.5
_MEASURED_S = 20.0

#: Writes the reports of all workers in place of their runtime. The workers sleep.
_REPORTERS = """
import pathlib, sys, time
from levada.runtime.report import READY, ProgressReport, Writer
writers = [Writer(folder) for folder in sorted(pathlib.Path(sys.argv[1]).glob('jobs/*/workers/*'))]
step = 0
while True:
    for writer in writers:
        writer.write(ProgressReport(flags=READY, generation=1, step=step, at=time.time()))
    if step == 0:
        print('up', flush=True)
    step += 1
    time.sleep(1)
"""

#: Submissions, clients, and limits: p99 in seconds, and peak memory of the server in MB.
SUBMISSIONS, CLIENTS, P99_S, MOST_MB = 10_000, 16, 0.1, 250.0
#: Limit of CPU seconds of a list of all jobs.
LIST_S = 0.2


def run(printer: Printer, *, quick: bool) -> None:
    """Measure submissions at full speed, then progress reports of many jobs."""
    printer.title("A live server")
    _submit(printer, 1_000 if quick else SUBMISSIONS)
    _report(printer, 100 if quick else RUNNING)


@contextlib.contextmanager
def _server(nodes: int, gpus: int) -> Iterator[tuple[Path, int]]:
    """Start a server; yields its folder and process id."""
    folder = Path(tempfile.mkdtemp(prefix="levada-bench-"))
    levada = [sys.executable, "-m", "levada"]
    sizes = ["--nodes", str(nodes), "--gpus-per-node", str(gpus), "--gpu-type", "a100"]
    subprocess.run([*levada, "up", "--state-dir", str(folder), "--port", "0", *sizes], check=True, capture_output=True)
    try:
        yield folder, int(json.loads((folder / "server.json").read_text())["pid"])
    finally:
        subprocess.run([*levada, "down", "--state-dir", str(folder), "--stop-jobs"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _report(printer: Printer, jobs: int) -> None:
    """Measure CPU use while *jobs* jobs report every second."""
    from levada.sdk.client import Client

    document = _document("reports", ["sleep", "100000"], workers=1, gpusPerWorker=1)
    with _server(jobs // 10, 10) as (folder, pid), Client(state=str(folder)) as client:
        client.submit([{**document, "metadata": {"name": f"reports-{n}"}} for n in range(jobs)])
        while any(job["phase"] != "Running" for job in client.jobs()):
            time.sleep(1.0)
        reporters = subprocess.Popen([sys.executable, "-c", _REPORTERS, str(folder)], stdout=subprocess.PIPE)
        try:
            assert reporters.stdout is not None
            reporters.stdout.readline()
            time.sleep(3.0)
            before, began = _cpu_s(pid), time.monotonic()
            time.sleep(_MEASURED_S)
            cores = (_cpu_s(pid) - before) / (time.monotonic() - began)
            reported = sum(job["progress"]["step"] > 0 for job in client.jobs())
        finally:
            reporters.kill()
            reporters.wait()
        fields = {"bench": "live", "kernels": "-", "jobs": jobs, "gpus": jobs, "samples": 1}
        limit = MOST_CORE * jobs / RUNNING
        note = f"{reported} of {jobs} jobs have progress; {_peak_mb(pid):.0f} MB"
        printer.add(
            Record(
                what="reports each second",
                unit="cores",
                p50=round(cores, 3),
                limit=limit,
                ok=cores <= limit and reported == jobs,
                note=note,
                **fields,
            )
        )


def _submit(printer: Printer, submissions: int) -> None:
    with _server(8, 4) as (folder, pid):
        document = _document("load", ["sleep", "100000"], workers={"min": 1, "max": 4})
        code = [sys.executable, "-m", "bench.clients", str(folder), str(submissions), str(CLIENTS)]
        before, delayed = _cpu_s(pid), _delay_s(pid)
        began = time.monotonic()
        output = subprocess.run([*code, json.dumps(document)], check=True, capture_output=True, text=True)
        wall_s = time.monotonic() - began
        *waits, clients_s = [float(line) for line in output.stdout.split()]
        assert len(waits) == submissions
        waits.sort()
        p99 = waits[int(0.99 * len(waits))]
        fields = {"bench": "live", "kernels": "-", "jobs": submissions, "gpus": 32, "samples": len(waits)}
        server_s, delay_s = _cpu_s(pid) - before, _delay_s(pid) - delayed
        note = (
            f"{submissions / wall_s:,.0f}/s; {wall_s:.1f} s: server CPU {server_s:.1f} s, clients CPU {clients_s:.1f} s"
        )
        note += f"; server waited {delay_s:.1f} s for a core; longest submission {waits[-1]:.3f} s"
        printer.add(
            Record(
                what="a submission",
                unit="s",
                p50=round(statistics.median(waits), 4),
                p99=round(p99, 4),
                limit=P99_S,
                ok=p99 <= P99_S,
                note=note,
                **fields,
            )
        )
        peak = _peak_mb(pid)
        printer.add(
            Record(what="server's memory", unit="MB", p50=round(peak, 1), limit=MOST_MB, ok=peak <= MOST_MB, **fields)
        )
        _list(printer, folder, fields)
        listed = _count_jobs(folder)
        assert listed == submissions, f"{submissions} accepted, {listed} listed"


def _list(printer: Printer, folder: Path, fields: dict[str, Any]) -> None:
    """Measure the CPU time of `levada ls`."""
    costs = sorted(_cpu_of([sys.executable, "-m", "levada", "ls", "--state-dir", str(folder)]) for _ in range(10))
    p50 = statistics.median(costs)
    printer.add(
        Record(
            what="levada ls",
            unit="s",
            p50=round(p50, 3),
            limit=LIST_S,
            ok=p50 <= LIST_S,
            note=f"CPU of the command; minimum {costs[0]:.3f} s",
            **{**fields, "samples": len(costs)},
        )
    )


def _cpu_of(command: list[str]) -> float:
    """Return the CPU seconds of a command, which must succeed."""
    # Like for users, Python may cache bytecode.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def _document(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**spec, "run": {"command": command}},
    }


def _count_jobs(folder: Path) -> int:
    from levada.sdk.client import Client

    with Client(state=str(folder)) as client:
        return len(client.jobs())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _delay_s(pid: int) -> float:
    """Return how long the main thread of a process was runnable without a core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
