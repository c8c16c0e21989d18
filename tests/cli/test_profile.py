"""`levada profile` and the speeds of `levada describe`, against a server that runs real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from levada.cli.profiling import Sightings, copy_of
from levada.core.events import OptionsChanged
from levada.sim.throughputs import read_throughputs
from tests.cli.house import Shell, environment, job
from tests.patience import WAIT_S

TRAIN = Path(__file__).parents[2] / "examples" / "numpy" / "train.py"


def training(name: str, steps: int = 100_000, step_s: float = 0.05, **spec: Any) -> dict[str, Any]:
    """A job that trains, and takes this long for a step with one worker."""
    made = job(name, workers={"min": 1, "max": 2}, **spec)
    env = {"STEPS": str(steps), "STEP_SECONDS": str(step_s), "OMP_NUM_THREADS": "1"}
    made["spec"]["run"] = {"command": [sys.executable, str(TRAIN)], "env": env}
    return made


def test_a_job_is_measured_at_every_size_and_simulations_read_it(shell: Shell) -> None:
    path = shell.file("waves.yaml", training("waves"))
    code, out, err = shell.try_out("profile", "-f", path, "--gpu-types", "a100", "--seconds", "1", "--output", "t.csv")
    assert code == 0, err
    header, *rows = (line.split() for line in out.splitlines())
    assert header == ["WORKLOAD", "GPU", "WORKERS", "STEPS/S", "SPEED-UP", "WITH"]
    assert [row[:3] for row in rows] == [["waves", "a100", "1"], ["waves", "a100", "2"]]
    profiles = read_throughputs("t.csv")
    assert (profiles.workloads, profiles.types, profiles.sizes) == (("waves",), ("a100",), (1, 2))
    one, two = profiles.alone[0, 0]
    # Slower than asked for on a machine that does other things, too; hardly faster.
    assert 4 < one < 26
    assert two > one
    assert "levada sim run --throughputs t.csv" in err
    # The copies are gone, and have taught the server how fast the workload is.
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


def test_what_cannot_be_measured_says_why_and_the_rest_is_measured(shell: Shell) -> None:
    silent = job("silent", "trap 'exit 75' TERM; while true; do sleep 0.05; done")
    path = shell.file("mixed.yaml", silent, job("broken", "exit 3"), training("short", 20, 0.001))
    words = ("profile", "-f", path, "--gpu-types", "a100", "--sizes", "1,64", "--seconds", "1", "--patience", "4s")
    code, out, err = shell.try_out(*words)
    assert (code, out) == (1, "")
    assert "silent with 1 on a100 is measured, 1 s once it trains\n" in err, "who waits for long sees what for"
    lines = [line for line in err.splitlines() if " is measured, " not in line]
    assert (
        lines[0] == "silent with 1 on a100: it told of too few steps; does its script report progress (levada.runtime)?"
    )
    assert lines[1] == "silent with 64 on a100: left out, there are 2 GPUs of that type"
    assert lines[2].startswith("broken with 1 on a100: it failed; see levada logs broken-")
    assert lines[4].startswith("short with 1 on a100: it ended before it could be measured")
    assert lines[-1] == "levada: nothing could be measured; what stands in the way is said above"
    assert not Path("silent-throughputs.csv").exists()


def test_who_interrupts_it_leaves_no_copy_behind(shell: Shell, home: Path) -> None:
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
        (["--sizes", "1,none"], "--sizes 1,none: must be numbers of workers from 1 to 4096, as in 1,2,4"),
        (["--gpu-types", "a10"], "--gpu-types: there is no GPU type a10; did you mean a100?"),
        (["--patience", "soon"], "--patience: must be a duration, e.g. 90s, 2h, 1h30m or 7d"),
    ],
)
def test_wrong_options(shell: Shell, words: list[str], line: str) -> None:
    path = shell.file("plain.yaml", job("plain"))
    assert shell("profile", "-f", path, *words, code=2) == line + "\n"


def test_only_jobs_of_ours_are_measured(shell: Shell) -> None:
    queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}
    text = shell("profile", "-f", shell.file("queue.yaml", queue), code=2)
    assert text == "kind: Queue q: only jobs of kind Job can be measured\n"


def test_a_description_has_the_speeds_that_were_seen(shell: Shell) -> None:
    path = shell.file("seen.yaml", training("seen"))
    name = shell("submit", "-f", path, "-o", "name").strip()
    assert shell.json("describe", name)["curve"] == shell.up.run(lambda: shell.up.service.curve(name))
    shell.until(lambda: any(each["measured"] for each in shell.json("describe", name)["curve"]["points"]))
    page = shell("describe", name)
    shell("cancel", name)
    lines = [line.split() for line in page.splitlines()]
    (header,) = [line for line in lines if line[:2] == ["GPU", "WORKERS"]]
    assert header == ["GPU", "WORKERS", "MEASURED", "FITTED", "MEASURED", "SPEED-UP", "FITTED", "SPEED-UP", "SURE"]
    (now,) = [line for line in lines if len(line) > 1 and line[1].endswith("*")]
    assert now[3] == "steps/s"


def test_a_resize_in_process_is_known_to_cost_next_to_nothing(shell: Shell) -> None:
    quick = OptionsChanged(at=0.0, options={"min_run_s": 0.0, "cooldown_s": 0.0, "rate_limit_s": 0.0})
    shell.up.run(lambda: shell.up.service.loop.tell(quick))
    name = shell("submit", "-f", shell.file("resized.yaml", training("resized")), "-o", "name").strip()
    # Before they tell that they can, workers would have to start anew.
    shell.until(lambda: (shell.json("get", "job", name)["progress"]["step"] or 0) > 20)
    shell("scale", name, "1")
    shell.until(lambda: shell.json("describe", name)["curve"]["costs"])
    (cost,) = shell.json("describe", name)["curve"]["costs"]
    assert (cost["change"], cost["times"]) == ("resize", 1)
    assert cost["seconds"] < 5.0, "half a minute is what is expected of jobs that start anew"
    assert "A resize stops resized for" in shell("describe", name)
    shell("cancel", name)


def test_a_rate_is_the_slope_of_what_is_seen_without_its_beginning() -> None:
    sightings = Sightings(20.0)
    sightings.see(0.0, 0.0)
    for at in range(1, 6):  # a slow beginning
        sightings.see(float(at), float(at))
    for at in range(6, 25):
        sightings.see(float(at), 5.0 + 10.0 * (at - 5))
        sightings.see(at + 0.5, 5.0 + 10.0 * (at - 5))  # nothing new
    assert not sightings.enough
    for at in range(25, 27):
        sightings.see(float(at), 5.0 + 10.0 * (at - 5))
    assert sightings.enough
    assert sightings.rate() == pytest.approx(10.0)
    sightings.see(30.0, 3.0)
    assert (sightings.enough, sightings.rate()) == (False, None), "it began again"


def test_a_copy_is_rigid_and_stands_for_itself() -> None:
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
