"""A real server under load: submissions from many clients, and jobs that report progress."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.report import Printer, Record

#: Submissions, clients, and what is wanted: seconds at the 99th percentile, and MB of the server at most.
SUBMISSIONS, CLIENTS, P99_S, MOST_MB = 10_000, 16, 0.1, 500.0


def run(printer: Printer, *, quick: bool) -> None:
    """Submits jobs as fast as they are answered."""
    printer.title("A live server")
    submissions = 1_000 if quick else SUBMISSIONS
    folder = Path(tempfile.mkdtemp(prefix="levada-bench-"))
    levada = [sys.executable, "-m", "levada"]
    nodes = ["--nodes", "8", "--gpus-per-node", "4", "--gpu-type", "a100"]
    subprocess.run([*levada, "up", "--state", str(folder), "--port", "0", *nodes], check=True, capture_output=True)
    try:
        pid = int((folder / "server.json").read_text().split('"pid": ')[1].rstrip("}"))
        before = _cpu_s(pid)
        code = [sys.executable, "-m", "bench.live", str(folder), str(submissions), str(CLIENTS)]
        began = time.monotonic()
        told = subprocess.run(code, check=True, capture_output=True, text=True)
        took = time.monotonic() - began
        waits = [float(line) for line in told.stdout.split()]
        assert len(waits) == submissions
        waits.sort()
        p99 = waits[int(0.99 * len(waits))]
        known = {"bench": "live", "kernels": "-", "jobs": submissions, "gpus": 32, "samples": len(waits)}
        rate = f"{submissions / took:,.0f}/s; server {_cpu_s(pid) - before:.1f} s CPU"
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
        listed = _kept(folder)
        assert listed == submissions, f"{submissions} were accepted and {listed} are there"
    finally:
        subprocess.run([*levada, "down", "--state", str(folder), "--stop-jobs"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _kept(folder: Path) -> int:
    from levada.sdk.client import Client

    with Client(state=str(folder)) as client:
        return len(client.jobs())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def clients(folder: str, submissions: int, count: int) -> list[float]:
    """Seconds that each of so many submissions took, each client sending the next when it has its answer."""
    from levada.sdk.client import Client

    document = {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": "load"},
        "spec": {"workers": {"min": 1, "max": 4}, "run": {"command": ["sleep", "100000"]}},
    }
    waits: list[float] = []

    def work(share: int) -> None:
        with Client(state=folder) as client:
            mine = []
            for _ in range(share):
                began = time.monotonic()
                client.submit(document)
                mine.append(time.monotonic() - began)
        waits.extend(mine)

    shares = [submissions // count + (n < submissions % count) for n in range(count)]
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


if __name__ == "__main__":
    print("\n".join(f"{wait:.6f}" for wait in clients(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
