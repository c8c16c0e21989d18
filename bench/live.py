"""A real server under load: submissions from many clients, and jobs that report progress."""

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

#: Jobs that run and report each second, and the part of a core that this may take.
RUNNING, MOST_CORE = 1_000, 0.5
_MEASURED_S = 20.0

#: Plays the runtime of all workers: it writes their reports. The workers themselves sleep.
_CROWD = """
import pathlib, sys, time
from levada.runtime.report import READY, Report, Writer
writers = [Writer(folder) for folder in sorted(pathlib.Path(sys.argv[1]).glob('jobs/*/workers/*'))]
step = 0
while True:
    for writer in writers:
        writer.write(Report(flags=READY, generation=1, step=step, at=time.time()))
    if step == 0:
        print('up', flush=True)
    step += 1
    time.sleep(1)
"""

#: Submissions, clients, and what is wanted: seconds at the 99th percentile, and MB of the server at most.
SUBMISSIONS, CLIENTS, P99_S, MOST_MB = 10_000, 16, 0.1, 500.0
#: CPU seconds that a list of all of them may take.
LIST_S = 0.2


def run(printer: Printer, *, quick: bool) -> None:
    """Submits jobs as fast as they are answered; then lets many run and report."""
    printer.title("A live server")
    _submit(printer, 1_000 if quick else SUBMISSIONS)
    _report(printer, 100 if quick else RUNNING)


@contextlib.contextmanager
def _server(nodes: int, gpus: int) -> Iterator[tuple[Path, int]]:
    """The folder and the process of a server."""
    folder = Path(tempfile.mkdtemp(prefix="levada-bench-"))
    levada = [sys.executable, "-m", "levada"]
    sizes = ["--nodes", str(nodes), "--gpus-per-node", str(gpus), "--gpu-type", "a100"]
    subprocess.run([*levada, "up", "--state", str(folder), "--port", "0", *sizes], check=True, capture_output=True)
    try:
        yield folder, int(json.loads((folder / "server.json").read_text())["pid"])
    finally:
        subprocess.run([*levada, "down", "--state", str(folder), "--stop-jobs"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _report(printer: Printer, jobs: int) -> None:
    """What it costs to hear of so many jobs each second."""
    from levada.sdk.client import Client

    document = _document("reports", ["sleep", "100000"], workers=1, gpusPerWorker=1)
    with _server(jobs // 10, 10) as (folder, pid), Client(state=str(folder)) as client:
        client.submit([{**document, "metadata": {"name": f"reports-{n}"}} for n in range(jobs)])
        while any(job["phase"] != "Running" for job in client.jobs()):
            time.sleep(1.0)
        crowd = subprocess.Popen([sys.executable, "-c", _CROWD, str(folder)], stdout=subprocess.PIPE)
        try:
            assert crowd.stdout is not None
            crowd.stdout.readline()
            time.sleep(3.0)
            before, began = _cpu_s(pid), time.monotonic()
            time.sleep(_MEASURED_S)
            part = (_cpu_s(pid) - before) / (time.monotonic() - began)
            heard = sum(job["progress"]["step"] > 0 for job in client.jobs())
        finally:
            crowd.kill()
            crowd.wait()
        known = {"bench": "live", "kernels": "-", "jobs": jobs, "gpus": jobs, "samples": 1}
        limit = MOST_CORE * jobs / RUNNING
        note = f"{heard} of {jobs} jobs were heard of; {_peak_mb(pid):.0f} MB"
        printer.add(
            Record(
                what="reports each second",
                unit="cores",
                p50=round(part, 3),
                limit=limit,
                ok=part <= limit and heard == jobs,
                note=note,
                **known,
            )
        )


def _submit(printer: Printer, submissions: int) -> None:
    with _server(8, 4) as (folder, pid):
        document = _document("load", ["sleep", "100000"], workers={"min": 1, "max": 4})
        code = [sys.executable, "-m", "bench.clients", str(folder), str(submissions), str(CLIENTS)]
        before, delayed = _cpu_s(pid), _delay_s(pid)
        began = time.monotonic()
        told = subprocess.run([*code, json.dumps(document)], check=True, capture_output=True, text=True)
        took = time.monotonic() - began
        *waits, theirs = [float(line) for line in told.stdout.split()]
        assert len(waits) == submissions
        waits.sort()
        p99 = waits[int(0.99 * len(waits))]
        known = {"bench": "live", "kernels": "-", "jobs": submissions, "gpus": 32, "samples": len(waits)}
        ours, waited = _cpu_s(pid) - before, _delay_s(pid) - delayed
        rate = f"{submissions / took:,.0f}/s; {took:.1f} s: CPU of server {ours:.1f} s, of clients {theirs:.1f} s"
        rate += f"; server's loop waited {waited:.1f} s for a core; longest {waits[-1]:.3f} s"
        printer.add(
            Record(
                what="a submission",
                unit="s",
                p50=round(statistics.median(waits), 4),
                p99=round(p99, 4),
                limit=P99_S,
                ok=p99 <= P99_S,
                note=rate,
                **known,
            )
        )
        peak = _peak_mb(pid)
        printer.add(
            Record(what="server's memory", unit="MB", p50=round(peak, 1), limit=MOST_MB, ok=peak <= MOST_MB, **known)
        )
        _list(printer, folder, known)
        listed = _kept(folder)
        assert listed == submissions, f"{submissions} were accepted and {listed} are there"


def _list(printer: Printer, folder: Path, known: dict[str, Any]) -> None:
    """What `levada ls` costs whoever calls it."""
    costs = sorted(_cpu_of([sys.executable, "-m", "levada", "ls", "--state-dir", str(folder)]) for _ in range(10))
    p50 = statistics.median(costs)
    printer.add(
        Record(
            what="levada ls",
            unit="s",
            p50=round(p50, 3),
            limit=LIST_S,
            ok=p50 <= LIST_S,
            note=f"CPU of the command; at best {costs[0]:.3f} s",
            **{**known, "samples": len(costs)},
        )
    )


def _cpu_of(command: list[str]) -> float:
    """CPU seconds of a process, which must end well."""
    # As users have it: what Python has compiled once it keeps.
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


def _kept(folder: Path) -> int:
    from levada.sdk.client import Client

    with Client(state=str(folder)) as client:
        return len(client.jobs())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _delay_s(pid: int) -> float:
    """For how long the main thread of a process was ready to run, and others had the machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
