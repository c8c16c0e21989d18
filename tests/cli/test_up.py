"""`levada up`, `down` and `tour` with real servers and real jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from levada.cli.daemon import USUAL_PORT
from levada.errors import Refused
from levada.server.main import DEFAULT_PORT
from levada.server.state_dir import StateFolder
from tests.timeouts import WAIT_S

ROOT = Path(__file__).parents[2]
#: Longer than the limit of the tour itself, so that its own error is seen.
TOUR_S = 300.0

Done: TypeAlias = subprocess.CompletedProcess[str]


def levada(*words: str, wait_s: float = WAIT_S, env: dict[str, str] | None = None, cwd: Path | None = None) -> Done:
    command = [sys.executable, "-m", "levada", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=wait_s, check=False, env=env, cwd=cwd)


def until(true: Callable[[], object], look_s: float = 0.05) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(look_s)


def left_behind(folder: Path) -> list[str]:
    """Processes of a server's state directory, including workers."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
                environ = Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(folder) in words or f"LEVADA_STATE_DIR={folder}" in environ:
                found.append(words.replace("\0", " "))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    yield folder
    levada("down", "--state-dir", str(folder), "--stop-jobs")
    assert left_behind(folder) == []


def job(folder: Path, *command: str) -> str:
    text = json.dumps(
        {
            "apiVersion": "levada.dev/v1",
            "kind": "Job",
            "metadata": {"name": "toy"},
            "spec": {"workers": {"min": 1, "max": 2}, "run": {"command": list(command)}},
        }
    )
    path = folder.parent / "job.json"
    path.write_text(text)
    done = levada("submit", "--state-dir", str(folder), "-f", str(path), "-o", "name")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def phase(folder: Path, name: str) -> str:
    told = levada("get", "job", name, "--state-dir", str(folder), "-o", "json")
    return str(json.loads(told.stdout)["phase"])


def test_up_runs_a_job_survives_kill_and_goes_down(home: Path) -> None:
    up = levada("up", "--state-dir", str(home), "--port", "0", "-o", "json")
    assert up.returncode == 0, up.stderr
    told = json.loads(up.stdout)
    assert set(told) == {"url", "token"}
    assert json.loads(levada("up", "--state-dir", str(home), "-o", "json").stdout) == told, "it is up already"
    name = job(home, "sleep", "1000")
    until(lambda: phase(home, name) == "Running")
    pid = json.loads((home / "server.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: levada("ls", "--state-dir", str(home)).returncode == 6)
    assert levada("up", "--state-dir", str(home)).returncode == 0
    again = json.loads(levada("get", "job", name, "--state-dir", str(home), "-o", "json").stdout)
    assert (again["phase"], again["generation"]) == ("Running", 1)
    assert levada("down", "--state-dir", str(home)).returncode == 0
    assert left_behind(home) == []
    assert levada("ls", "--state-dir", str(home)).returncode == 6
    assert levada("up", "--state-dir", str(home)).returncode == 0
    until(lambda: phase(home, name) == "Running")


def test_concurrent_up_starts_one_server(home: Path) -> None:
    command = [sys.executable, "-m", "levada", "up", "--state-dir", str(home), "--port", "0", "-o", "json"]
    ups = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [(*up.communicate(timeout=WAIT_S), up.returncode) for up in ups]
    assert [code for *_, code in told] == [0, 0, 0], told
    assert len({url for url, *_ in told}) == 1


def test_left_jobs_are_adopted_by_the_next_up(home: Path) -> None:
    assert levada("up", "--state-dir", str(home), "--port", "0").returncode == 0
    name = job(home, "sleep", "1000")
    until(lambda: phase(home, name) == "Running")
    assert levada("down", "--state-dir", str(home), "--leave-jobs").returncode == 0
    assert any("sleep" in words for words in left_behind(home))
    assert levada("up", "--state-dir", str(home)).returncode == 0
    again = json.loads(levada("get", "job", name, "--state-dir", str(home), "-o", "json").stdout)
    assert (again["phase"], again["generation"]) == ("Running", 1)


def test_jobs_of_another_state_folder_need_take_over(home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    first, store, go = home.with_name("first"), f"sqlite:///{home.parent}/shared.db", home.with_name("go")
    words = ("--port", "0", "--store", store, "--node", "gpu=1")
    assert levada("up", "--state-dir", str(first), *words).returncode == 0
    name = job(first, "sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done")
    until(lambda: phase(first, name) == "Running")
    os.kill(json.loads((first / "server.json").read_text())["pid"], signal.SIGKILL)
    go.touch()
    until(lambda: left_behind(first) == [])
    other = levada("up", "--state-dir", str(home), *words)
    assert other.returncode == 1
    assert f"run in {first} on this machine ({name}); use --state-dir {first}" in other.stderr
    assert levada("up", "--state-dir", str(home), *words, "--take-over", "another").returncode == 1
    empty = levada("up", "--state-dir", str(home), *words, "--take-over", "")
    assert (empty.returncode, "--take-over: must be a host name" in empty.stderr) == (2, True)
    done = levada("up", "--state-dir", str(home), *words, "--take-over", socket.gethostname())
    assert done.returncode == 0, done.stderr
    assert levada("wait", "--state-dir", str(home), name, "--timeout", "180s").returncode == 0


def test_ignored_sighup_stays_ignored(home: Path) -> None:
    words = [sys.executable, "-m", "levada", "up", "--state-dir", str(home), "--port", "0"]
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words]
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        until(lambda: up.poll() is not None or (home / "lock").exists())
        up.send_signal(signal.SIGHUP)
        _, err = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0, err


def test_relative_paths_are_those_of_the_caller(home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    done = levada("up", "--state-dir", "home", "--port", "0", "--store", "sqlite:///mine.db", cwd=home.parent)
    assert done.returncode == 0, done.stderr
    assert (home / "server.json").exists()
    assert (home.parent / "mine.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "a100"], "must be GPUs by type, e.g. a100=4"),
        (["--node", "a=1", "--nodes", "2"], "--node cannot be combined with --nodes"),
        (["--set", "min_run_s=soon"], "must be a name and a number"),
        (["--set", "min_runs=1"], "did you mean min_run_s?"),
        (["--keep", "events"], "must be a name and a time, e.g. events=30d"),
        (["--keep", "events=1h"], "--keep events: must be a day or more"),
        (["--host", "0.0.0.0"], "tokens would be sent in the clear"),
        (["--policy", "fifi"], "did you mean fifo?"),
        (["--store", "mysql://x"], "must begin with sqlite: or postgresql:"),
        (["--store", "postgresql://bob:hunter2@[::1/x"], "--store: is not a database URL"),
        (["--store", "postgresql://bob:hunter2@h:y/x"], "--store: is not a database URL"),
        (["--store", "mysql://bob:hunter2@h/x?password=hunter2"], "must begin with sqlite: or postgresql:"),
        (["--node", "a100=²"], "must be GPUs by type, e.g. a100=4"),
        (["--port", "99999"], "--port: must be 0 to 65535"),
        (["--port", "-1"], "--port: must be 0 to 65535"),
        (["--host", "10.255.255.1"], "give an address of this machine with --host"),
        (["--host", "nosuch.host.invalid"], "give an address of this machine with --host"),
    ],
)
def test_invalid_options_are_one_line_and_start_no_server(home: Path, words: list[str], said: str) -> None:
    done = levada("up", "--state-dir", str(home), "--port", "0", *words)
    assert done.returncode in (1, 2, 5)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


def test_store_url_is_hidden_from_process_list_and_jobs(home: Path) -> None:
    store = f"sqlite:///{home.parent}/hunter2.db"
    environment = {**os.environ, "LEVADA_STORE": store}
    assert levada("up", "--state-dir", str(home), "--port", "0", "--node", "gpu=1", env=environment).returncode == 0
    assert (home.parent / "hunter2.db").exists()
    pid = json.loads((home / "server.json").read_text())["pid"]
    assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    name = job(home, "env")
    assert levada("wait", "--state-dir", str(home), name, "--timeout", "180s").returncode == 0
    told = levada("logs", "--state-dir", str(home), name).stdout
    assert "LEVADA_JOB=" in told
    assert "hunter2" not in told
    for file in (home / "server.log", home / "setup.json", home.parent / "hunter2.db"):
        assert file.stat().st_mode & 0o077 == 0


def test_existing_state_folder_is_made_private_or_refused(home: Path) -> None:
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    StateFolder(home).make()
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o755)
    (home / "lock").touch()
    StateFolder(home).make()
    assert home.stat().st_mode & 0o777 == 0o700
    (home / "lock").rename(home / "thesis.tex")
    home.chmod(0o755)
    with pytest.raises(Refused, match="name a new folder with --state-dir"):
        StateFolder(home).make()
    assert home.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of another user")
def test_accessible_state_folder_of_another_user_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    os.chown(home, 65534, 65534)
    done = levada("up", "--state-dir", str(home), "--port", "0")
    assert done.returncode == 5
    assert "other users have access" in done.stderr
    os.chown(home, 0, 0)


def test_deprecated_state_option_works_with_a_note(home: Path) -> None:
    done = levada("down", "--state", str(home))
    assert done.returncode == 0
    note = "levada: --state is deprecated; use --state-dir"
    assert done.stderr.splitlines() == [note, "no server is running"]
    assert "--state " not in levada("up", "--help").stdout
    other = levada("suspend", "--state", str(home), "x")
    assert (other.returncode, other.stderr) == (2, "levada: no such option --state; did you mean --state-dir?\n")


def test_unwritable_state_folder_is_an_error() -> None:
    done = levada("up", "--state-dir", "/proc/nowhere")
    assert done.returncode == 1
    assert "name another folder with --state-dir" in done.stderr


def test_interrupted_tour_cleans_up(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "levada", "tour", str(ROOT / "examples/numpy/train.py")]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as tour:
        assert tour.stdout is not None
        for line in tour.stdout:
            if "Running" in line:
                break
        tour.send_signal(signal.SIGINT)
        tour.communicate(timeout=WAIT_S)
    assert tour.returncode == 3
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def interrupted(folder: Path, moment: str, *words: str) -> int:
    """Exit code of a verb that gets Ctrl-C as soon as a file of its server exists."""
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-m", "levada", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    ) as process:  # fmt: skip
        until(lambda: process.poll() is not None or list(folder.rglob(moment)))
        # All processes of the terminal get it, and users press it repeatedly.
        until(lambda: process.poll() is not None or os.killpg(process.pid, signal.SIGINT), look_s=0.002)
        _, err = process.communicate(timeout=WAIT_S)
    assert "Traceback" not in err
    return process.returncode


@pytest.mark.parametrize("moment", ["levada-tour-*", "server.log", "lock", "levada.db", "server.json"])
def test_tour_interrupted_early_cleans_up(tmp_path: Path, moment: str) -> None:
    assert interrupted(tmp_path, moment, "tour", str(ROOT / "examples/numpy/train.py")) == 3
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["server.log", "lock", "levada.db"])
def test_interrupted_up_leaves_no_server(home: Path, moment: str) -> None:
    home.mkdir(parents=True)
    assert interrupted(home, moment, "up", "--state-dir", str(home), "--port", "0") == 3
    assert left_behind(home) == []


def test_up_does_not_reconfigure_a_running_server(home: Path) -> None:
    words = ("up", "--state-dir", str(home), "--port", "0", "--node", "a100=2")
    first = levada(*words)
    assert first.returncode == 0
    assert ": node-0 a100=2\n" in first.stderr.partition("GPUs are simulated (")[2]
    assert levada(*words).returncode == 0, "the same options"
    other = levada("up", "--state-dir", str(home), "--node", "v100=4")
    assert other.returncode == 5
    assert "was started with other nodes" in other.stderr
    assert "`levada down` first" in other.stderr
    more = levada("up", "--state-dir", str(home), "--set", "min_run_s=1")
    assert (more.returncode, "--set: no effect on a running server" in more.stderr) == (0, True)


def test_busy_port_is_reported_immediately(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = levada("up", "--state-dir", str(home), "--port", str(other.getsockname()[1]))
    assert done.returncode == 1
    assert "Address already in use; choose another with --port" in done.stderr
    assert not (home / "server.log").exists(), "no server was started"


def test_default_port() -> None:
    assert USUAL_PORT == DEFAULT_PORT


@pytest.mark.slow
def test_tour_shows_each_announced_step(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = levada("tour", str(ROOT / "examples/numpy/train.py"), wait_s=TOUR_S, env=env)
    assert done.returncode == 0, (done.stderr, done.stdout)
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert ["TIME", "JOB", "STATE", "GPUS", "TYPE", "REASON"] in lines
    told = [tuple(words[1:5]) for words in lines if words[0].endswith("s")]
    alone = told.index(("first", "Running", "4", "v100"))
    second = next(place for place, words in enumerate(told) if words[:2] == ("second", "Running"))
    third = next(place for place, words in enumerate(told) if words[:3] == ("third", "Running", "2"))
    shrunk = [words for words in told[second + 1 : third] if words[0] in ("first", "second") and words[1] == "Running"]
    assert alone < second < third
    assert shrunk
    assert all(int(words[2]) < 4 for words in shrunk)
    waits = [line for line in done.stdout.splitlines() if " picky    Pending" in line]
    assert any("Needs 4 GPUs; 0 v100 free." in line or "to release" in line for line in waits), waits
    assert ("small", "Running", "1") in [words[:3] for words in told]
    summary = {words[0]: words[1:4] for words in lines[-5:]}
    assert {name: state for name, (state, _, _) in summary.items()} == dict.fromkeys(
        ("first", "second", "third", "picky", "small"), "Succeeded"
    )
    assert (int(summary["first"][1]) > 0, summary["first"][2]) == (True, "0"), "resized, and never restarted"
