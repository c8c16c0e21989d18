"""A command line is a run of its script or module, not of its interpreter."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.jobfile.script import as_name
from levada.jobfile.workload_name import workload_of


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python x.py", "x"),
        ("python3.11 -u -W ignore dir/train_resnet.py --lr 0.1", "train-resnet"),
        ("/opt/venv/bin/python -m pkg.mod --flag", "mod"),
        ("python -m pkg.__main__", "pkg"),
        ("python -c 'import x'", "python"),
        ("python", "python"),
        ("torchrun --nproc-per-node 2 x.py --epochs 3", "x"),
        ("torchrun -m pkg.train", "train"),
        ("python -m torch.distributed.run --nnodes=1 x.py", "x"),
        ("accelerate launch --num_processes 2 finetune.py", "finetune"),
        ("horovodrun -np 2 python mnist.py", "mnist"),
        ("mpirun -np 4 ./solver --steps 3", "solver"),
        ("./train.sh", "train"),
        ("bash -e scripts/train.sh a b", "train"),
        ("bash -c 'cd /data && python x.py | tee log'", "x"),
        ("sh -ec 'export A=b; A=c exec python -u y.py'", "y"),
        ("bash -c 'echo hi'", "echo"),
        ("bash -lc 'source env/bin/activate\ntorchrun z.py'", "z"),
        ('bash -c "echo \'unclosed"', "bash"),
        ("env A=b python x.py", "x"),
        ("env -u HOME A=b torchrun x.py", "x"),
        ("A=b python x.py", "x"),
        ("nice -n 10 python x.py", "x"),
        ("timeout 60 ./run.sh", "run"),
        ("nohup my-tool --fast", "my-tool"),
        ("uv run --with torch x.py", "x"),
        ("Rscript fit.R", "fit"),
        ("/usr/local/bin/nccl-test -b 8", "nccl-test"),
        ("a.out", "a-out"),
        ("sleep 5", "sleep"),
    ],
)
def test_names(line: str, name: str) -> None:
    assert as_name(workload_of(shlex.split(line))) == name


def test_a_line_that_is_no_shell_is_a_run_of_the_shell() -> None:
    assert workload_of(["bash", "-c", "echo 'unclosed"]) == "bash"


@given(st.lists(st.text(max_size=8) | st.sampled_from(["python", "env", "-c", "-m", "bash", "&&", "A=b"]), min_size=1))
def test_every_command_has_a_name(command: list[str]) -> None:
    assert as_name(workload_of(command))
