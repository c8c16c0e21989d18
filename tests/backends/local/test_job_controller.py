"""Job controller with real processes: rollback, progress files, damaged records."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from levada.backends.local import procfs, supervisor, worker
from levada.backends.local.backend import LocalBackend
from levada.backends.local.job_state import GANG, ControllerState, Stage
from levada.backends.local.members import Member
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import op, place
from tests.backends.local.test_backend import LocalTest

PLAIN = (sys.executable, "-u", "-S", "-E", "-c")


class TestGang(LocalTest):
    """One job with one-line scripts."""

    def script(self, code: str, **fields: object) -> Launch:
        """A worker that runs *code*."""
        return self.launch(command=(*PLAIN, code), **fields)

    #: Uses the runtime; rank 1 never reaches it.
    HALF = (
        "import os, time, levada.runtime\n"
        "if os.environ['LEVADA_RANK'] == '1': time.sleep(600)\n"
        "for _ in levada.runtime.init().steps(10**9): time.sleep(0.01)"
    )

    async def test_a_partial_start_is_rolled_back(self) -> None:
        async with self.opened() as watch:
            launch = self.launch(command=(sys.executable, "-c", self.HALF), start_limit_s=3.0)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.ResizesInPlace, 1)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            start = op(OpKind.START, 3, place(0, "node-0", "0"), place(1, "node-0", "1"))
            await watch.backend.apply(start, launch)
            failed = await watch.wait_event(ev.OperationFailed, 3)
            assert failed.why == "2 of 2 workers were not up in time"
            assert await watch.backend.running() == {}
            assert [note.type for note in watch.notes] == ["undone"]
            assert not watch.events_of(ev.Running, 3)
            await watch.backend.apply(start, launch)
            await watch.wait_event(ev.OperationFailed, 3, count=2)

    async def test_a_script_that_waits_for_a_missing_peer_fails_the_job(self) -> None:
        """It counts as running, since its use of the runtime is unknown at its first start."""

        async with self.opened() as watch:
            launch = self.launch(command=(sys.executable, "-c", self.HALF), start_limit_s=1.5)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), launch)
            await watch.wait_until(lambda: watch.events_of(ev.JobsFailed, 1) or watch.events_of(ev.OperationFailed, 1))
            assert await watch.backend.running() == {}

    async def test_an_unwritable_record_fails_the_operation_not_the_job(self) -> None:
        async with self.opened() as watch:
            # Like on a full disk: the folder of the worker cannot be created.
            folder = self.home / "jobs" / "toy-1"
            folder.mkdir(parents=True)
            (folder / "workers").touch()
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script("pass"))
            failed = await watch.wait_event(ev.OperationFailed, 1)
            assert "could not be started" in failed.why
            assert not watch.events_of(ev.JobsFailed)

    async def test_files_written_by_a_script_count_as_checkpoint_and_progress(self) -> None:
        code = (
            "import os, pathlib, sys, time\n"
            "saves = pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'])\n"
            f"while not pathlib.Path({str(self.work)!r}, 'save').exists(): time.sleep(0.01)\n"
            "(saves / 'deep').mkdir(); (saves / 'deep' / 'model').write_text('x')\n"
            "(saves / 'toy-1.csv').write_text('epoch,epoch_time_sec\\n0,1.5\\n1,1.4\\n')\n"
            "time.sleep(600)"
        )

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script(code))
            await watch.wait_event(ev.Running, 1)
            self.write_control("save")
            await watch.wait_event(ev.CheckpointSaved, 1)
            progress = await watch.wait_event(ev.Progress)
            assert (progress.number.tolist(), progress.steps.tolist()) == ([7], [2.0])

    async def test_a_script_that_writes_constantly_is_reported_once_per_generation(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "_POLL_S", 0.02)
        monkeypatch.setattr(supervisor, "_LOOK_S", 0.05)
        code = (
            "import os, pathlib, time\n"
            "notes = pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'], 'notes')\n"
            "while True:\n    notes.open('a').write('.')\n    time.sleep(0.02)"
        )

        async with self.opened() as watch:
            backend = watch.backend
            assert isinstance(backend, LocalBackend)
            launch = self.script(code)
            for generation, node in ((1, "node-0"), (2, "node-1")):
                kind = OpKind.START if generation == 1 else OpKind.RESIZE
                await backend.apply(op(kind, generation, place(0, node, "0")), launch)
                await watch.wait_event(ev.CheckpointSaved, generation)
                for _ in range(3):
                    before = backend._supervisor.jobs["toy-1"].checkpoint
                    await watch.wait_until(lambda: backend._supervisor.jobs["toy-1"].checkpoint != before)  # noqa: B023  # awaited within the round
                assert len(watch.events_of(ev.CheckpointSaved, generation)) == 1

    async def test_workers_that_exit_voluntarily_together_do_not_fail_the_job(self) -> None:
        code = "import os, sys, time\nsys.exit(75) if os.environ['RANK'] == '1' else time.sleep(600)"

        async with self.opened() as watch:
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
            await watch.backend.apply(start, self.script(code))
            await watch.wait_event(ev.JobsLeft, 1)
            assert not watch.events_of(ev.JobsFailed)
            assert await watch.backend.running() == {}
            (exit_note,) = [note for note in watch.notes if note.type == "exit"]
            assert exit_note.text.startswith("worker 1 exited with code 75 (saved")
            assert "exit_code" not in exit_note.data, "the job has not ended"
        # The next server reports it again, since the report may have been lost.
        async with self.opened() as watch:
            await watch.wait_event(ev.JobsLeft, 1)

    async def test_a_stopped_worker_with_exit_code_0_does_not_finish_the_job(self) -> None:
        code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('up')\ntime.sleep(600)"

        async with self.opened() as watch:
            launch = self.script(code)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.Running, 1)
            await watch.backend.apply(op(OpKind.RESIZE, 2, place(0, "node-1", "0")), launch)
            await watch.wait_event(ev.Running, 2)
            assert not watch.events_of(ev.JobsFinished)

    async def test_a_clock_change_does_not_shorten_the_grace_period(self, monkeypatch: pytest.MonkeyPatch) -> None:
        code = (
            "import pathlib, signal, sys, time\n"
            f"here = pathlib.Path({str(self.work)!r})\n"
            "def leave(*_):\n"
            "    (here / 'saves').touch()\n"
            "    while not (here / 'saved').exists(): time.sleep(0.01)\n"
            "    sys.exit(75)\n"
            "signal.signal(signal.SIGTERM, leave)\n"
            "(here / 'up').touch()\n"
            "while True: time.sleep(0.01)"
        )

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script(code, grace_s=60.0))
            await watch.wait_event(ev.Running, 1)
            await watch.wait_until((self.work / "up").exists)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_until((self.work / "saves").exists)
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + 3600)
            # The backend polls the job again.
            watch.backend.step("toy-1")
            self.write_control("saved")
            await watch.wait_event(ev.Released, 2)
            assert [one.exit_code for one in watch.backend.workers("toy-1")] == [75]

    async def test_a_lost_worker_leaves_no_process(self) -> None:
        code = (
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
            "os.write(1, f'{os.getpid()}\\n'.encode())\ntime.sleep(600)"
        )

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script(code))
            await watch.wait_event(ev.Running, 1)
            log = self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "log"
            await watch.wait_until(lambda: log.read_text().count("\n") == 2)
            await self.lose("toy-1", 0)
            await watch.wait_event(ev.JobsFailed, 1)
            for pid in map(int, log.read_text().split()):
                process = procfs.look(pid)
                assert process is None or process.is_zombie

    async def test_parameter_servers_end_after_the_workers(self) -> None:
        code = (
            "import json, os, pathlib, time\n"
            "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
            "print(task['type'], task['index'], os.environ['CUDA_VISIBLE_DEVICES'])\n"
            f"while task['type'] == 'ps' or not pathlib.Path({str(self.work)!r}, 'go').exists(): time.sleep(0.01)"
        )

        async with self.opened() as watch:
            places = [place(0, "node-0", "3"), place(1, "node-1", "2"), place(0, "node-0", group="server", milli=0)]
            await watch.backend.apply(op(OpKind.START, 1, *places), self.script(code, framework="tensorflow"))
            await watch.wait_event(ev.Running, 1)
            assert (await watch.backend.running())["toy-1"].running == 2
            assert [one.index for one in watch.backend.workers("toy-1")] == [0, 1, -1]
            self.write_control("go")
            await watch.wait_event(ev.JobsFinished)
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            assert sorted(lines) == ["ps 0 ", "worker 0 3", "worker 1 2"]
            assert not watch.events_of(ev.JobsFailed)

    async def test_a_lost_parameter_server_fails_the_job(self) -> None:
        async with self.opened() as watch:
            places = [place(0, "node-0", "3"), place(0, "node-0", group="server", milli=0)]
            launch = self.script("import time; time.sleep(600)", framework="tensorflow")
            await watch.backend.apply(op(OpKind.START, 1, *places), launch)
            await watch.wait_event(ev.Running, 1)
            server = next(one.pid for one in watch.backend.workers("toy-1") if one.index == -1)
            assert server is not None
            os.kill(server, signal.SIGKILL)
            await watch.wait_event(ev.JobsFailed, 1)

    async def test_torchrun_and_horovod_get_their_arguments(self) -> None:
        """With fake programs that print their arguments."""
        tools = self.work / "bin"
        tools.mkdir()
        for name in ("torchrun", "horovodrun"):
            _program(
                tools / name,
                f'#!/bin/sh\necho {name} "$@"\nfor a in "$@"; do case $a in *discover_hosts.sh) "$a";; esac; done\n',
            )
        path = {"PATH": f"{tools}:{os.environ['PATH']}"}

        async with self.opened() as watch:
            places = [place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")]
            launch = self.launch(command=("train.py",), framework="torchrun", env=path)
            await watch.backend.apply(op(OpKind.START, 1, *places), launch)
            await watch.wait_event(ev.JobsFinished)
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            assert [line.split()[:3] for line in lines] == [
                ["torchrun", "--nnodes=2", "--nproc_per_node=2"],
                ["torchrun", "--nnodes=2", "--nproc_per_node=1"],
            ]
            launch = self.launch(command=("python", "train.py"), framework="horovod", env=path)
            await watch.backend.apply(op(OpKind.START, 1, *places, job="toy-2", number=8), launch)
            await watch.wait_event(ev.JobsFinished, count=2)
            lines = [line.text async for line in watch.backend.logs("toy-2")]
            assert lines[0].startswith("horovodrun -np 3 ")
            assert lines[1:] == ["127.0.0.1:3"]
            launch = self.launch(command=("sh", "-c", "sh /etc/mpi/discover_hosts.sh"), framework="mpi", env=path)
            await watch.backend.apply(op(OpKind.START, 1, *places, job="toy-3", number=9), launch)
            await watch.wait_event(ev.JobsFinished, count=3)
            assert [line.text async for line in watch.backend.logs("toy-3")] == ["127.0.0.1:3"]

    async def test_workers_of_an_unknown_job_are_reported_and_can_be_stopped(self) -> None:
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), self.launch())
            await self.wait_scripts(first, 3, 1)
        (self.home / "jobs" / "toy-1" / GANG).write_text("{")
        async with self.opened(2) as second:
            observed = (await second.backend.running())["toy-1"]
            assert (observed.number, observed.generation, observed.running) == (7, 3, 1)
            await second.backend.apply(op(OpKind.STOP, 4), None)
            await second.wait_event(ev.Released, 4)
            assert await second.backend.running() == {}

    async def test_with_a_damaged_record_generations_continue_above_the_saved_one(self) -> None:
        """A lower one would be rejected by its own checkpoint, or reuse the name of an earlier worker."""

        launch = self.script("import os; print('life', os.environ['LEVADA_GENERATION']); os._exit(1)")
        async with self.opened(1, leave=True) as first:
            for generation in (1, 5):
                await first.backend.apply(op(OpKind.START, generation, place(0, "node-0")), launch)
                await first.wait_event(ev.JobsFailed, generation)
        folder = self.home / "jobs" / "toy-1"
        (folder / "checkpoints" / "generation").write_text("9\n")
        for epoch, born in ((2, 10), (3, 11)):
            (folder / GANG).write_text("{")
            async with self.opened(epoch, leave=epoch < 3) as watch:
                # The generation of the engine may be lower than that of surviving workers.
                await watch.backend.apply(op(OpKind.START, 6, place(0, "node-0")), launch)
                await watch.wait_event(ev.JobsFailed, 6)
                assert [line.text async for line in watch.backend.logs("toy-1")] == [f"life {born}"]

    async def test_an_interrupted_start_without_processes_is_rolled_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the folder of a worker exists: the next supervisor cannot know whether its shim will start."""
        monkeypatch.setattr(worker, "_START_S", 0.2)
        record = ControllerState(
            job="toy-1",
            number=7,
            generation=1,
            kind=OpKind.START,
            launch=self.launch(),
            places=(place(0, "node-0", "0"),),
            world=1,
            last_world=1,
            stage=Stage.STARTING,
            since=time.time(),
            members=(Member(name="g1-0", index=0, node="node-0", devices=("0",)),),
        )
        record.save(self.home / "jobs" / "toy-1")
        folder = self.home / "jobs" / "toy-1" / "workers" / "g1-0"
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text("{}")

        async with self.opened() as watch:
            failed = await watch.wait_event(ev.OperationFailed, 1)
            assert failed.why == "worker 0 was never started"
            await watch.backend.apply(op(OpKind.START, 2, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 2)

    async def test_a_worker_sees_its_environment(self) -> None:
        code = "import json, os; print(json.dumps(dict(os.environ)))"

        async with self.opened() as watch:
            start = op(OpKind.START, 1, place(0, "node-1", "2"), batch=32)
            await watch.backend.apply(start, self.script(code, env={"LR": "0.1"}))
            await watch.wait_event(ev.JobsFinished)
            (line,) = [line.text async for line in watch.backend.logs("toy-1")]
            env = json.loads(line)
            assert (env["LEVADA_JOB"], env["LEVADA_NODE"], env["CUDA_VISIBLE_DEVICES"]) == ("toy-1", "node-1", "2")
            assert (env["LEVADA_BATCH_SIZE"], env["LR"], env["LEVADA_SERVER"]) == (
                "32",
                "0.1",
                "http://127.0.0.1:1",
            )
            assert Path(env["LEVADA_CHECKPOINT_DIR"]).is_dir()
            assert Path(env["LEVADA_STATE_DIR"]).is_dir()

    async def test_logs_survive_a_job_restart(self) -> None:
        async with self.opened() as watch:
            launch = self.script("import os; print('life', os.environ['LEVADA_GENERATION']); os._exit(1)")
            for generation in range(1, 6):
                await watch.backend.apply(op(OpKind.START, generation, place(0, "node-0")), launch)
                await watch.wait_event(ev.JobsFailed, generation)
            assert [line.text async for line in watch.backend.logs("toy-1")] == ["life 5"]
            assert [line.text async for line in watch.backend.logs("toy-1", previous=True)] == ["life 4"]
            folders = sorted(path.name for path in (self.home / "jobs" / "toy-1" / "workers").iterdir())
            assert folders == ["g3-0", "g4-0", "g5-0"], "older ones are removed"

    async def test_a_job_whose_folder_vanished_still_ends(self) -> None:
        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await self.wait_scripts(watch, 1, 1)
            await watch.wait_event(ev.Running, 1)
            pid = watch.backend.workers("toy-1")[0].pid
            assert pid is not None
            shutil.rmtree(self.home / "jobs" / "toy-1")
            os.kill(pid, signal.SIGKILL)
            await watch.wait_event(ev.JobsFailed, 1)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
