"""What a supervisor must bear: a machine without file handles, watches that are lost, and files that are many."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from levada.backends.local import command, files, gang, processes, procfs, supervisor, worker
from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import pretend_nodes
from levada.backends.local.messages import Forget, Publish
from levada.core import events as ev
from levada.core.plan import OpKind
from levada.errors import LevadaError, Refused
from tests.backends.contract import Watch, op, place
from tests.backends.local.test_backend import LocalTest
from tests.patience import WAIT_S


def lacks_handles(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The machine has no handle left for a process, so often; the list fills with whom it was asked for."""
    asked: list[int] = []
    real = os.pidfd_open

    def open_or_not(pid: int, flags: int = 0) -> int:
        asked.append(pid)
        if len(asked) <= times:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", open_or_not)
    return asked


def supervisor_of(watch: Watch) -> supervisor.Supervisor:
    """The one on this machine."""
    assert isinstance(watch.backend, LocalBackend)
    return watch.backend._supervisor


class TestSupervisor(LocalTest):
    """One worker is enough."""

    @pytest.fixture(autouse=True)
    def _in_a_hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "_AGAIN_S", 0.02)
        monkeypatch.setattr(supervisor, "_DOUBT_EVERY", 10**9)
        monkeypatch.setattr(supervisor, "_POLL_S", 0.05)

    def test_the_end_of_a_worker_is_seen_though_handles_ran_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                asked = lacks_handles(monkeypatch, 3)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await self.up(watch, 1, 1)
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                assert len(asked) > 3

        self.run(story)

    def test_the_end_of_a_worker_that_was_found_is_seen_though_handles_ran_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
            asked = lacks_handles(monkeypatch, 3)
            async with self.opened(2) as watch:
                await watch.until(lambda: len(asked) > 3, "a look that succeeds")
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    def test_a_watch_that_was_lost_is_taken_up_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "_DOUBT_EVERY", 2)

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                lost = supervisor_of(watch).jobs["toy-1"].workers["g1-0"].task
                assert lost is not None
                lost.cancel()
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    def test_what_nobody_understands_makes_deaf_for_nothing_else(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                assert isinstance(backend, LocalBackend)
                # As Levada's own mistakes are: a job without a gang is to be looked after, and one has no number.
                backend.hurry("nobody")
                backend._progress = {None: 1.0}  # type: ignore[dict-item]
                await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                backend._progress = {}
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    @pytest.mark.parametrize("which", ["the backend", "the supervisor"])
    def test_a_backend_that_cannot_go_on_says_so_to_who_listens(self, which: str) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                assert isinstance(backend, LocalBackend)
                broken = backend._tasks[-1] if which == "the backend" else supervisor_of(watch)._tasks[0]
                broken.cancel()
                with pytest.raises(LevadaError, match="start the server again"):
                    await asyncio.wait_for(asyncio.shield(watch._task), WAIT_S)
                with pytest.raises(LevadaError, match="start the server again"):
                    await anext(backend.reports())
                watch._task = asyncio.create_task(asyncio.sleep(0))

        self.run(story)

    # --- files ------------------------------------------------------------------------------------------------------

    def test_folders_are_looked_through_and_removed_beside_the_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "_LOOK_S", 0.02)
        touched: dict[str, set[int]] = {"scandir": set(), "unlink": set()}

        def spy(name: str) -> None:
            real = getattr(os, name)

            def spied(path: Any, *args: Any, **options: Any) -> Any:
                if "deep" in str(path) or "/gone" in str(path):
                    touched[name].add(threading.get_ident())
                return real(path, *args, **options)

            monkeypatch.setattr(os, name, spied)

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await self.up(watch, 1, 1)
                await watch.for_(ev.Running, 1)
                deep = self.home / "jobs" / "toy-1" / "checkpoints" / "deep"
                deep.mkdir()
                (deep / "model").write_text("x")
                for name in touched:
                    spy(name)
                await watch.for_(ev.CheckpointSaved, 1)
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                await watch.backend.forget("toy-1")
                assert not (self.home / "jobs" / "toy-1").exists(), "another may have the name at once"
                await watch.until(lambda: not list((self.home / "gone").iterdir()), "an empty bin")

        self.run(story)
        assert touched["scandir"]
        assert touched["unlink"]
        assert threading.get_ident() not in touched["scandir"] | touched["unlink"]

    def test_the_hosts_of_horovod_are_replaced_as_a_whole(self) -> None:
        world = files.World(generation=1, members=(), addresses=(), master=files.Address("127.0.0.1", 1))

        def publish(*hosts: str) -> Publish:
            return Publish(job="toy-1", epoch=1, number=7, generation=1, world=world, hosts=hosts)

        async def story() -> None:
            async with self.opened() as watch:
                supervisor_of(watch).do(publish("here:1", "there:2"))
                path = self.home / "jobs" / "toy-1" / files.HOSTS
                with path.open() as reading:
                    supervisor_of(watch).do(publish("elsewhere:3"))
                    assert reading.read() == "here:1\nthere:2\n", "who reads meanwhile reads one or the other"
                assert path.read_text() == "elsewhere:3\n"

        self.run(story)

    def test_what_another_could_not_remove_goes_later(self) -> None:
        left = self.home / "gone" / "0123" / "deep"
        left.mkdir(parents=True)
        (left / "model").write_text("x")

        async def story() -> None:
            async with self.opened() as watch:
                await watch.until(lambda: not list((self.home / "gone").iterdir()), "an empty bin")

        self.run(story)

    def test_an_epoch_that_cannot_be_read_lets_nobody_command_until_somebody_takes_over(self) -> None:
        async def story() -> None:
            async with self.opened(5, leave=True) as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                (self.home / command.EPOCH).write_text("")
                with pytest.raises(Refused, match="start the server again"):
                    await watch.backend.apply(op(OpKind.STOP, 2), None)
            older = self.make()
            with pytest.raises(Refused, match="epoch 4 is over"):
                await older.open(4)
            await older.close()
            async with self.opened(6) as watch:
                await watch.backend.apply(op(OpKind.STOP, 3), None)
                await watch.for_(ev.Released, 3)

        self.run(story)

    def test_what_generations_depend_on_is_on_disk_before_anything_starts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        real = os.fsync

        def spied(file: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
            real(file)

        monkeypatch.setattr(os, "fsync", spied)

        async def story() -> None:
            async with self.opened() as watch:
                assert synced == ["epoch.new", "home"]
                synced.clear()
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                assert synced == ["gang.json.new", "toy-1"]
                await watch.for_(ev.Running, 1)
                assert synced == ["gang.json.new", "toy-1"], "that it runs is no new generation"

        self.run(story)

    def test_what_cannot_be_ended_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "_SWEEP_S", 0.1)
        code = (
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\ntime.sleep(600)"
        )

        async def story() -> None:
            async with self.opened() as watch:
                launch = self.launch(command=(sys.executable, "-S", "-E", "-c", code))
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
                log = self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "log"
                await watch.until(lambda: log.exists() and log.read_text().endswith("\n"))
                await watch.for_(ev.Running, 1)
                left = int(log.read_text())
                # As one is that hangs in a driver: it takes no signal.
                real = os.kill
                monkeypatch.setattr(os, "kill", lambda pid, number: None if pid == left else real(pid, number))
                real(json.loads((log.parent / "run.json").read_text())["keeper"], signal.SIGKILL)
                await self.lose("toy-1", 0)
                await watch.for_(ev.JobsFailed, 1)
                real(left, signal.SIGKILL)
                await watch.until(lambda: (one := procfs.look(left)) is None or one.is_zombie)
                (told,) = [note.text for note in watch.notes if note.type == "exit"]
                assert f"cannot be ended: look at process {left}" in told

        self.run(story)

    def test_a_job_whose_keeper_is_frozen_stops_and_nothing_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gang, "_LATE_S", 0.0)

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch(grace_s=0.5))
                await watch.for_(ev.Running, 1)
                run = json.loads((self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "run.json").read_text())
                os.kill(run["keeper"], signal.SIGSTOP)
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert not any(procfs.is_same(run[who], run[f"{who}_started"]) for who in ("keeper", "worker"))

        self.run(story)

    @pytest.mark.parametrize("frozen", [("shim",), ("shim", "keeper")])
    def test_a_guard_that_is_frozen_when_its_worker_ends_is_ended_and_the_job_is_done(
        self, frozen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "_POLL_S", 0.05)

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                run = json.loads((self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "run.json").read_text())
                for who in frozen:
                    os.kill(run[who], signal.SIGSTOP)
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                await watch.until(lambda: not procfs.is_same(run["keeper"], run["keeper_started"]), "its end")
                assert [one.exit_code for one in watch.backend.workers("toy-1")] == [0]

        self.run(story)

    def test_a_job_whose_guard_is_frozen_saves_when_it_is_stopped(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                run = json.loads((self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "run.json").read_text())
                os.kill(run["shim"], signal.SIGSTOP)
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert [one.exit_code for one in watch.backend.workers("toy-1")] == [75]

        self.run(story)

    def test_a_start_that_is_frozen_is_undone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = processes.start

        def frozen(folder: Path, spec: processes.Spec) -> subprocess.Popen[bytes]:
            child = real(folder, spec)
            child.send_signal(signal.SIGSTOP)
            return child

        async def story() -> None:
            async with self.opened() as watch:
                monkeypatch.setattr(processes, "start", frozen)
                launch = self.launch(grace_s=0.1, start_limit_s=0.5)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
                await watch.for_(ev.OperationFailed, 1)

        self.run(story)

    def test_who_takes_over_ends_a_keeper_that_is_frozen(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                folder = self.home / "jobs" / "toy-1" / "workers" / "g1-0"
                run = json.loads((folder / "run.json").read_text())
                os.kill(run["keeper"], signal.SIGSTOP)
            self.say("go", "0")
            while not (folder / "exit.json").exists():
                await asyncio.sleep(0.01)
            async with self.opened(2) as watch:
                await watch.for_(ev.JobsFinished)
                await watch.until(lambda: not procfs.is_same(run["keeper"], run["keeper_started"]), "its end")

        self.run(story)


class TestSharedCheckpoints(LocalTest):
    """A folder for the checkpoints of all machines."""

    def make(self) -> LocalBackend:
        return LocalBackend(self.home, pretend_nodes([{"gpu": 4}]), checkpoints=self.here / "shared")

    def test_a_job_that_is_forgotten_leaves_nothing_for_the_next_of_its_name(self) -> None:
        code = (
            "import os, pathlib\nsaves = pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'])\n"
            "print('found', [path.name for path in saves.iterdir()])\n(saves / 'model').write_text('x')"
        )

        async def story() -> None:
            async with self.opened() as watch:
                launch = self.launch(command=(sys.executable, "-S", "-E", "-c", code))
                for number in (7, 8):
                    start = op(OpKind.START, 1, place(0, "node-0", "0"), number=number)
                    await watch.backend.apply(start, launch)
                    await watch.for_(ev.JobsFinished, count=number - 6)
                    assert [line.text async for line in watch.backend.logs("toy-1")] == ["found []"]
                    if number == 8:
                        # A machine that was away hears late that the first is over.
                        supervisor_of(watch).do(Forget(job="toy-1", epoch=1, number=7))
                        assert len(self.saved()) == 1
                        assert (self.home / "jobs" / "toy-1").exists()
                    await watch.backend.forget("toy-1")
                    assert self.saved() == []

        self.run(story)

    def saved(self) -> list[str]:
        return [path.name for path in (self.here / "shared").iterdir() if not path.name.startswith(".")]
