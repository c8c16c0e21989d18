"""Random changes of the members: every step is done exactly once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.runtime.supervisor import Supervisor, supervising

CHANGES = 10

#: Ends after a step common to all members, once the file argv[1] exists.
SCRIPT = """
import array, os, sys, time
import levada.runtime
job = levada.runtime.init(save_every_s=0.3)
total, seen = array.array("d", [0.0]), []
job.state(total=total, seen=seen)
job.join()
sums = [0, 0]
while True:
    for step in job.steps(job.step + 1):
        with job.guard():
            is_mine = job.rank == step % job.world_size
            sums = array.array("d", [step + 1.0 if is_mine else 0.0, float(os.path.exists(sys.argv[1]))])
            job.group.allreduce(sums)
            assert sums[0] == step + 1, (sums, step)
            total[0] += sums[0]
            seen.append(step)
            time.sleep(0.002)
    if sums[1]:
        break
assert seen == list(range(job.step)), seen
assert total[0] == job.step * (job.step + 1) / 2
job.complete()
print("right", job.step)
"""


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_every_step_is_done_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "script.py").write_text(SCRIPT)
    end = tmp_path / "end"
    with supervising(tmp_path, [str(tmp_path / "script.py"), str(end)]) as job:
        job.start(2)
        for _ in range(CHANGES):
            change(job, rng)
            job.wait_joined()
            job.wait_step(int(job.members[0].report.step) + rng.randint(1, 50))
        end.touch()
        assert [worker.exit_code() for worker in job.members] == [0] * len(job.members)
        steps = int(job.members[0].report.step)
        assert all(worker.output.endswith(f"right {steps}\n") for worker in job.members)
        assert "Traceback" not in "".join(worker.output for worker in job.workers.values())


def change(job: Supervisor, rng: random.Random) -> None:
    """Apply one random resize, loss or restart to the job."""
    members = list(job.members)
    kind = rng.choice(["grow", "shrink", "replace", "lose", "lose during rendezvous", "restart"])
    if kind == "grow" or len(members) == 1:
        job.resize(members, add=rng.randint(1, 2) if len(members) < 4 else 0)
    elif kind == "shrink":
        job.resize(rng.sample(members, rng.randint(1, len(members) - 1)))
    elif kind == "replace":
        job.resize(rng.sample(members, rng.randint(1, len(members))), add=1)
    elif kind == "restart":
        for worker in members:
            worker.signal(signal.SIGTERM)
        assert [worker.exit_code() for worker in members] == [75] * len(members)
        job.start(rng.randint(1, 3))
    else:
        if kind == "lose during rendezvous":
            job.resize(members, add=1)
            # At any moment of the rendezvous.
            time.sleep(rng.random() * 0.3)
        lost = rng.choice(job.members)
        lost.signal(signal.SIGKILL)
        lost.exit_code()
        job.resize([worker for worker in job.members if worker is not lost], add=rng.randint(0, 1))
