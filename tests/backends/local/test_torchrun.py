"""A job under the real torchrun: several workers on two nodes, another size, and its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import Watch, op, place
from tests.backends.local.test_backend import LocalTest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: Counts steps, which all must take; saves and leaves when asked to.
SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
saved = os.path.join(os.environ["LEVADA_CHECKPOINT_DIR"], "step")
step = int(open(saved).read()) if os.path.exists(saved) else 0
# In one piece: several workers write to one log.
os.write(1, f"begins {dist.get_rank()} {dist.get_world_size()} {os.environ['LOCAL_RANK']} at {step}\\n".encode())

def leave(code):
    # Who is past it has all messages; who leaves first may break it for the others.
    try:
        dist.barrier()
    except RuntimeError:
        pass
    sys.exit(code)

while True:
    votes = torch.tensor([float(bool(asked)), float(os.path.exists(sys.argv[1]))])
    dist.all_reduce(votes)
    step += 1
    if votes[0]:
        if dist.get_rank() == 0:
            with open(saved, "w") as file:
                file.write(str(step))
        leave(75)
    if votes[1]:
        leave(0)
    time.sleep(0.01)
"""


class TestTorchrun(LocalTest):
    """One story; starting torch takes seconds."""

    async def begun(self, watch: Watch, workers: int) -> list[list[str]]:
        """What the workers say when all of this size have begun."""
        while True:
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            begun = [line.split() for line in lines if line.startswith("begins")]
            if len(mine := [line for line in begun if line[2] == str(workers)]) == workers:
                return mine
            assert not watch.all(ev.JobsFailed), lines
            await asyncio.sleep(0.2)

    def torch(self) -> Path:
        """The folder of the programs of an environment with torch."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found = sorted((cache / "levada").glob("torch-*/ready"))
        if not found:
            pytest.skip("there is no environment with torch: make it with scripts/torch-env.sh")
        return found[-1].parent / "bin"

    @pytest.mark.parametrize("launcher", ["torchrun", "python -m torch.distributed.run"])
    def test_a_command_that_calls_torchrun_itself_trains_once(self, launcher: str) -> None:
        programs = self.torch()
        (self.here / "train.py").write_text(SCRIPT)
        first, *words = launcher.split()
        command = [str(programs / first), *words, "--nnodes=1", "--nproc_per_node=2"]
        launch = self.launch(
            command=(*command, str(self.here / "train.py"), str(self.here / "end")),
            framework="torchrun",
            env={"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        )

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), launch)
                await self.begun(watch, 2)
                self.say("end")
                await watch.for_(ev.JobsFinished)
                lines = [line.text async for line in watch.backend.logs("toy-1")]
                assert len([line for line in lines if line.startswith("begins")]) == 2

        self.run(story)

    def test_a_job_under_torchrun_is_resized_from_its_checkpoint(self) -> None:
        programs = self.torch()
        (self.here / "train.py").write_text(SCRIPT)
        launch = self.launch(
            command=(str(self.here / "train.py"), str(self.here / "end")),
            framework="torchrun",
            env={"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        )

        async def story() -> None:
            async with self.opened() as watch:
                three = [place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")]
                await watch.backend.apply(op(OpKind.START, 1, *three), launch)
                begun = await self.begun(watch, 3)
                assert sorted(int(line[1]) for line in begun) == [0, 1, 2]
                assert sorted(int(line[3]) for line in begun) == [0, 0, 1], "two on one node, one on the other"
                assert (await watch.backend.running())["toy-1"].running == 3
                assert [one.devices for one in watch.backend.workers("toy-1")] == [("0",), ("1",), ("0",)]
                await watch.backend.apply(
                    op(OpKind.RESIZE, 2, place(0, "node-0", "0"), place(1, "node-1", "0")), launch
                )
                await watch.for_(ev.Running, 2)
                begun = await self.begun(watch, 2)
                assert all(int(line[-1]) > 0 for line in begun), "it goes on from its checkpoint"
                self.say("end")
                await watch.for_(ev.JobsFinished)
                assert not watch.all(ev.JobsFailed)

        self.run(story)
