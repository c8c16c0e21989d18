"""A job under the real torchrun: start on two nodes, resize, end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import BackendWatch, op, place
from tests.backends.local.test_backend import LocalTest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: Counts steps of all workers; saves and exits on SIGTERM.
SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
saved = os.path.join(os.environ["LEVADA_CHECKPOINT_DIR"], "step")
step = int(open(saved).read()) if os.path.exists(saved) else 0
# One write: several workers share one log.
os.write(1, f"begins {dist.get_rank()} {dist.get_world_size()} {os.environ['LOCAL_RANK']} at {step}\\n".encode())

def leave(code):
    # A rank after the barrier has all messages; the first exit may break it for the others.
    try:
        dist.barrier()
    except RuntimeError:
        pass
    # Without destructors: gloo's abort the process if a peer has closed its connections before.
    os._exit(code)

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
    """Jobs with the framework `torchrun`."""

    async def wait_begun(self, watch: BackendWatch, workers: int) -> list[list[str]]:
        """Wait until all workers of this size have begun; return their first lines."""
        while True:
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            begun = [line.split() for line in lines if line.startswith("begins")]
            if len(lines_of_size := [line for line in begun if line[2] == str(workers)]) == workers:
                return lines_of_size
            assert not watch.events_of(ev.JobsFailed), lines
            await asyncio.sleep(0.2)

    def torch(self) -> Path:
        """The `bin` folder of an environment with torch."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environments = sorted((cache / "levada").glob("torch-*/ready"))
        if not environments:
            pytest.skip("there is no environment with torch: make it with scripts/torch-env.sh")
        return environments[-1].parent / "bin"

    @pytest.mark.parametrize("launcher", ["torchrun", "python -m torch.distributed.run"])
    async def test_a_command_that_calls_torchrun_itself_trains_once(self, launcher: str) -> None:
        programs = self.torch()
        (self.work / "train.py").write_text(SCRIPT)
        first, *arguments = launcher.split()
        command = [str(programs / first), *arguments, "--nnodes=1", "--nproc_per_node=2"]
        launch = self.launch(
            command=(*command, str(self.work / "train.py"), str(self.work / "end")),
            framework="torchrun",
            env={"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        )

        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), launch)
            await self.wait_begun(watch, 2)
            self.write_control("end")
            await watch.wait_event(ev.JobsFinished)
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            assert len([line for line in lines if line.startswith("begins")]) == 2

    async def test_a_job_under_torchrun_is_resized_from_its_checkpoint(self) -> None:
        programs = self.torch()
        (self.work / "train.py").write_text(SCRIPT)
        launch = self.launch(
            command=(str(self.work / "train.py"), str(self.work / "end")),
            framework="torchrun",
            env={"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        )

        async with self.opened() as watch:
            three = [place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")]
            await watch.backend.apply(op(OpKind.START, 1, *three), launch)
            begun = await self.wait_begun(watch, 3)
            assert sorted(int(line[1]) for line in begun) == [0, 1, 2]
            assert sorted(int(line[3]) for line in begun) == [0, 0, 1], "two on one node, one on the other"
            assert (await watch.backend.running())["toy-1"].running == 3
            assert [one.devices for one in watch.backend.workers("toy-1")] == [("0",), ("1",), ("0",)]
            await watch.backend.apply(op(OpKind.RESIZE, 2, place(0, "node-0", "0"), place(1, "node-1", "0")), launch)
            await watch.wait_event(ev.Running, 2)
            begun = await self.wait_begun(watch, 2)
            assert all(int(line[-1]) > 0 for line in begun), "the job resumes from its checkpoint"
            self.write_control("end")
            await watch.wait_event(ev.JobsFinished)
            assert not watch.events_of(ev.JobsFailed)
