"""`levada profile` and the speeds of `levada describe`, against a server that runs real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from levada.cli.profiling import ProgressSamples, copy_of
from levada.core.events import OptionsChanged
from levada.sim.throughputs import read_throughputs
from tests.cli.live_server import Shell, environment, job
from tests.timeouts import WAIT_S

TRAIN = Path(__file__).parents[2] / "examples" / "numpy" / "train.py"


def training(name: str, steps: int = 100_000, step_s: float = 0.05, **spec: Any) -> dict[str, Any]:
    """A training job with this time per step with one worker."""
    made = job(name, workers={"min": 1, "max": 2}, **spec)
    env = {"STEPS": str(steps), "STEP_SECONDS": str(step_s), "OMP_NUM_THREADS": "1"}
    made["spec"]["run"] = {"command": [sys.executable, str(TRAIN)], "env": env}
    return made


def test_profile_measures_every_size_for_simulations(shell: Shell) -> None:
    path = shell.file("waves.yaml", training("waves"))
    code, out, err = shell.try_out("profile", "-f", path, "--gpu-types", "a100", "--seconds", "1", "--output", "t.csv")
    assert code == 0, err
    header, *rows = (line.split() for line in out.splitlines())
    assert header == ["WORKLOAD", "GPU", "WORKERS", "STEPS/S", "SPEED-UP", "WITH"]
    assert [row[:3] for row in rows] == [["waves", "a100", "1"], ["waves", "a100", "2"]]
    profiles = read_throughputs("t.csv")
    assert (profiles.workloads, profiles.types, profiles.sizes) == (("waves",), ("a100",), (1, 2))
    one, two = profiles.alone[0, 0]
    # A busy machine is slower than requested, but not faster.
    assert 4 < one < 26
    assert two > one
    assert "levada sim run --throughputs t.csv" in err
    # The copies are gone; the server has learned the speed of the workload.
    assert not [each for each in shell.json("ls", "--label", "levada-profile=yes") if each["phase"] != "Cancelled"]
    known = shell.json("describe", "waves")["curve"]["points"]
    assert {1, 2} <= {each["workers"] for each in known if each["gpu_type"] == "a100" and each["measured"]}


@pytest.mark.slow
def test_pairs_run_on_the_same_gpu(shell: Shell) -> None:
    path = shell.file("pairs.yaml", training("left"))
    words = ("profile", "-f", path, "--gpu-types", "v100", "--sizes", "1", "--seconds", "1", "--pairs")
    told = json.loads(shell(*words, "-o", "json"))
    assert told["file"] == "left-throughputs.csv"
    alone, pair = told["rows"]
    assert ("with" in alone, pair["with"], pair["gpu_type"]) == (False, "left", "v100")
    assert pair["with_steps_per_s"] > 0
    assert read_throughputs(told["file"]).together is not None


def test_failed_measurement_has_a_reason_and_others_continue(shell: Shell) -> None:
    silent = job("silent", "trap 'exit 75' TERM; while true; do sleep 0.05; done")
    path = shell.file("mixed.yaml", silent, job("broken", "exit 3"), training("short", 20, 0.001))
    words = ("profile", "-f", path, "--gpu-types", "a100", "--sizes", "1,64", "--seconds", "1", "--patience", "4s")
    code, out, err = shell.try_out(*words)
    assert (code, out) == (1, "")
    assert "measuring silent, 1 x a100: 1 s after its first steps\n" in err, "a long wait shows its cause"
    lines = [line for line in err.splitlines() if not line.startswith("measuring ")]
    assert (
        lines[0]
        == "silent, 1 x a100: not measured: the job reported too few steps; its script must report progress with levada.runtime"
    )
    assert lines[1] == "silent, 64 x a100: skipped: the cluster has 2 GPUs of that type"
    assert lines[2].startswith("broken, 1 x a100: not measured: the job failed; see `levada logs broken-")
    assert lines[4].startswith("short, 1 x a100: not measured: the job finished too early")
    assert lines[-1] == "levada: no speed could be measured; see the messages above"
    assert not Path("silent-throughputs.csv").exists()


def test_interrupt_cancels_the_copies(shell: Shell, home: Path) -> None:
    path = shell.file("long.yaml", training("long"))
    words = [sys.executable, "-m", "levada", "profile", "-f", path, "--seconds", "600", "--gpu-types", "a100"]
    process = subprocess.Popen(words, env=environment(shell.up, home), stderr=subprocess.PIPE, text=True)
    try:
        shell.until(lambda: any(each["workload"] == "long" for each in shell.json("ls", "--state", "Running")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (3, "levada: interrupted\n")
    assert shell.json("get", "job", "long")["phase"] == "Cancelled"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--sizes", "1,none"], "--sizes 1,none: must be numbers of workers from 1 to 4096, e.g. 1,2,4"),
        (["--gpu-types", "a10"], "--gpu-types: unknown GPU type a10; did you mean a100?"),
        (["--patience", "soon"], "--patience: must be a duration, e.g. 90s, 2h, 1h30m or 7d"),
    ],
)
def test_wrong_options(shell: Shell, words: list[str], line: str) -> None:
    path = shell.file("plain.yaml", job("plain"))
    assert shell("profile", "-f", path, *words, code=2) == line + "\n"


def test_only_jobs_of_kind_job_are_measured(shell: Shell) -> None:
    queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}
    text = shell("profile", "-f", shell.file("queue.yaml", queue), code=2)
    assert text == "kind: Queue q: cannot be measured; must be of kind Job\n"


def test_describe_shows_observed_speeds(shell: Shell) -> None:
    path = shell.file("seen.yaml", training("seen"))
    name = shell("submit", "-f", path, "-o", "name").strip()
    assert shell.json("describe", name)["curve"] == shell.up.run(lambda: shell.up.service.jobs.curve(name))
    shell.until(lambda: any(each["measured"] for each in shell.json("describe", name)["curve"]["points"]))
    page = shell("describe", name)
    shell("cancel", name)
    lines = [line.split() for line in page.splitlines()]
    (header,) = [line for line in lines if line[:2] == ["GPU", "WORKERS"]]
    assert header == [
        "GPU",
        "WORKERS",
        "MEASURED",
        "FITTED",
        "MEASURED",
        "SPEED-UP",
        "FITTED",
        "SPEED-UP",
        "CONFIDENCE",
    ]
    (now,) = [line for line in lines if len(line) > 1 and line[1].endswith("*")]
    assert now[3] == "steps/s"


def test_resize_in_place_has_a_low_estimated_cost(shell: Shell) -> None:
    quick = OptionsChanged(at=0.0, options={"min_run_s": 0.0, "cooldown_s": 0.0, "rate_limit_s": 0.0})
    shell.up.run(lambda: shell.up.service.loop.apply(quick))
    name = shell("submit", "-f", shell.file("resized.yaml", training("resized")), "-o", "name").strip()
    # Until workers report support for resizing in place, a resize is a restart.
    shell.until(lambda: (shell.json("get", "job", name)["progress"]["step"] or 0) > 20)
    shell("scale", name, "1")
    shell.until(lambda: shell.json("describe", name)["curve"]["costs"])
    (cost,) = shell.json("describe", name)["curve"]["costs"]
    assert (cost["change"], cost["times"]) == ("resize", 1)
    assert cost["seconds"] < 5.0, "30 s is the estimate for jobs that restart"
    assert "A resize pauses training for" in shell("describe", name)
    shell("cancel", name)


def test_rate_is_the_slope_without_warm_up() -> None:
    samples = ProgressSamples(20.0)
    samples.add(0.0, 0.0)
    for at in range(1, 6):  # slow warm-up
        samples.add(float(at), float(at))
    for at in range(6, 25):
        samples.add(float(at), 5.0 + 10.0 * (at - 5))
        samples.add(at + 0.5, 5.0 + 10.0 * (at - 5))  # no progress
    assert not samples.enough
    for at in range(25, 27):
        samples.add(float(at), 5.0 + 10.0 * (at - 5))
    assert samples.enough
    assert samples.rate() == pytest.approx(10.0)
    samples.add(30.0, 3.0)
    assert (samples.enough, samples.rate()) == (False, None), "it began again"


def test_copy_is_rigid_and_independent() -> None:
    spec = {"workers": {"min": 1, "max": 4}, "after": ["x"], "array": "0-9", "notify": ["http://h"], "steps": 5}
    given = job("j", gpuMemory="3Gi", **spec)
    made = copy_of(given, workers=2, gpu_type="v100", part=0.5, limit_s=90.0, name="j-pair-a")
    assert made["metadata"]["name"] == "j-pair-a"
    assert made["spec"] == {
        "run": given["spec"]["run"],
        "steps": 5,
        "workers": 2,
        "retries": 0,
        "ttl": "1h",
        "timeLimit": "90s",
        "preemptible": False,
        "gpuTypes": ["v100"],
        "gpusPerWorker": 0.5,
        "gpuMemory": "3Gi",
        "labels": {"levada-profile": "yes"},
    }
    assert given["spec"]["array"] == "0-9", "the original stays as it is"
