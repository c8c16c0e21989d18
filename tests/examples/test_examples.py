"""Every example has a page and a valid job file; those without extra libraries run to their end."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from levada.jobfile.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))
ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "STEPS": "20", "STEP_SECONDS": "0"}


def command_of(folder: Path) -> list[str]:
    """The command of its job file."""
    document = yaml.safe_load((folder / "job.yaml").read_text())
    return list(document["spec"]["run"]["command"])


def test_the_readme_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert [folder.name for folder in FOLDERS if f"[{folder.name}]({folder.name}/README.md)" not in page] == []
    assert len(FOLDERS) >= 7


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_has_a_page_and_a_valid_job_file(folder: Path) -> None:
    assert (folder / "README.md").read_text().startswith("# ")
    (job,) = load((folder / "job.yaml").read_text())
    assert job.is_job
    scripts = [word for word in shlex.split(" ".join(command_of(folder))) if word.endswith(".py")]
    assert scripts
    assert all((folder / script).is_file() for script in scripts)
    assert f"levada logs -f {job.name}" in (folder / "README.md").read_text()


@pytest.mark.parametrize(("name", "module"), [("pytorch", "torch"), ("jax", "jax"), ("tensorflow", "tensorflow")])
def test_a_missing_library_is_a_one_line_error_with_a_remedy(name: str, module: str, tmp_path: Path) -> None:
    # Make the import fail, whether or not the library is installed.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=EXAMPLES / name, env=env, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"pip install {module}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["numpy", "gavel", "voda", "plain"])
def test_the_command_of_the_job_file_runs_to_its_end(name: str, tmp_path: Path) -> None:
    env = {**ENV, "LEVADA_CHECKPOINT_DIR": str(tmp_path), "LEVADA_JOB": "job-1"}
    durations = re.compile("--(step_seconds|epoch-seconds) [0-9.]+")
    command = [durations.sub("", word) for word in command_of(EXAMPLES / name)]
    done = subprocess.run(command, cwd=EXAMPLES / name, env=env, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
