"""Folder and programs of submitted jobs, arrays and dry runs, against a real server."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from levada.sdk import Client
from tests.cli.live_server import Shell, job
from tests.timeouts import WAIT_S

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def said(shell: Shell, name: str) -> str:
    """Wait for a job and return its output."""
    shell("wait", name)
    return shell("logs", name).strip()


def test_workdir_is_relative_to_the_job_file(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    below = shell.folder / "project" / "data"
    below.mkdir(parents=True)
    with_folder = job("infile", "pwd")
    with_folder["spec"]["run"]["workdir"] = "data"
    shell.file("project/infile.yaml", with_folder)
    shell.file("project/without.yaml", job("without", "pwd"))
    first = shell("submit", "-f", "project/infile.yaml", "-o", "name").strip()
    second = shell("submit", "-f", "project/without.yaml", "-o", "name").strip()
    assert said(shell, first) == str(below)
    assert said(shell, second) == str(shell.folder)
    (shell.folder / "run.sh").write_text("#!/bin/sh\n#LEVADA workdir=data\npwd\n")
    (shell.folder / "run.sh").rename(shell.folder / "project" / "run.sh")
    assert said(shell, shell("submit", "-o", "name", "project/run.sh").strip()) == str(below)


def test_sdk_and_run_use_folder_and_path_of_the_user(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = shell.folder / "bin" / "mytool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho mine in $PWD\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert shell("run", "--gpus", "0", "--", "mytool") == f"mine in {shell.folder}\n"
    with Client() as client:
        [made] = client.submit(job("client", "mytool"))
        client.wait(made["id"], timeout_s=WAIT_S)
        assert [line["text"] for line in client.logs(made["id"])] == [f"mine in {shell.folder}"]


def test_documented_job_runs_from_any_folder(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", API_PAGE.read_text(), re.DOTALL)
    (shell.folder / "train.py").write_text("import os\nprint('trained in', os.getcwd())\n")
    names: dict[str, object] = {}
    exec(code, names)
    assert names["job"]["phase"] == "Succeeded"  # type: ignore[index]
    assert capsys.readouterr().out.endswith(f"trained in {shell.folder}\n")


def test_array_and_after_flags(shell: Shell) -> None:
    first = shell.submit("prepare", "sleep 0.3")
    path = shell.file("each.yaml", job("each", "echo $LEVADA_ARRAY_INDEX"))
    names = shell("submit", "-f", path, "--array", "3-4", "--after", "prepare", "-o", "name").split()
    assert [said(shell, name) for name in names] == ["3", "4"]
    started = [shell.json("get", "job", name)["started"] for name in names]
    assert min(started) >= shell.json("get", "job", first)["finished"]
    script = shell.folder / "each.sh"
    script.write_text("#!/bin/sh\n#SBATCH --job-name=slurm\necho $SLURM_ARRAY_TASK_ID $*\n")
    for words in (["--array", "5", str(script), "--array", "7"], ["--from-sbatch", str(script), "--array", "5"]):
        (name,) = shell("submit", "-o", "name", *words).split()
        # Words after the name of a script are its arguments.
        assert said(shell, name) == ("5 --array 7" if words[0] == "--array" else "5")


def test_invalid_arrays(shell: Shell) -> None:
    path = shell.file("wrong.yaml", job("wrong"))
    assert shell("submit", "-f", path, "--array", "9-0", code=2) == "--array: 9-0 is descending\n"
    assert "there is no job absent" in shell("submit", "-f", path, "--after", "absent", code=4)
    assert "each" not in shell("ls", "--state", "pending,running", "-o", "name")


def test_dry_run_prints_the_resulting_jobs(shell: Shell) -> None:
    asked = job("wide", workers={"min": 1, "max": 8}, gpusPerWorker=2, gpuTypes=["a100", "v100"])
    asked["spec"]["run"]["command"] = ["python", "-u", "train.py"]
    path = shell.file("wide.yaml", asked)
    code, out, err = shell.try_out("submit", "-f", path, "--dry-run", "--array", "0-9")
    assert code == 0
    assert out.splitlines() == [
        "Job wide is valid (framework: plain)",
        "  Workers: 1 to 8 workers with 2 GPUs each of a100 or v100, in queue default",
        "  Array:   10 jobs, LEVADA_ARRAY_INDEX 0 to 9",
        "  Command: python -u train.py",
        f"  Folder:  {shell.folder}",
    ]
    assert f"levada: wide: train.py does not exist in {shell.folder}" in err
    (shell.folder / "train.py").touch()
    code, out, err = shell.try_out("submit", "-f", path, "--dry-run", "-o", "json")
    (told,) = json.loads(out)
    assert (told["command"], told["workdir"], told["max"]) == (["python", "-u", "train.py"], str(shell.folder), 8)
    assert err == ""


def test_dry_run_prints_sizes_allowed_by_step(shell: Shell) -> None:
    path = shell.file("steps.yaml", job("steps", workers={"min": 1, "max": 4, "step": 2}))
    assert "Workers: 2 to 4 workers in steps of 2 with 1 GPU each" in shell("submit", "-f", path, "--dry-run")
    (told,) = json.loads(shell("submit", "-f", path, "--dry-run", "-o", "json"))
    assert (told["min"], told["max"], told["step"]) == (2, 4, 2)


def test_pipe_without_writer_is_refused(shell: Shell) -> None:
    os.mkfifo(shell.folder / "pipe")
    for words in (["submit", "-f", "pipe"], ["submit", "pipe"]):
        assert "pipe: not a regular file; read a pipe with `-`" in shell(*words, code=2)
