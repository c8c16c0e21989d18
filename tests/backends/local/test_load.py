"""A thousand jobs report each second, and all of them are heard; `python -m bench live` says what that costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import pretend_nodes
from levada.backends.local.record import Record, Stage
from levada.backends.local.roster import Member
from levada.backends.protocol import Launch
from levada.core.events import Progress
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind

JOBS = 1000

#: One process that plays the shims and workers of all jobs: it holds their locks and writes their reports.
CROWD = """
import fcntl, json, os, pathlib, sys, time
from levada.runtime.report import IN_PROCESS, READY, Report, Writer
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
        writer.write(Report(flags=READY | IN_PROCESS, generation=1, step=step, at=time.time()))
    if step == 0:
        print('up', flush=True)
    step += 1
    time.sleep(0.5)
"""


def test_of_a_thousand_jobs_all_are_heard(tmp_path: Path) -> None:
    for number in range(JOBS):
        job = f"job-{number:04d}"
        worker = tmp_path / "jobs" / job / "workers" / "g1-0"
        worker.mkdir(parents=True)
        (worker / "spec.json").write_text("{}")
        record = Record(
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
    command = [sys.executable, "-c", CROWD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "up\n"
            told = asyncio.run(_heard(tmp_path))
        finally:
            crowd.kill()
    assert len(told) == JOBS


async def _heard(home: Path) -> set[int]:
    """Which jobs made progress."""
    backend = LocalBackend(home, pretend_nodes([{"gpu": 4}]))
    await backend.open(1)
    told: set[int] = set()
    try:
        async with asyncio.timeout(60):
            async for report in backend.reports():
                for event in report.events:
                    if isinstance(event, Progress):
                        told.update(event.number.tolist())
                if len(told) == JOBS:
                    break
        return told
    finally:
        await backend.close()
