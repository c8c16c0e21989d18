"""What only the local backend does: gangs that start half, files that speak for scripts, frameworks, damage."""

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
from levada.backends.local.record import GANG, Record, Stage
from levada.backends.local.roster import Member
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import op, place
from tests.backends.local.test_backend import LocalTest

PLAIN = (sys.executable, "-u", "-S", "-E", "-c")


class TestGang(LocalTest):
    """One job at a time, with scripts of one line."""

    def script(self, code: str, **fields: object) -> Launch:
        """A worker that runs *code*."""
        return self.launch(command=(*PLAIN, code), **fields)

    #: Uses the runtime; rank 1 never gets so far.
    HALF = (
        "import os, time, levada.runtime\n"
        "if os.environ['LEVADA_RANK'] == '1': time.sleep(600)\n"
        "for _ in levada.runtime.init().steps(10**9): time.sleep(0.01)"
    )

    def test_a_gang_that_starts_half_is_rolled_back(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = self.launch(command=(sys.executable, "-c", self.HALF), start_limit_s=3.0)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
                await watch.for_(ev.ResizesInPlace, 1)
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                start = op(OpKind.START, 3, place(0, "node-0", "0"), place(1, "node-0", "1"))
                await watch.backend.apply(start, launch)
                failed = await watch.for_(ev.OperationFailed, 3)
                assert failed.why == "2 of 2 workers were not up in time"
                assert await watch.backend.running() == {}
                assert [note.type for note in watch.notes] == ["undone"]
                assert not watch.all(ev.Running, 3)
                await watch.backend.apply(start, launch)
                await watch.for_(ev.OperationFailed, 3, count=2)

        self.run(story)

    def test_a_script_that_turns_out_to_wait_for_a_peer_for_ever_breaks_the_job(self) -> None:
        """Nobody knew at its first start that it uses the runtime: it seemed to be up."""

        async def story() -> None:
            async with self.opened() as watch:
                launch = self.launch(command=(sys.executable, "-c", self.HALF), start_limit_s=1.5)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), launch)
                await watch.until(lambda: watch.all(ev.JobsFailed, 1) or watch.all(ev.OperationFailed, 1))
                assert await watch.backend.running() == {}

        self.run(story)

    def test_a_machine_that_can_keep_no_record_fails_the_operation_and_not_the_job(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                # As on a full disk: the folder of the worker cannot be made.
                folder = self.home / "jobs" / "toy-1"
                folder.mkdir(parents=True)
                (folder / "workers").touch()
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script("pass"))
                failed = await watch.for_(ev.OperationFailed, 1)
                assert "could not be started" in failed.why
                assert not watch.all(ev.JobsFailed)

        self.run(story)

    def test_what_a_script_writes_counts_as_saved_and_as_progress(self) -> None:
        code = (
            "import os, pathlib, sys, time\n"
            "saves = pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'])\n"
            f"while not pathlib.Path({str(self.here)!r}, 'save').exists(): time.sleep(0.01)\n"
            "(saves / 'deep').mkdir(); (saves / 'deep' / 'model').write_text('x')\n"
            "(saves / 'toy-1.csv').write_text('epoch,epoch_time_sec\\n0,1.5\\n1,1.4\\n')\n"
            "time.sleep(600)"
        )

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script(code))
                await watch.for_(ev.Running, 1)
                self.say("save")
                await watch.for_(ev.CheckpointSaved, 1)
                progress = await watch.for_(ev.Progress)
                assert (progress.number.tolist(), progress.steps.tolist()) == ([7], [2.0])

        self.run(story)

    def test_a_script_that_writes_all_the_time_is_told_of_once_for_each_generation(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "_POLL_S", 0.02)
        monkeypatch.setattr(supervisor, "_LOOK_S", 0.05)
        code = (
            "import os, pathlib, time\n"
            "notes = pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'], 'notes')\n"
            "while True:\n    notes.open('a').write('.')\n    time.sleep(0.02)"
        )

        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                assert isinstance(backend, LocalBackend)
                launch = self.script(code)
                for generation, node in ((1, "node-0"), (2, "node-1")):
                    kind = OpKind.START if generation == 1 else OpKind.RESIZE
                    await backend.apply(op(kind, generation, place(0, node, "0")), launch)
                    await watch.for_(ev.CheckpointSaved, generation)
                    for _ in range(3):
                        before = backend._supervisor.jobs["toy-1"].kept
                        await watch.until(lambda: backend._supervisor.jobs["toy-1"].kept != before)  # noqa: B023  # awaited within the round
                    assert len(watch.all(ev.CheckpointSaved, generation)) == 1

        self.run(story)

    def test_workers_that_save_and_leave_by_themselves_at_once_are_told_of_and_do_not_break_the_job(self) -> None:
        code = "import os, sys, time\nsys.exit(75) if os.environ['RANK'] == '1' else time.sleep(600)"

        async def story() -> None:
            async with self.opened() as watch:
                start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
                await watch.backend.apply(start, self.script(code))
                await watch.for_(ev.JobsLeft, 1)
                assert not watch.all(ev.JobsFailed)
                assert await watch.backend.running() == {}
                (told,) = [note for note in watch.notes if note.type == "exit"]
                assert told.text.startswith("worker 1 left with exit code 75 by itself")
                assert "exit_code" not in told.data, "the job has not ended"
            # Whoever takes over tells it again: nobody may have heard.
            async with self.opened() as watch:
                await watch.for_(ev.JobsLeft, 1)

        self.run(story)

    def test_who_was_asked_to_leave_and_ends_well_has_not_finished_the_job(self) -> None:
        code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('up')\ntime.sleep(600)"

        async def story() -> None:
            async with self.opened() as watch:
                launch = self.script(code)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
                await watch.for_(ev.Running, 1)
                await watch.backend.apply(op(OpKind.RESIZE, 2, place(0, "node-1", "0")), launch)
                await watch.for_(ev.Running, 2)
                assert not watch.all(ev.JobsFinished)

        self.run(story)

    def test_a_clock_that_is_set_takes_nothing_from_the_time_to_save(self, monkeypatch: pytest.MonkeyPatch) -> None:
        code = (
            "import pathlib, signal, sys, time\n"
            f"here = pathlib.Path({str(self.here)!r})\n"
            "def leave(*_):\n"
            "    (here / 'saves').touch()\n"
            "    while not (here / 'saved').exists(): time.sleep(0.01)\n"
            "    sys.exit(75)\n"
            "signal.signal(signal.SIGTERM, leave)\n"
            "(here / 'up').touch()\n"
            "while True: time.sleep(0.01)"
        )

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script(code, grace_s=60.0))
                await watch.for_(ev.Running, 1)
                await watch.until((self.here / "up").exists)
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.until((self.here / "saves").exists)
                real = time.time
                monkeypatch.setattr(time, "time", lambda: real() + 3600)
                # The backend looks at the job again, as it does all the time.
                watch.backend.step("toy-1")
                self.say("saved")
                await watch.for_(ev.Released, 2)
                assert [one.exit_code for one in watch.backend.workers("toy-1")] == [75]

        self.run(story)

    def test_a_lost_worker_leaves_nothing_behind(self) -> None:
        code = (
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
            "os.write(1, f'{os.getpid()}\\n'.encode())\ntime.sleep(600)"
        )

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.script(code))
                await watch.for_(ev.Running, 1)
                log = self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "log"
                await watch.until(lambda: log.read_text().count("\n") == 2)
                await self.lose("toy-1", 0)
                await watch.for_(ev.JobsFailed, 1)
                for pid in map(int, log.read_text().split()):
                    found = procfs.look(pid)
                    assert found is None or found.is_zombie

        self.run(story)

    def test_parameter_servers_end_when_the_workers_are_done(self) -> None:
        code = (
            "import json, os, pathlib, time\n"
            "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
            "print(task['type'], task['index'], os.environ['CUDA_VISIBLE_DEVICES'])\n"
            f"while task['type'] == 'ps' or not pathlib.Path({str(self.here)!r}, 'go').exists(): time.sleep(0.01)"
        )

        async def story() -> None:
            async with self.opened() as watch:
                places = [place(0, "node-0", "3"), place(1, "node-1", "2"), place(0, "node-0", group="server", milli=0)]
                await watch.backend.apply(op(OpKind.START, 1, *places), self.script(code, framework="tensorflow"))
                await watch.for_(ev.Running, 1)
                assert (await watch.backend.running())["toy-1"].running == 2
                assert [one.index for one in watch.backend.workers("toy-1")] == [0, 1, -1]
                self.say("go")
                await watch.for_(ev.JobsFinished)
                lines = [line.text async for line in watch.backend.logs("toy-1")]
                assert sorted(lines) == ["ps 0 ", "worker 0 3", "worker 1 2"]
                assert not watch.all(ev.JobsFailed)

        self.run(story)

    def test_a_parameter_server_that_is_lost_breaks_the_job(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                places = [place(0, "node-0", "3"), place(0, "node-0", group="server", milli=0)]
                launch = self.script("import time; time.sleep(600)", framework="tensorflow")
                await watch.backend.apply(op(OpKind.START, 1, *places), launch)
                await watch.for_(ev.Running, 1)
                server = next(one.pid for one in watch.backend.workers("toy-1") if one.index == -1)
                assert server is not None
                os.kill(server, signal.SIGKILL)
                await watch.for_(ev.JobsFailed, 1)

        self.run(story)

    def test_torchrun_and_horovod_are_started_as_they_want_it(self) -> None:
        """With stand-ins for both, which tell how they were called."""
        tools = self.here / "bin"
        tools.mkdir()
        for name in ("torchrun", "horovodrun"):
            _program(
                tools / name,
                f'#!/bin/sh\necho {name} "$@"\nfor a in "$@"; do case $a in *discover_hosts.sh) "$a";; esac; done\n',
            )
        path = {"PATH": f"{tools}:{os.environ['PATH']}"}

        async def story() -> None:
            async with self.opened() as watch:
                places = [place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")]
                launch = self.launch(command=("train.py",), framework="torchrun", env=path)
                await watch.backend.apply(op(OpKind.START, 1, *places), launch)
                await watch.for_(ev.JobsFinished)
                lines = [line.text async for line in watch.backend.logs("toy-1")]
                assert [line.split()[:3] for line in lines] == [
                    ["torchrun", "--nnodes=2", "--nproc_per_node=2"],
                    ["torchrun", "--nnodes=2", "--nproc_per_node=1"],
                ]
                launch = self.launch(command=("python", "train.py"), framework="horovod", env=path)
                await watch.backend.apply(op(OpKind.START, 1, *places, job="toy-2", number=8), launch)
                await watch.for_(ev.JobsFinished, count=2)
                lines = [line.text async for line in watch.backend.logs("toy-2")]
                assert lines[0].startswith("horovodrun -np 3 ")
                assert lines[1:] == ["127.0.0.1:3"]
                launch = self.launch(command=("sh", "-c", "sh /etc/mpi/discover_hosts.sh"), framework="mpi", env=path)
                await watch.backend.apply(op(OpKind.START, 1, *places, job="toy-3", number=9), launch)
                await watch.for_(ev.JobsFinished, count=3)
                assert [line.text async for line in watch.backend.logs("toy-3")] == ["127.0.0.1:3"]

        self.run(story)

    def test_workers_of_a_job_that_nobody_knows_are_told_of_and_can_be_stopped(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), self.launch())
                await self.up(first, 3, 1)
            (self.home / "jobs" / "toy-1" / GANG).write_text("{")
            async with self.opened(2) as second:
                found = (await second.backend.running())["toy-1"]
                assert (found.number, found.generation, found.running) == (7, 3, 1)
                await second.backend.apply(op(OpKind.STOP, 4), None)
                await second.for_(ev.Released, 4)
                assert await second.backend.running() == {}

        self.run(story)

    def test_generations_go_on_above_what_has_saved_where_the_record_is_damaged(self) -> None:
        """A lower one would be refused by its own checkpoint, or take the name of a worker that was there."""

        async def story() -> None:
            launch = self.script("import os; print('life', os.environ['LEVADA_GENERATION']); os._exit(1)")
            async with self.opened(1, leave=True) as first:
                for generation in (1, 5):
                    await first.backend.apply(op(OpKind.START, generation, place(0, "node-0")), launch)
                    await first.for_(ev.JobsFailed, generation)
            folder = self.home / "jobs" / "toy-1"
            (folder / "checkpoints" / "generation").write_text("9\n")
            for epoch, born in ((2, 10), (3, 11)):
                (folder / GANG).write_text("{")
                async with self.opened(epoch, leave=epoch < 3) as watch:
                    # The engine may have counted less far than survivors of losses have.
                    await watch.backend.apply(op(OpKind.START, 6, place(0, "node-0")), launch)
                    await watch.for_(ev.JobsFailed, 6)
                    assert [line.text async for line in watch.backend.logs("toy-1")] == [f"life {born}"]

        self.run(story)

    def test_a_start_that_broke_off_before_anything_ran_is_undone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder of a worker was made and nothing more: whoever takes over cannot know whether it will start."""
        monkeypatch.setattr(worker, "_START_S", 0.2)
        record = Record(
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

        async def story() -> None:
            async with self.opened() as watch:
                failed = await watch.for_(ev.OperationFailed, 1)
                assert failed.why == "worker 0 was never started"
                await watch.backend.apply(op(OpKind.START, 2, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 2)

        self.run(story)

    def test_a_worker_sees_its_environment(self) -> None:
        code = "import json, os; print(json.dumps(dict(os.environ)))"

        async def story() -> None:
            async with self.opened() as watch:
                start = op(OpKind.START, 1, place(0, "node-1", "2"), batch=32)
                await watch.backend.apply(start, self.script(code, env={"LR": "0.1"}))
                await watch.for_(ev.JobsFinished)
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

        self.run(story)

    def test_logs_of_before_a_restart_are_kept(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = self.script("import os; print('life', os.environ['LEVADA_GENERATION']); os._exit(1)")
                for generation in range(1, 6):
                    await watch.backend.apply(op(OpKind.START, generation, place(0, "node-0")), launch)
                    await watch.for_(ev.JobsFailed, generation)
                assert [line.text async for line in watch.backend.logs("toy-1")] == ["life 5"]
                assert [line.text async for line in watch.backend.logs("toy-1", previous=True)] == ["life 4"]
                kept = sorted(path.name for path in (self.home / "jobs" / "toy-1" / "workers").iterdir())
                assert kept == ["g3-0", "g4-0", "g5-0"], "older ones make room"

        self.run(story)

    def test_a_job_whose_folder_vanished_ends_all_the_same(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await self.up(watch, 1, 1)
                await watch.for_(ev.Running, 1)
                pid = watch.backend.workers("toy-1")[0].pid
                assert pid is not None
                shutil.rmtree(self.home / "jobs" / "toy-1")
                os.kill(pid, signal.SIGKILL)
                await watch.for_(ev.JobsFailed, 1)

        self.run(story)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
