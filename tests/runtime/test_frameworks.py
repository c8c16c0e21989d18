"""Elastic JAX and TensorFlow with parameter servers, where installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.runtime.supervisor import free_port, supervising, wait_until

ROOT = Path(__file__).parents[2]
ENV = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
pytestmark = [pytest.mark.frameworks, pytest.mark.slow]


def python_with(framework: str) -> str:
    """A Python interpreter with *framework*."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environments = sorted((cache / "levada").glob(f"{framework}-*/ready"))
    if not environments:
        pytest.skip(f"there is no environment with it: make it with scripts/framework-env.sh {framework}")
    return str(environments[-1].parent / "bin" / "python")


def test_a_jax_job_grows_and_survives_the_exit_of_rank_0(tmp_path: Path) -> None:
    python, train = python_with("jax"), str(ROOT / "examples" / "jax" / "train.py")
    with supervising(tmp_path, [train], {**ENV, "STEPS": "200", "STEP_SECONDS": "0.03"}, python) as job:
        (first,) = job.start(1, ahead=1)
        job.wait_step(10)
        job.resize([first], add=1)
        job.wait_joined()
        second = job.members[1]
        job.wait_step(int(first.report.step) + 10)
        job.resize([second])
        assert first.exit_code() == 75
        job.wait_joined()
        assert second.report.step >= 20
        assert second.exit_code() == 0
        alone = subprocess.run(
            [python, train], env={**ENV, "STEPS": "200"}, capture_output=True, text=True, timeout=120
        )
        (expected,) = re.findall(r"step 200/200  loss (\S+)", alone.stdout)
        (loss,) = re.findall(r"step 200/200  loss (\S+)", second.output)
        assert abs(float(loss) - float(expected)) < 1e-3


def test_a_jax_job_stops_and_resumes(tmp_path: Path) -> None:
    python, train = python_with("jax"), str(ROOT / "examples" / "jax" / "train.py")
    with supervising(tmp_path, [train], {**ENV, "STEPS": "100", "STEP_SECONDS": "0.03"}, python) as job:
        before = job.start(2)
        job.wait_step(30)
        for worker in before:
            worker.signal(signal.SIGTERM)
        assert [worker.exit_code() for worker in before] == [75, 75]
        saved = before[0].report.saved_step
        (after,) = job.start(1)
        job.wait_joined()
        assert after.report.step >= saved >= 30
        assert after.exit_code() == 0


def test_tensorflow_with_a_parameter_server_resumes_after_a_stop(tmp_path: Path) -> None:
    python, train = python_with("tensorflow"), str(ROOT / "examples" / "tensorflow" / "train.py")

    def spawn(steps: int) -> dict[str, subprocess.Popen[str]]:
        hosts = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
        processes = {}
        for kind, index in (("ps", 0), ("worker", 1), ("worker", 0)):
            config = json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})
            quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "LEVADA_CHECKPOINT_DIR": str(tmp_path)}
            with open(tmp_path / f"{kind}{index}.log", "w") as log:
                env = {**ENV, **quiet, "TF_CONFIG": config, "STEPS": str(steps)}
                processes[f"{kind}{index}"] = subprocess.Popen([python, train], env=env, stdout=log, text=True)
        return processes

    def printed() -> str:
        return (tmp_path / "worker0.log").read_text()

    def clear(processes: dict[str, subprocess.Popen[str]]) -> None:
        for process in processes.values():
            process.kill()
            process.wait()

    running = spawn(10**6)
    try:
        wait_until(lambda: "step 100/" in printed(), "it trains", 120)
        running["worker0"].send_signal(signal.SIGTERM)
        assert running["worker0"].wait(60) == 75
    finally:
        clear(running)
    saved = json.loads((tmp_path / "levada.checkpoint").read_bytes().splitlines()[0])["step"]
    running = spawn(saved + 40)
    try:
        assert [process.wait(120) for process in running.values()] == [0, 0, 0]
    finally:
        clear(running)
    assert re.findall(r"step (\d+)/", printed())[0] > "1"
    match = re.search("weights (.*)", printed())
    assert match is not None
    assert [float(weight) for weight in match[1].split()] == pytest.approx([1.0, -2.0, 3.0, 0.5], abs=0.05)
