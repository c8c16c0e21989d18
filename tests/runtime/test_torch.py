"""Real PyTorch jobs: resized in place, by restart, and under torchrun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from levada.runtime.report import COMPLETE, READY, SAVES
from tests.runtime.supervisor import WorkerProcess, free_port, supervising

ROOT = Path(__file__).parents[2]
TRAIN = str(ROOT / "examples" / "pytorch" / "train.py")
EPOCHS = 4
STEPS = EPOCHS * 64
ENV = {"EPOCHS": str(EPOCHS), "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
SLOWLY = {**ENV, "STEP_SECONDS": "0.03"}
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def python() -> str:
    """A Python interpreter with torch."""
    script = ROOT / "scripts" / "torch-env.sh"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    is_there = any((cache / "levada").glob("torch-*/ready"))
    if not is_there and os.environ.get("CI") != "true":
        pytest.skip("there is no environment with torch: make it with scripts/torch-env.sh")
    env = {**os.environ, "PYTHON": sys.executable}
    result = subprocess.run([script], env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    return result.stdout.strip()


@pytest.fixture(scope="module")
def undisturbed(python: str) -> float:
    """The result of one worker without a server."""
    done = subprocess.run([python, TRAIN], env=ENV, capture_output=True, text=True, check=True, timeout=120)
    return net(done.stdout)


def net(output: str) -> float:
    """The result that rank 0 printed at its end."""
    match = re.search(rf"done after {STEPS} steps, norm of the net (\S+)", output)
    assert match is not None, output
    return float(match[1])


def losses(*workers: WorkerProcess) -> dict[int, float]:
    """Loss by step, as printed by workers of rank 0."""
    lines = "".join(worker.output for worker in workers)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", lines)}


def goes_on(curve: dict[int, float]) -> bool:
    """Whether later losses are as small as after uninterrupted training."""
    late = [loss for step, loss in curve.items() if step > STEPS // 2]
    return bool(late) and sum(late) / len(late) < 0.3


def test_a_torch_job_is_resized_in_place_and_survives_the_loss_of_rank_0(
    tmp_path: Path, python: str, undisturbed: float
) -> None:
    with supervising(tmp_path, [TRAIN], SLOWLY, python) as job:
        first, second = job.start(2, ahead=1)
        job.wait_step(10)
        job.resize([first, second], add=1)
        job.wait_joined()
        assert 0 < first.report.pause_s < 10
        third = job.members[2]
        job.wait_step(int(first.report.step) + 10)
        first.signal(signal.SIGKILL)
        first.exit_code()
        job.resize([second, third])
        job.wait_joined()
        job.wait_step(int(second.report.step) + 10)
        job.resize([third])
        assert second.exit_code() == 75
        job.wait_joined()
        assert third.exit_code() == 0
        assert abs(net(third.output) - undisturbed) < 1e-3
        assert goes_on(losses(first, second, third))
        assert not list(job.checkpoints.iterdir())


def test_a_torch_job_is_resized_by_restart(tmp_path: Path, python: str, undisturbed: float) -> None:
    with supervising(tmp_path, [TRAIN], {**SLOWLY, "LEVADA_ELASTIC": "0"}, python) as job:
        before = job.start(2)
        job.wait_joined()
        job.wait_step(100)
        assert [worker.report.flags for worker in before] == [READY | SAVES] * 2
        for worker in before:
            worker.signal(signal.SIGTERM)
        assert [worker.exit_code() for worker in before] == [75, 75]
        saved = before[0].report.saved_step
        assert saved == before[0].report.step == before[1].report.step
        (after,) = job.start(1)
        job.wait_joined()
        assert after.report.step >= saved
        assert after.exit_code() == 0
        assert abs(net(after.output) - undisturbed) < 1e-3
        assert goes_on(losses(*before, after))


@pytest.fixture
def rendezvous(python: str) -> Iterator[int]:
    """A rendezvous of torchrun agents in a separate process, so that any agent may leave."""
    port = free_port()
    code = f"""
import signal
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", {port}, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
print("up", flush=True)
signal.pause()
"""
    with subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield port
        finally:
            process.kill()


@pytest.mark.slow
def test_a_torch_job_is_resized_by_torchrun(tmp_path: Path, python: str, rendezvous: int) -> None:
    agent = ["-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-id=job"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{rendezvous}"]
    settings = ["--rdzv-conf=is_host=0,last_call_timeout=1", "--local-addr=127.0.0.1", TRAIN]
    endless = {"EPOCHS": "1000", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with supervising(tmp_path, [*agent, *meeting, *settings], {**SLOWLY, **endless}, python) as job:
        (first,) = job.start(1)
        job.wait_step(30)
        (second,) = job.start(1)
        job.wait_until(lambda: len(re.findall("workers 2", first.output + second.output)) > 3, "both train together")
        # Workers are in separate process groups: only the agents can stop them.
        for worker in (first, second):
            worker.signal(signal.SIGTERM)
        for worker in (first, second):
            worker.exit_code()
        lines = re.findall(r"step (\d+) loss (\S+) workers (\d)", first.output + second.output)
        alone = [(int(step), float(loss)) for step, loss, workers in lines if workers == "1"]
        together = [(int(step), float(loss)) for step, loss, workers in lines if workers == "2"]
        assert min(step for step, _ in together) > max(step for step, _ in alone) - 8
        assert sum(loss for _, loss in together) / len(together) < alone[0][1] / 2
        assert len(re.findall("step 1 loss", first.output + second.output)) == 1


LOADS = """
import levada.runtime.torch, torch, time
job = levada.runtime.torch.init()
seen = []
job.state(seen=seen)
loader = job.loader(torch.arange(4096), batch_size=4, num_workers=1)
for items in job.steps(loader):
    seen += items.tolist()
    time.sleep(0.01)
"""


def test_data_loader_processes_do_not_block_a_stop(tmp_path: Path, python: str) -> None:
    (tmp_path / "loads.py").write_text(LOADS)
    with supervising(tmp_path, [str(tmp_path / "loads.py")], ENV, python) as job:
        (worker,) = job.start(1)
        job.wait_step(20)
        os.killpg(worker.process.pid, signal.SIGTERM)
        assert worker.exit_code() == 75
        assert worker.report.saved_step == worker.report.step >= 20
        assert "Error" not in worker.output


SHARES = """
import levada.runtime.torch, torch
job = levada.runtime.torch.init()
data = torch.arange(22)
loader = job.loader(data, batch_size=4)
assert loader.dataset is data
job.state(seen=[])
for epoch in job.epochs(2):
    loader.sampler.set_epoch(epoch)  # as code for torch's DistributedSampler does
    share, seen = list(loader.sampler), []
    for items in job.steps(loader):
        seen += items.tolist()
    print(job.rank, epoch, len(loader), len(loader.sampler) == len(share), seen == share, *seen)
job.complete()
"""


def test_a_loader_shows_its_dataset_and_the_samples_of_this_worker(tmp_path: Path, python: str) -> None:
    (tmp_path / "shares.py").write_text(SHARES)
    with supervising(tmp_path, [str(tmp_path / "shares.py")], ENV, python) as job:
        workers = job.start(2)
        assert [worker.exit_code() for worker in workers] == [0, 0]
        lines = [line.split() for worker in workers for line in worker.output.splitlines()]
    assert [line[:5] for line in lines] == [[rank, epoch, "5", "True", "True"] for rank in "01" for epoch in "01"]
    for epoch in "01":
        samples = [int(sample) for line in lines if line[1] == epoch for sample in line[5:]]
        assert len(samples) == len(set(samples)) == 20, "five complete batches, every sample once"


BREAKS = """
import os, time
import levada.runtime.torch
job = levada.runtime.torch.init()
for _ in job.steps(10**9):
    time.sleep(0.01)
    if os.path.exists(os.environ["BREAK"]):
        raise RuntimeError("it broke")
"""


def test_traceback_lines_have_one_rank_after_resizes(tmp_path: Path, python: str) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    stop = tmp_path / "break"
    with supervising(tmp_path, [str(tmp_path / "breaks.py")], {**ENV, "BREAK": str(stop)}, python) as job:
        (first,) = job.start(1, ahead=1)
        job.wait_step(5)
        _, second = job.resize([first], add=1)
        job.wait_joined()
        job.resize([second])
        job.wait_joined()
        stop.touch()
        assert second.exit_code() == 1
        assert "[rank0]: RuntimeError: it broke" in second.output
        assert not re.search(r"\[rank\d+\]: \[rank", second.output)


GAVEL = """
import json, os, sys, time
import torch, torch.distributed as dist
from gavel_iterator import GavelIterator

def save(steps, path):
    with open(path, "w") as file:
        json.dump(steps, file)

dist.init_process_group("gloo")
items = GavelIterator(range(1000), sys.argv[1], None, save)
steps = torch.zeros(1)
while not items.done:
    for item in items:
        one = torch.ones(1)
        dist.all_reduce(one)
        steps += one / dist.get_world_size()
        time.sleep(0.01)
if dist.get_rank() == 0:
    items.save_checkpoint(int(steps), os.path.join(sys.argv[1], "steps.json"))
print("left after", int(steps))
"""


@pytest.mark.slow
def test_workers_of_a_gavel_script_stop_after_the_same_step(tmp_path: Path, python: str) -> None:
    (tmp_path / "script.py").write_text(GAVEL)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    command = ["-m", "levada.runtime.gavel", str(tmp_path / "script.py"), str(checkpoints)]
    with supervising(tmp_path, command, {**ENV, "GLOO_SOCKET_IFNAME": "lo"}, python) as job:
        workers = job.start(2)
        job.wait_step(20)
        workers[1].signal(signal.SIGTERM)
        assert [worker.exit_code() for worker in workers] == [0, 0]
        left = {re.findall(r"left after (\d+)", worker.output)[0] for worker in workers}
        assert left == {(checkpoints / "steps.json").read_text()}
        assert workers[0].report.saved_step == float(*left) >= 20

        # The job resumes, and all workers end with the last granted step.
        total = int(*left) + 15
        workers = job.start(2, lease={"total_steps": total})
        assert [worker.exit_code() for worker in workers] == [0, 0]
        assert [re.findall(r"left after (\d+)", worker.output) for worker in workers] == [["15"], ["15"]]
        assert [worker.report.step for worker in workers] == [total, total]
        assert workers[0].report.flags & COMPLETE


GAVEL_OPEN = """
import atexit, sys, torch, torch.distributed as dist
from gavel_iterator import GavelIterator

items = GavelIterator(range(1000), sys.argv[1], None, None)
dist.init_process_group("gloo")
atexit.register(lambda: print("open at exit:", dist.is_initialized()))
for item in items:
    dist.all_reduce(torch.ones(1))
"""


def test_a_gavel_script_leaves_no_process_group_open(tmp_path: Path, python: str) -> None:
    """torch aborts about one in four exits with an open process group (SIGABRT after all steps)."""
    (tmp_path / "script.py").write_text(GAVEL_OPEN)
    command = ["-m", "levada.runtime.gavel", str(tmp_path / "script.py"), str(tmp_path / "checkpoints")]
    with supervising(tmp_path, command, {**ENV, "GLOO_SOCKET_IFNAME": "lo"}, python) as job:
        workers = job.start(2, lease={"total_steps": 3})
        assert [worker.exit_code() for worker in workers] == [0, 0]
        assert all("open at exit: False" in worker.output for worker in workers)


GAVEL_LOADS = """
import json, os, sys, time
from torch.utils.data import DataLoader
from gavel_iterator import GavelIterator

def save(steps, path):
    with open(path, "w") as file:
        json.dump(steps, file)

items = GavelIterator(DataLoader(range(40), num_workers=1), sys.argv[1], None, save)
beside = iter(DataLoader(range(10**6), num_workers=1))
steps = 0
while not items.done:
    for item in items:
        next(beside)
        time.sleep(0.01)
        steps += 1
next(beside)
items.complete()
items.save_checkpoint(steps, os.path.join(sys.argv[1], "steps.json"))
"""


def test_a_gavel_script_with_data_loader_processes_saves_when_stopped(tmp_path: Path, python: str) -> None:
    (tmp_path / "script.py").write_text(GAVEL_LOADS)
    checkpoints = tmp_path / "checkpoints"
    command = ["-m", "levada.runtime.gavel", str(tmp_path / "script.py"), str(checkpoints)]
    with supervising(tmp_path, command, ENV, python) as job:
        (worker,) = job.start(1, lease={"total_steps": 10**6})
        job.wait_step(60)
        os.killpg(worker.process.pid, signal.SIGTERM)
        assert worker.exit_code() == 0
        assert worker.report.step == worker.report.saved_step == int((checkpoints / "steps.json").read_text()) >= 60
        assert not worker.report.flags & COMPLETE
        assert "Error" not in worker.output
