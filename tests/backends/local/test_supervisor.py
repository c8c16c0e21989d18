"""Supervisor under stress: no file handles, lost watches, stopped shims."""

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

from levada.backends.local import epoch_fence, job_controller, processes, procfs, supervisor, worker, worker_files
from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.backends.local.supervisor_protocol import Forget, Publish
from levada.core import events as ev
from levada.core.plan import OpKind
from levada.errors import LevadaError, Refused
from tests.backends.contract import BackendWatch, op, place
from tests.backends.local.test_backend import LocalTest
from tests.timeouts import WAIT_S


def lacks_handles(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Make `pidfd_open` fail the given number of times; the list collects the process ids."""
    asked: list[int] = []
    real = os.pidfd_open

    def open_or_not(pid: int, flags: int = 0) -> int:
        asked.append(pid)
        if len(asked) <= times:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", open_or_not)
    return asked


def supervisor_of(watch: BackendWatch) -> supervisor.Supervisor:
    """The supervisor of this machine."""
    assert isinstance(watch.backend, LocalBackend)
    return watch.backend._supervisor


class TestSupervisor(LocalTest):
    """The supervisor with one worker."""

    @pytest.fixture(autouse=True)
    def _in_a_hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "_AGAIN_S", 0.02)
        monkeypatch.setattr(supervisor, "_RECHECK_EVERY", 10**9)
        monkeypatch.setattr(supervisor, "_POLL_S", 0.05)

    async def test_a_worker_exit_is_detected_without_free_file_handles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with self.opened() as watch:
            asked = lacks_handles(monkeypatch, 3)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await self.wait_scripts(watch, 1, 1)
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)
            assert len(asked) > 3

    async def test_the_exit_of_an_adopted_worker_is_detected_without_free_file_handles(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.opened(1, leave=True) as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
        asked = lacks_handles(monkeypatch, 3)
        async with self.opened(2) as watch:
            await watch.wait_until(lambda: len(asked) > 3, "a successful pidfd_open")
            self.write_control("go", "0")
            finished = await watch.wait_event(ev.JobsFinished)
            assert finished.number.tolist() == [7]

    async def test_a_lost_watch_is_restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "_RECHECK_EVERY", 2)

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            lost = supervisor_of(watch).jobs["toy-1"].workers["g1-0"].task
            assert lost is not None
            lost.cancel()
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)

    async def test_an_unknown_message_does_not_block_others(self) -> None:
        async with self.opened() as watch:
            backend = watch.backend
            assert isinstance(backend, LocalBackend)
            # Like bugs of Levada: a job without a controller, and one without a number.
            backend.poll_fast("unknown")
            backend._progress = {None: 1.0}  # type: ignore[dict-item]
            await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            backend._progress = {}
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)

    @pytest.mark.parametrize("which", ["the backend", "the supervisor"])
    async def test_a_failed_backend_raises_in_reports(self, which: str) -> None:
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

    # --- files ------------------------------------------------------------------------------------------------------

    async def test_folders_are_scanned_and_removed_outside_the_event_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "_LOOK_S", 0.02)
        threads: dict[str, set[int]] = {"scandir": set(), "unlink": set()}

        def spy(name: str) -> None:
            real = getattr(os, name)

            def spied(path: Any, *args: Any, **options: Any) -> Any:
                if "deep" in str(path) or "/gone" in str(path):
                    threads[name].add(threading.get_ident())
                return real(path, *args, **options)

            monkeypatch.setattr(os, name, spied)

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await self.wait_scripts(watch, 1, 1)
            await watch.wait_event(ev.Running, 1)
            deep = self.home / "jobs" / "toy-1" / "checkpoints" / "deep"
            deep.mkdir()
            (deep / "model").write_text("x")
            for name in threads:
                spy(name)
            await watch.wait_event(ev.CheckpointSaved, 1)
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)
            await watch.backend.forget("toy-1")
            assert not (self.home / "jobs" / "toy-1").exists(), "the name is free at once"
            await watch.wait_until(lambda: not list((self.home / "gone").iterdir()), "an empty trash folder")

        assert threads["scandir"]
        assert threads["unlink"]
        assert threading.get_ident() not in threads["scandir"] | threads["unlink"]

    async def test_the_horovod_host_file_is_replaced_atomically(self) -> None:
        world = worker_files.WorldFile(
            generation=1, members=(), addresses=(), master=worker_files.MemberAddress("127.0.0.1", 1)
        )

        def publish(*hosts: str) -> Publish:
            return Publish(job="toy-1", epoch=1, number=7, generation=1, world=world, hosts=hosts)

        async with self.opened() as watch:
            supervisor_of(watch).do(publish("here:1", "there:2"))
            path = self.home / "jobs" / "toy-1" / worker_files.HOSTS
            with path.open() as reading:
                supervisor_of(watch).do(publish("elsewhere:3"))
                assert reading.read() == "here:1\nthere:2\n", "concurrent readers see the old or the new file"
            assert path.read_text() == "elsewhere:3\n"

    async def test_leftover_folders_are_removed_later(self) -> None:
        left = self.home / "gone" / "0123" / "deep"
        left.mkdir(parents=True)
        (left / "model").write_text("x")

        async with self.opened() as watch:
            await watch.wait_until(lambda: not list((self.home / "gone").iterdir()), "an empty trash folder")
        assert not left.exists()

    async def test_an_unreadable_epoch_blocks_commands_until_a_takeover(self) -> None:
        async with self.opened(5, leave=True) as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            (self.home / epoch_fence.EPOCH).write_text("")
            with pytest.raises(Refused, match="start the server again"):
                await watch.backend.apply(op(OpKind.STOP, 2), None)
        older = self.make()
        with pytest.raises(Refused, match=r"command rejected: .* this one has epoch 4"):
            await older.open(4)
        await older.close()
        async with self.opened(6) as watch:
            await watch.backend.apply(op(OpKind.STOP, 3), None)
            await watch.wait_event(ev.Released, 3)

    async def test_generation_state_is_on_disk_before_a_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        real = os.fsync

        def spied(file: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
            real(file)

        monkeypatch.setattr(os, "fsync", spied)

        async with self.opened() as watch:
            assert synced == ["epoch.new", "home"]
            synced.clear()
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            assert synced == ["gang.json.new", "toy-1"]
            await watch.wait_event(ev.Running, 1)
            assert synced == ["gang.json.new", "toy-1"], "that it runs is no new generation"

    async def test_a_process_that_cannot_be_killed_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "_SWEEP_S", 0.1)
        code = (
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\ntime.sleep(600)"
        )

        async with self.opened() as watch:
            launch = self.launch(command=(sys.executable, "-S", "-E", "-c", code))
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
            log = self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "log"
            await watch.wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
            await watch.wait_event(ev.Running, 1)
            left = int(log.read_text())
            # Like a process that hangs in a driver: signals have no effect.
            real = os.kill
            monkeypatch.setattr(os, "kill", lambda pid, number: None if pid == left else real(pid, number))
            real(json.loads((log.parent / "run.json").read_text())["keeper"], signal.SIGKILL)
            await self.lose("toy-1", 0)
            await watch.wait_event(ev.JobsFailed, 1)
            real(left, signal.SIGKILL)
            await watch.wait_until(lambda: (one := procfs.look(left)) is None or one.is_zombie)
            (text,) = [note.text for note in watch.notes if note.type == "exit"]
            assert f"cannot be killed: {left}" in text

    async def test_a_job_with_a_frozen_reaper_stops_and_leaves_no_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_controller, "_LATE_S", 0.0)

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch(grace_s=0.5))
            await watch.wait_event(ev.Running, 1)
            run = json.loads((self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "run.json").read_text())
            os.kill(run["keeper"], signal.SIGSTOP)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert not any(procfs.is_same(run[who], run[f"{who}_started"]) for who in ("keeper", "worker"))

    @pytest.mark.parametrize("frozen", [("shim",), ("shim", "keeper")])
    async def test_a_reaper_frozen_at_worker_exit_is_killed_and_the_job_finishes(
        self, frozen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "_POLL_S", 0.05)

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            run = json.loads((self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "run.json").read_text())
            for who in frozen:
                os.kill(run[who], signal.SIGSTOP)
            self.write_control("go", "0")
            finished = await watch.wait_event(ev.JobsFinished)
            assert finished.number.tolist() == [7]
            await watch.wait_until(
                lambda: not procfs.is_same(run["keeper"], run["keeper_started"]), "end of the reaper"
            )
            assert [one.exit_code for one in watch.backend.workers("toy-1")] == [0]

    async def test_a_job_with_a_frozen_reaper_saves_when_stopped(self) -> None:
        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            run = json.loads((self.home / "jobs" / "toy-1" / "workers" / "g1-0" / "run.json").read_text())
            os.kill(run["shim"], signal.SIGSTOP)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert [one.exit_code for one in watch.backend.workers("toy-1")] == [75]

    async def test_a_frozen_start_is_rolled_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = processes.start

        def frozen(folder: Path, spec: processes.WorkerSpec) -> subprocess.Popen[bytes]:
            child = real(folder, spec)
            child.send_signal(signal.SIGSTOP)
            return child

        async with self.opened() as watch:
            monkeypatch.setattr(processes, "start", frozen)
            launch = self.launch(grace_s=0.1, start_limit_s=0.5)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.OperationFailed, 1)
            assert await watch.backend.running() == {}

    async def test_a_takeover_kills_a_frozen_reaper(self) -> None:
        async with self.opened(1, leave=True) as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            folder = self.home / "jobs" / "toy-1" / "workers" / "g1-0"
            run = json.loads((folder / "run.json").read_text())
            os.kill(run["keeper"], signal.SIGSTOP)
        self.write_control("go", "0")
        while not (folder / "exit.json").exists():
            await asyncio.sleep(0.01)
        async with self.opened(2) as watch:
            finished = await watch.wait_event(ev.JobsFinished)
            assert finished.number.tolist() == [7]
            await watch.wait_until(
                lambda: not procfs.is_same(run["keeper"], run["keeper_started"]), "end of the reaper"
            )


class TestSharedCheckpoints(LocalTest):
    """One checkpoint folder for all machines."""

    def make(self) -> LocalBackend:
        return LocalBackend(self.home, pretend_nodes([{"gpu": 4}]), checkpoints=self.work / "shared")

    async def test_a_forgotten_job_leaves_nothing_for_the_next_of_its_name(self) -> None:
        code = (
            "import os, pathlib\nsaves = pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'])\n"
            "print('files', [path.name for path in saves.iterdir()])\n(saves / 'model').write_text('x')"
        )

        async with self.opened() as watch:
            launch = self.launch(command=(sys.executable, "-S", "-E", "-c", code))
            for number in (7, 8):
                start = op(OpKind.START, 1, place(0, "node-0", "0"), number=number)
                await watch.backend.apply(start, launch)
                await watch.wait_event(ev.JobsFinished, count=number - 6)
                assert [line.text async for line in watch.backend.logs("toy-1")] == ["files []"]
                if number == 8:
                    # A machine that was disconnected learns late that the first job ended.
                    supervisor_of(watch).do(Forget(job="toy-1", epoch=1, number=7))
                    assert len(self.saved()) == 1
                    assert (self.home / "jobs" / "toy-1").exists()
                await watch.backend.forget("toy-1")
                assert self.saved() == []

    def saved(self) -> list[str]:
        return [path.name for path in (self.work / "shared").iterdir() if not path.name.startswith(".")]
