"""Load: 1,000 jobs report every second, and no report is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.backends.local.job_state import ControllerState, Stage
from levada.backends.local.members import Member
from levada.backends.protocol import Launch
from levada.core.events import Progress
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind

JOBS = 1000

#: One process that simulates the shims and workers of all jobs: it holds their locks and writes their reports.
SIMULATED_WORKERS = """
import fcntl, json, os, pathlib, sys, time
from levada.runtime.report import IN_PROCESS, READY, ProgressReport, Writer
folders = sorted(pathlib.Path(sys.argv[1]).glob('jobs/*/workers/*'))
locks = []
for folder in folders:
    lock = open(folder / 'lock', 'w')
    fcntl.lockf(lock, fcntl.LOCK_EX)
    locks.append(lock)
    (folder / 'run.json').write_text(json.dumps({'worker': os.getpid()}))
writers = [Writer(folder) for folder in folders]
step = 0
while True:
    for writer in writers:
        writer.write(ProgressReport(flags=READY | IN_PROCESS, generation=1, step=step, at=time.time()))
    if step == 0:
        print('up', flush=True)
    step += 1
    time.sleep(0.5)
"""


async def test_reports_of_1000_jobs_all_arrive(tmp_path: Path) -> None:
    for number in range(JOBS):
        job = f"job-{number:04d}"
        worker = tmp_path / "jobs" / job / "workers" / "g1-0"
        worker.mkdir(parents=True)
        (worker / "spec.json").write_text("{}")
        record = ControllerState(
            job=job,
            number=number,
            generation=1,
            kind=OpKind.START,
            launch=Launch(command=("true",)),
            places=(WorkerPlace(index=0, node="node-0", devices=("0",)),),
            world=1,
            last_world=1,
            stage=Stage.RUNNING,
            members=(Member(name="g1-0", index=0, node="node-0", devices=("0",)),),
            told="Running",
        )
        record.save(tmp_path / "jobs" / job)
    command = [sys.executable, "-c", SIMULATED_WORKERS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "up\n"
            reported = await _jobs_with_progress(tmp_path)
        finally:
            crowd.kill()
    assert len(reported) == JOBS


async def _jobs_with_progress(home: Path) -> set[int]:
    """Numbers of jobs with a progress report."""
    backend = LocalBackend(home, pretend_nodes([{"gpu": 4}]))
    await backend.open(1)
    reported: set[int] = set()
    try:
        async with asyncio.timeout(60):
            async for report in backend.reports():
                for event in report.events:
                    if isinstance(event, Progress):
                        reported.update(event.number.tolist())
                if len(reported) == JOBS:
                    break
        return reported
    finally:
        await backend.close()
