"""Scripts that use the runtime: they grow, shrink and move while they train, and survive the loss of a worker."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
import pytest

from levada.backends.local import files, procfs
from levada.backends.local.backend import LocalBackend
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind
from tests.backends.contract import Watch, op, place
from tests.backends.local.test_backend import LocalTest

#: Trains until the file `end` is there, and ends once `lingers` is not; every step is a sum over all members.
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
told = None
for step in job.steps(10**9):
    with job.guard():
        done = job.group.agree([float((here / 'end').exists())])[0]
        state['trained'] += 1
        time.sleep(0.002)
    if told != (job.generation, job.world_size):
        told = job.generation, job.world_size
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
    """In-process resizes."""

    def elastic(self, **fields: Any) -> Launch:
        """The script."""
        (self.here / "elastic.py").write_text(SCRIPT)
        command = (sys.executable, "-u", str(self.here / "elastic.py"), str(self.here))
        return Launch(**{"command": command, "workdir": str(self.here), "grace_s": 20.0, "max_workers": 8, **fields})

    async def trains(self, watch: Watch, *places: WorkerPlace, launch: Launch | None = None) -> Launch:
        """The script runs in generation 1, and the backend knows that it can be resized."""
        launch = launch or self.elastic()
        await watch.backend.apply(op(OpKind.START, 1, *places), launch)
        await watch.for_(ev.Running, 1)
        await watch.for_(ev.ResizesInPlace, 1)
        return launch

    def pids(self, watch: Watch) -> dict[int, int | None]:
        """Processes of those that run, by index."""
        return {one.index: one.pid for one in watch.backend.workers("toy-1") if one.phase == "Running"}

    async def said(self, watch: Watch) -> list[str]:
        return [line.text async for line in watch.backend.logs("toy-1")]

    def test_a_job_grows_shrinks_and_is_complete_without_a_restart(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                zero, one, two = place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")
                launch = await self.trains(watch, zero, one)
                first = self.pids(watch)
                await backend.apply(op(OpKind.RESIZE, 2, zero, one, two), launch)
                await watch.for_(ev.Running, 2)
                assert {index: self.pids(watch)[index] for index in (0, 1)} == first, "they went on"
                assert (await backend.running())["toy-1"].running == 3
                await backend.apply(op(OpKind.RESIZE, 3, zero, two), launch)
                await watch.for_(ev.Running, 3)
                mine = [type(event) for event in watch.events if getattr(event, "generation", None) == [3]]
                assert mine == [ev.Released, ev.Paused, ev.Running]
                assert watch.all(ev.Paused, 3)[0].seconds[0] > 0
                assert self.pids(watch)[0] == first[0]
                await watch.for_(ev.Progress)
                self.say("end")
                await watch.for_(ev.JobsFinished)
                lines = await self.said(watch)
                # Whoever joins goes on from where the others are.
                trained = [int(line.split()[4]) for line in lines if line.startswith("trains 2 2 3")]
                assert len(trained) == 1
                assert trained[0] > 1
                assert sorted(line for line in lines if "begins" in line) == ["begins 1", "begins 1", "begins 2"]
                assert not watch.all(ev.JobsFailed)

        self.run(story)

    def test_the_last_steps_of_a_job_are_told_before_its_end(self) -> None:
        code = (
            "import levada.runtime, time\n"
            "job = levada.runtime.init()\n"
            "for _ in job.steps(40): time.sleep(0.01)\n"
            "job.complete()"
        )

        async def story() -> None:
            async with self.opened() as watch:
                launch = self.elastic(command=(sys.executable, "-c", code))
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), launch)
                await watch.for_(ev.JobsFinished)
                before = watch.events[: [type(event) for event in watch.events].index(ev.JobsFinished)]
                told = [event.steps.tolist() for event in before if isinstance(event, ev.Progress)]
                assert told[-1] == [40.0]

        self.run(story)

    def test_a_worker_that_moves_leaves_the_others_alone(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = await self.trains(watch, place(0, "node-0", "0"), place(1, "node-0", "1"))
                first = self.pids(watch)
                moved = op(OpKind.RESIZE, 2, place(0, "node-1", "3"), place(1, "node-0", "1"))
                await watch.backend.apply(moved, launch)
                await watch.for_(ev.Running, 2)
                assert self.pids(watch)[1] == first[1]
                assert self.pids(watch)[0] != first[0]
                assert not watch.notes

        self.run(story)

    def test_a_job_that_moves_altogether_goes_on_from_its_checkpoint(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = await self.trains(watch, place(0, "node-0", "0"))
                await watch.backend.apply(op(OpKind.RESIZE, 2, place(0, "node-1", "0")), launch)
                await watch.for_(ev.Running, 2)
                lines = await self.said(watch)
                (line,) = [line for line in lines if line.startswith("trains 2 0 1")]
                assert int(line.split()[4]) > 1

        self.run(story)

    def test_another_batch_size_reaches_all_workers(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                zero = place(0, "node-0", "0")
                launch = await self.trains(watch, zero)
                await watch.backend.apply(op(OpKind.RESIZE, 2, zero, batch=64), launch)
                await watch.for_(ev.Running, 2)
                pid = self.pids(watch)[0]
                assert pid is not None
                assert procfs.environment(pid)["LEVADA_BATCH_SIZE"] == "64"

        self.run(story)

    @pytest.mark.parametrize("lost", [0, 1])
    def test_any_worker_may_be_lost_where_enough_are_left(self, lost: int) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                zero, one, two = place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")
                launch = await self.trains(watch, zero, one, two)
                pids = self.pids(watch)
                victim = pids[lost]
                assert victim is not None
                os.kill(victim, signal.SIGKILL)
                failed = await watch.for_(ev.WorkersFailed, 1)
                assert (failed.index.tolist(), failed.running.tolist()) == ([lost], [2])
                # The engine counts on with its own generations, and does not wait until the others have found together.
                rest = [where for where in (zero, one, two) if where.index != lost]
                back = place(lost, "node-1", "3")
                await watch.backend.apply(op(OpKind.RESIZE, 2, *rest, back), launch)
                await watch.for_(ev.Running, 2)
                now = self.pids(watch)
                assert len(now) == 3
                assert all(now[where.index] == pids[where.index] for where in rest), "they went on"
                assert not watch.all(ev.JobsFailed)

        self.run(story)

    def test_the_next_backend_reports_a_loss_that_the_server_before_may_not_have_stored(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                await self.trains(first, place(0, "node-0", "0"), place(1, "node-0", "1"))
                victim = self.pids(first)[0]
                assert victim is not None
                os.kill(victim, signal.SIGKILL)
                await first.for_(ev.WorkersFailed, 1)
            async with self.opened(2) as second:
                (failed,) = [each for each in second.first.report.events if isinstance(each, ev.WorkersFailed)]
                assert (failed.generation.tolist(), failed.index.tolist()) == ([1], [0])
                assert second.first.running["toy-1"].running == 1

        self.run(story)

    def test_whether_enough_are_left_is_for_the_engine_to_say(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = self.elastic(min_workers=2)
                await self.trains(watch, place(0, "node-0", "0"), place(1, "node-0", "1"), launch=launch)
                victim = self.pids(watch)[1]
                assert victim is not None
                os.kill(victim, signal.SIGKILL)
                await watch.for_(ev.WorkersFailed, 1)
                (note,) = [note for note in watch.notes if note.type == "loss"]
                assert note.text == "worker 1 was killed (signal 9); 1 is left"
                assert (note.data["cause"], note.data["lost_exit_code"]) == ("worker 1 was killed (signal 9)", 137)
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert await watch.backend.running() == {}

        self.run(story)

    def test_newcomers_that_never_join_turn_a_resize_into_a_restart(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
                launch = await self.trains(watch, zero, launch=self.elastic(start_limit_s=1.5))
                first = self.pids(watch)
                self.say("late")
                await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
                await watch.until(lambda: any(note.type == "restart" for note in watch.notes), "a restart")
                (self.here / "late").unlink()
                await watch.for_(ev.Running, 2)
                assert len(watch.all(ev.JobsRestarted, 2)) == 1
                assert self.pids(watch)[0] != first[0]
                assert len(self.pids(watch)) == 2
                lines = await self.said(watch)
                trained = [int(line.split()[4]) for line in lines if line.startswith("trains ")]
                assert min(trained) > 1, "it went on from its checkpoint"

        self.run(story)

    @pytest.mark.parametrize("says", ["that it is done", "nothing"])
    def test_a_job_that_ends_while_it_grows_has_ended(self, says: str) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                zero, one, two = place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")
                launch = await self.trains(watch, zero, one)
                # Past their last step members look for no other world.
                for word in ("lingers", "end", *(["says nothing"] if says == "nothing" else [])):
                    self.say(word)
                await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one, two), launch)
                await watch.for_(ev.Released, 2)  # all are there who are to go on
                (self.here / "lingers").unlink()
                await watch.for_(ev.JobsFinished)
                assert await watch.backend.running() == {}
                assert [note.type for note in watch.notes] == ["exit"], "nobody started again"

        self.run(story)

    def test_a_job_that_is_done_and_hangs_while_it_grows_is_ended(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
                launch = await self.trains(watch, zero, launch=self.elastic(grace_s=1.0))
                for word in ("hangs", "late", "lingers", "end"):
                    self.say(word)
                await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
                (self.here / "lingers").unlink()
                await watch.for_(ev.JobsFinished)
                assert not [note for note in watch.notes if note.type == "restart"]

        self.run(story)

    def test_a_resize_goes_on_where_another_backend_left_it(self) -> None:
        async def story() -> None:
            zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
            async with self.opened(1, leave=True) as watch:
                launch = await self.trains(watch, zero)
                first = self.pids(watch)
                await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
            async with self.opened(2) as watch:
                await watch.for_(ev.Running, 2)
                assert self.pids(watch)[0] == first[0]
                assert len(self.pids(watch)) == 2

        self.run(story)

    def test_a_checkpoint_of_the_runtime_is_told(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = await self.trains(watch, place(0, "node-0", "0"))
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), launch)
                await watch.for_(ev.Running, 3)
                await watch.for_(ev.CheckpointSaved, 3)

        self.run(story)

    def test_the_world_on_disk_names_members_by_rank(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await self.trains(watch, place(0, "node-0", "0"), place(1, "node-1", "1"))
                path = self.home / "jobs" / "toy-1" / files.WORLD
                world = msgspec.json.decode(path.read_bytes(), type=files.World)
                assert (world.generation, world.members, world.addresses) == (1, ("g1-0", "g1-1"), ("127.0.0.1",) * 2)
                assert world.master.port > 0
                assert path.stat().st_mode & 0o077 == 0, "the key is the job's alone"

        self.run(story)

    def test_each_generation_has_a_key_of_its_own_that_outlives_the_server(self) -> None:
        def key() -> tuple[int, str]:
            path = self.home / "jobs" / "toy-1" / files.WORLD
            world = msgspec.json.decode(path.read_bytes(), type=files.World)
            return world.generation, world.key

        async def story() -> None:
            zero, one = place(0, "node-0", "0"), place(1, "node-0", "1")
            async with self.opened(1, leave=True) as watch:
                launch = await self.trains(watch, zero)
                first = key()
                await watch.backend.apply(op(OpKind.RESIZE, 2, zero, one), launch)
                await watch.for_(ev.Running, 2)
                second = key()
                assert (first[0], second[0]) == (1, 2)
                assert len(first[1]) == len(second[1]) == 64
                assert first[1] != second[1]
                # Whoever is alive must read the same from the next server: members with other keys never meet.
                (self.home / "jobs" / "toy-1" / files.WORLD).unlink()
            async with self.opened(2) as watch:
                assert isinstance(watch.backend, LocalBackend)
                watch.backend.gangs["toy-1"].publish_again()
                assert key() == second

        self.run(story)
