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

from levada.cli.starting import USUAL_PORT
from levada.errors import Refused
from levada.server.home import Home
from levada.server.main import DEFAULT_PORT
from tests.patience import WAIT_S

ROOT = Path(__file__).parents[2]
#: More than a tour gives itself: it then tells what it waited for.
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
    """Processes that belong to a server's folder, workers among them."""
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
    levada("down", "--state", str(folder), "--stop-jobs")
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


def test_a_server_comes_up_runs_a_job_survives_a_kill_and_goes_down(home: Path) -> None:
    up = levada("up", "--state", str(home), "--port", "0", "-o", "json")
    assert up.returncode == 0, up.stderr
    told = json.loads(up.stdout)
    assert set(told) == {"url", "token"}
    assert json.loads(levada("up", "--state", str(home), "-o", "json").stdout) == told, "it is up already"
    name = job(home, "sleep", "1000")
    until(lambda: phase(home, name) == "Running")
    pid = json.loads((home / "server.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: levada("ls", "--state-dir", str(home)).returncode == 6)
    assert levada("up", "--state", str(home)).returncode == 0
    again = json.loads(levada("get", "job", name, "--state-dir", str(home), "-o", "json").stdout)
    assert (again["phase"], again["generation"]) == ("Running", 1)
    assert levada("down", "--state", str(home)).returncode == 0
    assert left_behind(home) == []
    assert levada("ls", "--state-dir", str(home)).returncode == 6
    assert levada("up", "--state", str(home)).returncode == 0
    until(lambda: phase(home, name) == "Running")


def test_all_who_start_a_server_at_once_get_the_same_one(home: Path) -> None:
    command = [sys.executable, "-m", "levada", "up", "--state", str(home), "--port", "0", "-o", "json"]
    ups = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [(*up.communicate(timeout=WAIT_S), up.returncode) for up in ups]
    assert [code for *_, code in told] == [0, 0, 0], told
    assert len({url for url, *_ in told}) == 1


def test_jobs_may_be_left_running_and_are_found_again(home: Path) -> None:
    assert levada("up", "--state", str(home), "--port", "0").returncode == 0
    name = job(home, "sleep", "1000")
    until(lambda: phase(home, name) == "Running")
    assert levada("down", "--state", str(home), "--leave-jobs").returncode == 0
    assert any("sleep" in words for words in left_behind(home))
    assert levada("up", "--state", str(home)).returncode == 0
    again = json.loads(levada("get", "job", name, "--state-dir", str(home), "-o", "json").stdout)
    assert (again["phase"], again["generation"]) == ("Running", 1)


def test_jobs_of_another_folder_start_again_only_when_somebody_says_that_they_are_gone(home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    first, store, go = home.with_name("first"), f"sqlite:///{home.parent}/shared.db", home.with_name("go")
    words = ("--port", "0", "--store", store, "--node", "gpu=1")
    assert levada("up", "--state", str(first), *words).returncode == 0
    name = job(first, "sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done")
    until(lambda: phase(first, name) == "Running")
    os.kill(json.loads((first / "server.json").read_text())["pid"], signal.SIGKILL)
    go.touch()
    until(lambda: left_behind(first) == [])
    other = levada("up", "--state", str(home), *words)
    assert other.returncode == 1
    assert f"run in the folder {first} of this machine ({name}); go on there with --state {first}" in other.stderr
    assert levada("up", "--state", str(home), *words, "--take-over", "another").returncode == 1
    empty = levada("up", "--state", str(home), *words, "--take-over", "")
    assert (empty.returncode, "--take-over: must be the host" in empty.stderr) == (2, True)
    done = levada("up", "--state", str(home), *words, "--take-over", socket.gethostname())
    assert done.returncode == 0, done.stderr
    assert levada("wait", "--state", str(home), name, "--timeout", "180s").returncode == 0


def test_a_hangup_that_is_ignored_stays_so(home: Path) -> None:
    words = [sys.executable, "-m", "levada", "up", "--state", str(home), "--port", "0"]
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words]
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        until(lambda: up.poll() is not None or (home / "lock").exists())
        up.send_signal(signal.SIGHUP)
        _, err = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0, err


def test_folders_and_files_are_those_of_who_names_them(home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    done = levada("up", "--state", "home", "--port", "0", "--store", "sqlite:///mine.db", cwd=home.parent)
    assert done.returncode == 0, done.stderr
    assert (home / "server.json").exists()
    assert (home.parent / "mine.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "a100"], "must be GPUs by type, as in a100=4"),
        (["--node", "a=1", "--nodes", "2"], "leave out --nodes"),
        (["--set", "min_run_s=soon"], "must be a name and a number"),
        (["--set", "min_runs=1"], "did you mean min_run_s?"),
        (["--keep", "events"], "must be a name and a time, as in events=30d"),
        (["--keep", "events=1h"], "--keep events: must be a day or more"),
        (["--host", "0.0.0.0"], "tokens would be sent in the clear"),
        (["--policy", "fifi"], "did you mean fifo?"),
        (["--store", "mysql://x"], "must begin with sqlite: or postgresql:"),
        (["--store", "postgresql://bob:hunter2@[::1/x"], "--store: is no address of a database"),
        (["--store", "postgresql://bob:hunter2@h:y/x"], "--store: is no address of a database"),
        (["--store", "mysql://bob:hunter2@h/x?password=hunter2"], "must begin with sqlite: or postgresql:"),
        (["--node", "a100=²"], "must be GPUs by type, as in a100=4"),
        (["--port", "99999"], "--port: must be 0 to 65535"),
        (["--port", "-1"], "--port: must be 0 to 65535"),
        (["--host", "10.255.255.1"], "name an address of this machine with --host"),
        (["--host", "nosuch.host.invalid"], "name an address of this machine with --host"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_no_server(home: Path, words: list[str], said: str) -> None:
    done = levada("up", "--state", str(home), "--port", "0", *words)
    assert done.returncode in (1, 2, 5)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


def test_where_the_store_is_stands_neither_in_the_list_of_processes_nor_in_what_jobs_are_given(home: Path) -> None:
    store = f"sqlite:///{home.parent}/hunter2.db"
    environment = {**os.environ, "LEVADA_STORE": store}
    assert levada("up", "--state", str(home), "--port", "0", "--node", "gpu=1", env=environment).returncode == 0
    assert (home.parent / "hunter2.db").exists()
    pid = json.loads((home / "server.json").read_text())["pid"]
    assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    name = job(home, "env")
    assert levada("wait", "--state", str(home), name, "--timeout", "180s").returncode == 0
    told = levada("logs", "--state", str(home), name).stdout
    assert "LEVADA_JOB=" in told
    assert "hunter2" not in told
    for file in (home / "server.log", home / "setup.json", home.parent / "hunter2.db"):
        assert file.stat().st_mode & 0o077 == 0


def test_a_folder_that_is_there_is_closed_to_others_or_refused(home: Path) -> None:
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    Home(home).make()
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o755)
    (home / "lock").touch()
    Home(home).make()
    assert home.stat().st_mode & 0o777 == 0o700
    (home / "lock").rename(home / "thesis.tex")
    home.chmod(0o755)
    with pytest.raises(Refused, match="name a new folder with --state"):
        Home(home).make()
    assert home.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of somebody else")
def test_a_folder_of_somebody_else_that_others_can_enter_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    os.chown(home, 65534, 65534)
    done = levada("up", "--state", str(home), "--port", "0")
    assert done.returncode == 5
    assert "others can enter it" in done.stderr
    os.chown(home, 0, 0)


def test_a_folder_that_cannot_be_written_says_so() -> None:
    done = levada("up", "--state", "/proc/nowhere")
    assert done.returncode == 1
    assert "name another folder with --state" in done.stderr


def test_the_tour_leaves_nothing_behind_when_it_is_interrupted(tmp_path: Path) -> None:
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
    """The exit code of a verb whose terminal gets Ctrl-C once a file of its server is there."""
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-m", "levada", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    ) as process:  # fmt: skip
        until(lambda: process.poll() is not None or list(folder.rglob(moment)))
        # All processes of a terminal hear it, and people press it again and again until it has ended.
        until(lambda: process.poll() is not None or os.killpg(process.pid, signal.SIGINT), look_s=0.002)
        _, err = process.communicate(timeout=WAIT_S)
    assert "Traceback" not in err
    return process.returncode


@pytest.mark.parametrize("moment", ["levada-tour-*", "server.log", "lock", "levada.db", "server.json"])
def test_a_tour_that_is_interrupted_early_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    assert interrupted(tmp_path, moment, "tour", str(ROOT / "examples/numpy/train.py")) == 3
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["server.log", "lock", "levada.db"])
def test_up_that_is_interrupted_leaves_no_server_behind(home: Path, moment: str) -> None:
    home.mkdir(parents=True)
    assert interrupted(home, moment, "up", "--state", str(home), "--port", "0") == 3
    assert left_behind(home) == []


def test_a_server_that_is_up_is_not_changed_by_options(home: Path) -> None:
    words = ("up", "--state", str(home), "--port", "0", "--node", "a100=2")
    assert levada(*words).returncode == 0
    assert levada(*words).returncode == 0, "what it has is no other"
    other = levada("up", "--state", str(home), "--node", "v100=4")
    assert other.returncode == 5
    assert "was started with other nodes" in other.stderr
    assert "`levada down` first" in other.stderr
    more = levada("up", "--state", str(home), "--set", "min_run_s=1")
    assert (more.returncode, "--set: no effect on a server that is up" in more.stderr) == (0, True)


def test_a_busy_port_is_told_at_once(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = levada("up", "--state", str(home), "--port", str(other.getsockname()[1]))
    assert done.returncode == 1
    assert "Address already in use; choose another with --port" in done.stderr
    assert not (home / "server.log").exists(), "nothing heavy was begun"


def test_the_usual_port_is_one() -> None:
    assert USUAL_PORT == DEFAULT_PORT


@pytest.mark.slow
def test_the_tour_shows_what_it_says(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = levada("tour", str(ROOT / "examples/numpy/train.py"), wait_s=TOUR_S, env=env)
    assert done.returncode == 0, (done.stderr, done.stdout)
    lines = [line.split() for line in done.stdout.splitlines() if line]
    told = [tuple(words[:4]) for words in lines]
    alone = told.index(("first", "Running", "4", "v100"))
    second = next(place for place, words in enumerate(told) if words[:2] == ("second", "Running"))
    third = next(place for place, words in enumerate(told) if words[:3] == ("third", "Running", "2"))
    shrunk = [words for words in told[second + 1 : third] if words[0] in ("first", "second") and words[1] == "Running"]
    assert alone < second < third
    assert shrunk
    assert all(int(words[2]) < 4 for words in shrunk)
    waits = [line for line in done.stdout.splitlines() if line.startswith("picky    Pending")]
    assert any("Not enough is free" in line or "as soon as others" in line for line in waits)
    assert ("small", "Running", "1") in [words[:3] for words in told]
    summary = {words[0]: words[1:4] for words in lines[-5:]}
    assert {name: state for name, (state, _, _) in summary.items()} == dict.fromkeys(
        ("first", "second", "third", "picky", "small"), "Succeeded"
    )
    assert (int(summary["first"][1]) > 0, summary["first"][2]) == (True, "0"), "resized, and never restarted"
