"""Elastic scripts: resize in place, migration, and loss of a worker."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
import pytest

from levada.backends.local import procfs, worker_files
from levada.backends.local.backend import LocalBackend
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind
from tests.backends.contract import BackendWatch, op, place
from tests.backends.local.test_backend import LocalTest

#: Trains until the file `end` exists, and exits once `lingers` does not; every step sums over all members.
SCRIPT = """
import json, os, pathlib, sys, time
import levada.runtime
here = pathlib.Path(sys.argv[1])
if (here / 'late').exists() and int(os.environ['LEVADA_GENERATION']) > 1:
    time.sleep(600)
job = levada.runtime.init()
state = {'trained': 0}
job.state(save=lambda: dict(state), load=state.update)
print('begins', os.environ['LEVADA_GENERATION'], flush=True)
printed = None
for step in job.steps(10**9):
    with job.guard():
        done = job.group.agree([float((here / 'end').exists())])[0]
        state['trained'] += 1
        time.sleep(0.002)
    if printed != (job.generation, job.world_size):
        printed = job.generation, job.world_size
        print('trains', job.generation, job.rank, job.world_size, state['trained'], flush=True)
    if done:
        break
while (here / 'lingers').exists():
    time.sleep(0.01)
if not (here / 'says nothing').exists():
    job.complete()
while (here / 'hangs').exists():
    time.sleep(0.01)
"""


class TestElastic(LocalTest):
    """Resizes in place."""

    def elastic(self, **fields: Any) -> Launch:
        """The launch of `SCRIPT`."""
        (self.work / "elastic.py").write_text(SCRIPT)
        command = (sys.executable, "-u", str(self.work / "elastic.py"), str(self.work))
        return Launch(**{"command": command, "workdir": str(self.work), "grace_s": 20.0, "max_workers": 8, **fields})

    async def start_training(self, watch: BackendWatch, *places: WorkerPlace, launch: Launch | None = None) -> Launch:
        """Start the job; wait until the backend knows that it resizes in place."""
        launch = launch or self.elastic()
        await watch.backend.apply(op(OpKind.START, 1, *places), launch)
        await watch.wait_event(ev.Running, 1)
        await watch.wait_event(ev.ResizesInPlace, 1)
        return launch

    def pids(self, watch: BackendWatch) -> dict[int, int | None]:
        """PIDs of running workers by index."""
        return {one.index: one.pid for one in watch.backend.workers("toy-1") if one.phase == "Running"}

    async def log_lines(self, watch: BackendWatch) -> list[str]:
        return [line.text async for line in watch.backend.logs("toy-1")]

    async def test_a_job_grows_shrinks_and_completes_without_a_restart(self) -> None:
        async with self.opened() as watch:
            backend = watch.backend
            zero, one, two = place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")
            launch = await self.start_training(watch, zero, one)
            first = self.pids(watch)
            await backend.apply(op(OpKind.RESIZE, 2, zero, one, two), launch)
            await watch.wait_event(ev.Running, 2)
            assert {index: self.pids(watch)[index] for index in (0, 1)} == first, "they went on"
            assert (await backend.running())["toy-1"].running == 3
            await backend.apply(op(OpKind.RESIZE, 3, zero, two), launch)
            await watch.wait_event(ev.Running, 3)
            mine = [type(event) for event in watch.events if getattr(event, "generation", None) == [3]]
            assert mine == [ev.Released, ev.Paused, ev.Running]
            assert watch.events_of(ev.Paused, 3)[0].seconds[0] > 0
            assert self.pids(watch)[0] == first[0]
            await watch.wait_event(ev.Progress)
            self.write_control("end")
            await watch.wait_event(ev.JobsFinished)
            lines = await self.log_lines(watch)
            # A new member continues at the step of the others.
            trained = [int(line.split()[4]) for line in lines if line.startswith("trains 2 2 3")]
            assert len(trained) == 1
            assert trained[0] > 1
            assert sorted(line for line in lines if "begins" in line) == ["begins 1", "begins 1", "begins 2"]
            assert not watch.events_of(ev.JobsFailed)

    async def test_the_last_steps_are_reported_before_the_job_end(self) -> None:
        code = (
            "import levada.runtime, time\n"
            "job = levada.runtime.init()\n"
            "for _ in job.steps(40): time.sleep(0.01)\n"
            "job.complete()"
        )

        async with self.opened() as watch:
            launch = self.elastic(command=(sys.executable, "-c", code))
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.JobsFinished)
            before = watch.events[: [type(event) for event in watch.events].index(ev.JobsFinished)]
            steps = [event.steps.tolist() for event in before if isinstance(event, ev.Progress)]
            assert steps[-1] == [40.0]

    async def test_moving_one_worker_keeps_the_others_running(self) -> None:
        async with self.opened() as watch:
            launch = await self.start_training(watch, place(0, "node-0", "0"), place(1, "node-0", "1"))
            first = self.pids(watch)
            moved = op(OpKind.RESIZE, 2, place(0, "node-1", "3"), place(1, "node-0", "1"))
            await watch.backend.apply(moved, launch)
            await watch.wait_event(ev.Running, 2)
            assert self.pids(watch)[1] == first[1]
            assert self.pids(watch)[0] != first[0]
            assert not watch.notes

    async def test_a_job_that_moves_completely_resumes_from_its_checkpoint(self) -> None:
        async with self.opened() as watch:
            launch = await self.start_training(watch, place(0, "node-0", "0"))
            await watch.backend.apply(op(OpKind.RESIZE, 2, place(0, "node-1", "0")), launch)
            await watch.wait_event(ev.Running, 2)
            lines = await self.log_lines(watch)
            (line,) = [line for line in lines if line.startswith("trains 2 0 1")]
            assert int(line.split()[4]) > 1

    async def test_another_batch_size_reaches_all_workers(self) -> None:
        async with self.opened() as watch:
            zero = place(0, "node-0", "0")
            launch = await self.start_training(watch, zero)
            await watch.backend.apply(op(OpKind.RESIZE, 2, zero, batch=64), launch)
            await watch.wait_event(ev.Running, 2)
            pid = self.pids(watch)[0]
            assert pid is not None
            assert procfs.environment(pid)["LEVADA_BATCH_SIZE"] == "64"

    @pytest.mark.parametrize("lost", [0, 1])
    async def test_any_worker_may_be_lost_if_enough_remain(self, lost: int) -> None:
        async with self.opened() as watch:
            zero, one, two = place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")
            launch = await self.start_training(watch, zero, one, two)
            pids = self.pids(watch)
            victim = pids[lost]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            failed = await watch.wait_event(ev.WorkersFailed, 1)
            assert (failed.index.tolist(), failed.running.tolist()) == ([lost], [2])
            # The engine uses its next generation, and does not wait for the rendezvous of the others.
            rest = [where for where in (zero, one, two) if where.index != lost]
            back = place(lost, "node-1", "3")
            await watch.backend.apply(op(OpKind.RESIZE, 2, *rest, back), launch)
            await watch.wait_event(ev.Running, 2)
            now = self.pids(watch)
            assert len(now) == 3
            assert all(now[where.index] == pids[where.index] for where in rest), "they went on"
            assert not watch.events_of(ev.JobsFailed)

    async def test_the_next_backend_reports_a_loss_that_the_server_before_may_not_have_stored(self) -> None:
        async with self.opened(1, leave=True) as first:
            await self.start_training(first, place(0, "node-0", "0"), place(1, "node-0", "1"))
            victim = self.pids(first)[0]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            await first.wait_event(ev.WorkersFailed, 1)
        async with self.opened(2) as second:
            (failed,) = [event for event in second.first.report.events if isinstance(event, ev.WorkersFailed)]
            assert (failed.generation.tolist(), failed.index.tolist()) == ([1], [0])
            assert second.first.running["toy-1"].running == 1

    async def test_the_engine_decides_whether_enough_workers_remain(self) -> None:
        async with self.opened() as watch:
            launch = self.elastic(min_workers=2)
            await self.start_training(watch, place(0, "node-0", "0"), place(1, "node-0", "1"), launch=launch)
            victim = self.pids(watch)[1]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            await watch.wait_event(ev.WorkersFailed, 1)
            (note,) = [note for note in watch.notes if note.type == "loss"]
            assert note.text == "worker 1 was killed (signal 9); 1 is left"
            assert (note.data["cause"], note.data["lost_exit_code"]) == ("worker 1 was killed (signal 9)", 137)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert await watch.backend.running() == {}

    async def test_new_workers_that_never_join_turn_a_resize_into_a_restart(self) -> None:
        async with self.opened() as watch:
            zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
            launch = await self.start_training(watch, zero, launch=self.elastic(start_limit_s=1.5))
            first = self.pids(watch)
            self.write_control("late")
            await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
            await watch.wait_until(lambda: any(note.type == "restart" for note in watch.notes), "a restart")
            (self.work / "late").unlink()
            await watch.wait_event(ev.Running, 2)
            assert len(watch.events_of(ev.JobsRestarted, 2)) == 1
            assert self.pids(watch)[0] != first[0]
            assert len(self.pids(watch)) == 2
            lines = await self.log_lines(watch)
            trained = [int(line.split()[4]) for line in lines if line.startswith("trains ")]
            assert min(trained) > 1, "it went on from its checkpoint"

    @pytest.mark.parametrize("says", ["that it is done", "nothing"])
    async def test_a_job_that_finishes_while_it_grows_is_finished(self, says: str) -> None:
        async with self.opened() as watch:
            zero, one, two = place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")
            launch = await self.start_training(watch, zero, one)
            # After their last step members join no other generation.
            for word in ("lingers", "end", *(["says nothing"] if says == "nothing" else [])):
                self.write_control(word)
            await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one, two), launch)
            await watch.wait_event(ev.Released, 2)  # all remaining members joined
            (self.work / "lingers").unlink()
            await watch.wait_event(ev.JobsFinished)
            assert await watch.backend.running() == {}
            assert [note.type for note in watch.notes] == ["exit"], "no worker was restarted"

    async def test_a_finished_job_that_hangs_while_it_grows_is_stopped(self) -> None:
        async with self.opened() as watch:
            zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
            launch = await self.start_training(watch, zero, launch=self.elastic(grace_s=1.0))
            for word in ("hangs", "late", "lingers", "end"):
                self.write_control(word)
            await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
            (self.work / "lingers").unlink()
            await watch.wait_event(ev.JobsFinished)
            assert not [note for note in watch.notes if note.type == "restart"]

    async def test_a_resize_is_continued_by_the_next_backend(self) -> None:
        zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
        async with self.opened(1, leave=True) as watch:
            launch = await self.start_training(watch, zero)
            first = self.pids(watch)
            await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
        async with self.opened(2) as watch:
            await watch.wait_event(ev.Running, 2)
            assert self.pids(watch)[0] == first[0]
            assert len(self.pids(watch)) == 2

    async def test_a_checkpoint_of_the_runtime_is_reported(self) -> None:
        async with self.opened() as watch:
            launch = await self.start_training(watch, place(0, "node-0", "0"))
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.Running, 3)
            saved = await watch.wait_event(ev.CheckpointSaved, 3)
            assert saved.number.tolist() == [7]

    async def test_the_world_on_disk_names_members_by_rank(self) -> None:
        async with self.opened() as watch:
            await self.start_training(watch, place(0, "node-0", "0"), place(1, "node-1", "1"))
            path = self.home / "jobs" / "toy-1" / worker_files.WORLD
            world = msgspec.json.decode(path.read_bytes(), type=worker_files.WorldFile)
            assert (world.generation, world.members, world.addresses) == (1, ("g1-0", "g1-1"), ("127.0.0.1",) * 2)
            assert world.master.port > 0
            assert path.stat().st_mode & 0o077 == 0, "the key is the job's alone"

    async def test_each_generation_has_its_own_key_that_survives_the_server(self) -> None:
        def key() -> tuple[int, str]:
            path = self.home / "jobs" / "toy-1" / worker_files.WORLD
            world = msgspec.json.decode(path.read_bytes(), type=worker_files.WorldFile)
            return world.generation, world.key

        zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
        async with self.opened(1, leave=True) as watch:
            launch = await self.start_training(watch, zero)
            first = key()
            await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
            await watch.wait_event(ev.Running, 2)
            second = key()
            assert (first[0], second[0]) == (1, 2)
            assert len(first[1]) == len(second[1]) == 64
            assert first[1] != second[1]
            # The next server must publish the same key: members with different keys cannot connect.
            (self.home / "jobs" / "toy-1" / worker_files.WORLD).unlink()
        async with self.opened(2) as watch:
            assert isinstance(watch.backend, LocalBackend)
            watch.backend.controllers["toy-1"].reports.republish()
            assert key() == second
