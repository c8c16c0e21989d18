"""Scripts with `#SBATCH` and `#LEVADA` lines become jobs."""

import subprocess
from typing import Any

import pytest

from levada.errors import BadInput
from levada.jobfile.load import check
from levada.jobfile.script import Script, as_name, from_script

SLURM = """#!/bin/bash
#SBATCH --job-name=ResNet_50
#SBATCH -N 2 --ntasks-per-node=2
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH -t 1-12:30:00
#SBATCH --partition=vision
#SBATCH --array=0-8:4%2
#SBATCH --dependency=afterok:prepare-1:prepare-2
#SBATCH --requeue
#SBATCH --chdir=/data
#SBATCH --export=LR=0.1,HOME
#SBATCH --mail-type=END --constraint=ib

echo "$1 $SLURM_ARRAY_TASK_ID"
#SBATCH --time=1
"""


def created(text: str, **kwargs: Any) -> Script:
    script = from_script(text, "/home/me/run.sh", environment={"HOME": "/home/me"}, **kwargs)
    check(script.document)
    return script


def spec_of(text: str) -> dict[str, Any]:
    result: dict[str, Any] = created(text).document["spec"]
    return result


def lines(text: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        created(text)
    return [str(fault) for fault in caught.value.faults]


def test_slurm() -> None:
    script = created(SLURM, arguments=["hello"])
    spec = script.document["spec"]
    assert script.document["metadata"] == {"name": "resnet-50"}
    assert (spec["workers"], spec["gpusPerWorker"], spec["gpuTypes"]) == (4, 2, ["a100"])
    # Slurm's memory is a node's.
    assert spec["resources"] == {"cpu": 8, "memory": "32768Mi"}
    assert (spec["timeLimit"], spec["queue"], spec["array"]) == (131400.0, "vision", "0,4,8")
    assert (spec["after"], spec["preemptible"]) == (["prepare-1", "prepare-2"], True)
    assert (spec["run"]["workdir"], spec["run"]["env"]) == ("/data", {"LR": "0.1", "HOME": "/home/me"})
    assert script.warnings == [
        "line 14: --mail-type=END --constraint=ib: ignored: not supported (mail: use `notify`)",
        "line 9: --array: %2 ignored: all tasks may run at once",
    ]


def test_the_script_that_was_sent_is_what_runs() -> None:
    command = created(SLURM, arguments=["hello"]).document["spec"]["run"]["command"]
    done = subprocess.run(command, env={"LEVADA_ARRAY_INDEX": "4"}, capture_output=True, text=True, check=True)
    assert done.stdout == "hello 4\n"


@pytest.mark.parametrize(
    ("directives", "gpus", "workers"),
    [
        ("", 1, 1),  # without any line it is an ordinary job
        ("#SBATCH --ntasks=4", 0, 4),  # Slurm gives no GPU that was not asked for
        ("#SBATCH --gpus=4", 4, 1),
        ("#SBATCH --gpus=8 -n 4", 2, 4),
        ("#SBATCH --gpus-per-node=v100:4 -N 2", 4, 2),
        ("#SBATCH --gpus-per-task=2 -n 3", 2, 3),
        ("#SBATCH --gres=gpu", 1, 1),
    ],
)
def test_gpus_of_slurm(directives: str, gpus: int, workers: int) -> None:
    spec = spec_of(f"#!/bin/sh\n{directives}\ntrue\n")
    assert (spec.get("gpusPerWorker", 1), spec.get("workers", 1)) == (gpus, workers)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-0", 86400), ("1-2:3", 93780), ("UNLIMITED", None)],
)
def test_times_of_slurm(text: str, seconds: float | None) -> None:
    assert spec_of(f"#!/bin/sh\n#SBATCH --time {text}\n").get("timeLimit") == seconds


def test_lines_of_our_own() -> None:
    script = created(
        "#!/bin/sh\n#SBATCH --gpus=4 --partition=a\n"
        "#LEVADA workers=1-8 gpuTypes=a100,v100 steps=1000 queue=b name=mine  # a comment\n"
        "#LEVADA label.team=vision env.LR=0.1 weight=0.5 preemptible=false gracePeriod=90s memory=8Gi\n"
        "python train.py\n"
    )
    spec = script.document["spec"]
    assert script.document["metadata"]["name"] == "mine"
    assert spec["workers"] == {"min": 1, "max": 8}
    assert (spec["gpuTypes"], spec["steps"], spec["queue"], spec["weight"]) == (["a100", "v100"], 1000, "b", 0.5)
    assert (spec["labels"], spec["run"]["env"], spec["preemptible"]) == ({"team": "vision"}, {"LR": "0.1"}, False)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("#LEVADA workers", "line 2: workers: must be field=value, e.g. workers=1-8"),
        ("#LEVADA worker=3", "line 2: worker: unknown field; did you mean workers?"),
        ("#LEVADA workers=some", "line 2: workers: must be a number or a range of workers, e.g. 4 or 1-8"),
        ("#LEVADA queue='a", "line 2: cannot be read: no closing quotation"),
        ("#LEVADA steps=some", "spec.steps: must be a whole number"),
        ("#SBATCH --ntasks=0", "line 2: --ntasks: must be a whole number, at least 1"),
        ("#SBATCH --ntasks", "line 2: cannot be read: argument --ntasks/-n: expected one argument"),
        ("#SBATCH --gpus=3 -n 2", "line 2: --gpus: 3 GPUs cannot be divided evenly among 2 tasks"),
        ("#SBATCH --time=soon", "line 2: --time: must be a time, e.g. 30 (minutes), 12:00:00 or 2-12"),
        ("#SBATCH --mem=lots", "line 2: --mem: must be an amount of memory, e.g. 16G"),
    ],
)
def test_fault_of_a_line(line: str, fault: str) -> None:
    assert lines(f"#!/bin/sh\n{line}\n") == [fault]


@pytest.mark.parametrize("text", ["", "print(1)\n", "#!\n", "\n#!/bin/sh\n"])
def test_what_is_no_script(text: str) -> None:
    assert lines(text) == ["/home/me/run.sh: not a script: the first line must name a shell, e.g. #!/bin/bash"]


def test_launchers_of_slurm_are_warned_of() -> None:
    assert created("#!/bin/sh\nsrun python train.py\n").warnings == [
        "line 2: srun: each worker runs the whole script; leave srun out"
    ]


def test_a_script_of_another_language_runs_from_its_file() -> None:
    script = created("#!/usr/bin/env python3\n#LEVADA steps=3\nprint(1)\n", arguments=["x"])
    assert script.document["spec"]["run"]["command"] == ["/usr/bin/env", "python3", "/home/me/run.sh", "x"]


@pytest.mark.parametrize(("text", "name"), [("Train_It.v2", "train-it-v2"), ("---", "job"), ("a" * 60, "a" * 42)])
def test_names(text: str, name: str) -> None:
    assert as_name(text) == name
