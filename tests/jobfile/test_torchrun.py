"""Jobs whose command calls torchrun: merged, or a fault that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from levada.errors import BadInput
from levada.jobfile import torchrun
from levada.jobfile.load import check
from levada.jobfile.script import from_script


@pytest.mark.parametrize(
    ("command", "merged"),
    [
        ("torchrun train.py --lr 1", "torchrun OURS train.py --lr 1"),
        ("/opt/bin/torchrun --nnodes=2 --nproc_per_node 4 train.py", "/opt/bin/torchrun OURS train.py"),
        ("torchrun --standalone --tee 3 -m pkg.train --nnodes 3", "torchrun --tee 3 -m OURS pkg.train --nnodes 3"),
        ("torchrun --rdzv-id=7 --log-dir=/x --no-python sh run.sh", "torchrun --log-dir=/x --no-python OURS sh run.sh"),
        (
            "python3 -u -m torch.distributed.run --node_rank 1 --master_addr=h --master_port=1 train.py",
            "python3 -u -m torch.distributed.run OURS train.py",
        ),
        (
            "python -m torch.distributed.launch --use_env --max_restarts=3 train.py",
            "python -m torch.distributed.launch --use_env OURS train.py",
        ),
    ],
)
def test_options_for_processes_and_their_meeting_are_levadas_and_all_others_stay(command: str, merged: str) -> None:
    launcher = torchrun.read(command.split())
    assert launcher is not None
    assert " ".join(launcher.merged(["OURS"])) == merged


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python -m pkg --x",
        "python -c torchrun",
        "torchrun --standalone",
        "bash torchrun x",
        "python",
    ],
)
def test_other_commands_are_none_of_torchrun(command: str) -> None:
    assert torchrun.read(command.split()) is None
    assert torchrun.fault_of(command.split(), "torchrun", 1, 4, 1) == ""


def job(command: str, framework: str | None = None, **spec: Any) -> dict[str, Any]:
    run: dict[str, Any] = {"command": command.split()}
    if framework is not None:
        run["framework"] = framework
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": "toy"},
        "spec": {"run": run, **spec},
    }


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (job("torchrun train.py", "plain", workers=2), "each of 2 workers would run a torchrun of its own"),
        (job("torchrun --nproc_per_node=4 t.py", workers=2), "requests 4 processes, but the job has 2 workers"),
        (job("torchrun --nproc-per-node 4 t.py", "torchrun", gpusPerWorker=4), "use workers: 4 with gpusPerWorker: 1"),
        (job("torchrun --nproc-per-node gpu t.py", workers=2, gpusPerWorker=4), "requests 4 processes"),
        (
            job("torchrun --nnodes=1:4 --nproc_per_node=8 t.py", workers={"min": 1, "max": 4}),
            "requests 32 processes, but the job has 1 to 4 workers",
        ),
    ],
)
def test_a_torchrun_that_means_something_else_is_refused(document: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        check(document)
    (fault,) = refused.value.faults
    assert fault.path == "spec.run"
    assert says in fault.text


@pytest.mark.parametrize(
    "document",
    [
        job("torchrun train.py", workers=2),
        job("torchrun --nproc_per_node=4 t.py", workers=4),
        job("torchrun --nnodes 2 --nproc_per_node=2 t.py", "torchrun", workers=4),
        job("torchrun --nproc_per_node=gpu t.py", workers={"min": 1, "max": 4}),
        job("torchrun --nproc_per_node=4 t.py", gpusPerWorker=4),
        job("torchrun --nproc_per_node=4 t.py", "plain", gpusPerWorker=4),
        job("mpirun torchrun t.py", "mpi", workers=2),
    ],
)
def test_a_torchrun_that_can_be_merged_or_is_alone_is_taken(document: dict[str, Any]) -> None:
    assert check(document).kind == "Job"


def test_a_script_with_torchrun_in_it_is_warned_of_where_there_are_several_workers() -> None:
    text = "#!/bin/bash\n#LEVADA workers={}\ntorchrun train.py\n"
    assert from_script(text.format(1), "x.sh", environment={}).warnings == []
    (warning,) = from_script(text.format("1-4"), "x.sh", environment={}).warnings
    assert warning == "line 3: torchrun: each worker runs the whole script; leave torchrun out"
