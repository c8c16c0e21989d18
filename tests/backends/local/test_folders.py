"""What a job puts where the server looks: pipes, endless files, folders without an end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levada.backends.local import files, folders, logs, processes, shim
from levada.backends.local.messages import ENDED, RUNS, Forget, Kill, News, Publish, StartWorker
from levada.backends.local.processes import Spec, State
from levada.backends.local.record import Record, load
from levada.backends.local.supervisor import _LEFT_ALONE, Supervisor
from tests.patience import WAIT_S

DEEP = 1500


def make_deep(folder: Path, levels: int = DEEP) -> None:
    """As a job would: with short steps, since the path becomes too long for the kernel."""
    code = f"import os\nfor _ in range({levels}): os.mkdir('d'); os.chdir('d')\nopen('last', 'w')"
    assert os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", f'cd "{folder}" && exec "{sys.executable}" -c "{code}"']) == 0


def at_once(act: Callable[[], Any]) -> Any:
    """What *act* returns, if it returns soon; a thread that waits for ever ends with the tests."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it waits for ever"
    return found[0]


def test_a_pipe_where_a_file_should_be_holds_nobody_up(tmp_path: Path) -> None:
    names = ("report", "toy.csv", "gang.json", "log", "log.times", "run.json", "exit.json", "lock", "shim.err")
    for name in names:
        os.mkfifo(tmp_path / name)
    assert at_once(lambda: (files.read_report(tmp_path / "report"),)) == (None,)
    assert at_once(lambda: (files.epochs_in_csv(tmp_path / "toy.csv"),)) == (None,)
    assert at_once(lambda: (load(tmp_path),)) == (None,)
    assert at_once(lambda: logs.read(tmp_path, logs.Cursor()).lines) == ()
    assert at_once(lambda: logs.end_of(tmp_path, 10)) == logs.Cursor()
    assert at_once(lambda: processes.standing(tmp_path).state) is State.ABSENT
    with pytest.raises(FileNotFoundError):
        folders.open_file(tmp_path / "lock", os.O_WRONLY | os.O_CREAT)


def test_what_is_written_replaces_whatever_is_there(tmp_path: Path) -> None:
    record = Record(job="toy", number=1)
    os.mkfifo(tmp_path / "gang.json.new")
    thread = threading.Thread(target=record.save, args=(tmp_path,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    os.symlink("/dev/full", tmp_path / "gang.json.new")
    record.save(tmp_path)
    assert load(tmp_path) == record
    assert (tmp_path / "gang.json").stat().st_mode & 0o777 == 0o600


def test_links_folders_and_what_has_no_end_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x" * 100)
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.symlink("/dev/zero", tmp_path / "zero")
    for name in ("link", "zero", "absent"):
        with pytest.raises(FileNotFoundError):
            folders.read_file(tmp_path / name)
    with pytest.raises(OSError, match="more than 99 bytes"):
        folders.read_file(tmp_path / "real", 99)
    assert folders.read_file(tmp_path / "real", 100) == b"x" * 100


@pytest.mark.parametrize("told", [b"[]", b"{}", b'{"worker": "me"}', b'{"worker": 1e99}', b"\xff"])
def test_records_that_a_job_has_scribbled_on_count_as_none(tmp_path: Path, told: bytes) -> None:
    for name in (shim.RUN, shim.EXIT):
        (tmp_path / name).write_bytes(told)
    assert processes.standing(tmp_path).state is State.ABSENT


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("epoch,loss\n0,1.5\n1,1.4\n", 2.0),
        ("loss,epoch\n1.5,7\n", 8.0),
        ("epoch,loss\n0,1\n1,1\n" + "filler," * 20_000 + "\n41,2\n", 42.0),
        ("epoch,loss\n", None),
        ("epoch,loss\nnan,1\n", None),
        ("epoch,loss\ninf,1\n", None),
        ("epoch,loss\n-5,1\n", None),
        ("steps,loss\n1,1\n", None),
        ("", None),
    ],
)
def test_epochs_are_those_of_the_last_row(tmp_path: Path, text: str, epochs: float | None) -> None:
    (tmp_path / "toy.csv").write_text(text)
    assert files.epochs_in_csv(tmp_path / "toy.csv") == epochs


def test_a_deep_folder_is_looked_at_as_far_as_it_matters_and_removed_as_a_whole(tmp_path: Path) -> None:
    top = tmp_path / "job"
    (top / "a" / "b").mkdir(parents=True)
    make_deep(top, 2 * DEEP)
    (top / "a" / "b" / "saved").touch()
    os.utime(top / "a" / "b" / "saved", ns=(5, 5))
    assert folders.newest_change(top) == 5
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    os.symlink(outside, top / "a" / "way-out")
    folders.remove(top)
    assert not top.exists()
    assert (outside / "kept").exists()


# --- with a supervisor ----------------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> Spec:
    env = {"PATH": os.environ["PATH"], "HERE": str(folder), "LEVADA_STATE_DIR": str(folder / "workers" / "g1-0")}
    return Spec(argv=["/bin/sh", "-c", text], env=env, cwd="/", grace_s=1.0)


def start(supervisor: Supervisor, job: str, text: str) -> None:
    spec = script(supervisor.home / "jobs" / job, text)
    supervisor.do(StartWorker(job=job, epoch=1, number=1, generation=1, name="g1-0", spec=spec))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)


def state(supervisor: Supervisor, job: str) -> str:
    return supervisor.jobs[job].workers["g1-0"].seen.state


@contextlib.contextmanager
def bound_to_end() -> Any:
    """A loop that a pipe holds up is told so by a signal, instead of hanging for ever."""

    def stuck(*_: object) -> None:
        raise AssertionError("the loop is held up")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(int(WAIT_S))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_one_jobs_pipes_and_depths_harm_no_other_nor_the_next_start(tmp_path: Path) -> None:
    world = files.World(1, ("g1-0",), ("127.0.0.1",), files.Address("127.0.0.1", 1))

    async def run() -> None:
        told: list[News] = []
        supervisor = Supervisor(tmp_path, told.append)
        supervisor.take_epoch(1)
        await supervisor.open()
        pipes = "report ../../checkpoints/bad.csv ../../world.json.new ../../job.json.new ../../hosts ../../gang.json"
        try:
            start(supervisor, "bad", f'cd "$HERE/workers/g1-0"; mkfifo {pipes}; echo made; exec sleep 600')
            make_deep(tmp_path / "jobs" / "bad" / "checkpoints")
            await until(lambda: (tmp_path / "jobs/bad/gang.json").exists())
            start(supervisor, "good", "exit 3")
            publish = Publish(job="bad", epoch=1, number=1, generation=2, world=world, hosts=("here:1",))
            supervisor.do(publish)
            await until(lambda: state(supervisor, "good") == ENDED)
            rounds = supervisor._rounds
            await until(lambda: supervisor._rounds > rounds + 3)  # the folders were looked through
        finally:
            await supervisor.close()
        after = Supervisor(tmp_path, told.append)
        await after.open()
        try:
            assert (state(after, "bad"), state(after, "good")) == (RUNS, ENDED)
            after.do(Kill(job="bad", epoch=1, names=("g1-0",)))
            await until(lambda: state(after, "bad") != RUNS)
            after.do(Forget(job="bad", epoch=1))
            await until(lambda: not (tmp_path / "jobs/bad").exists())
            await until(lambda: not list((tmp_path / "gone").iterdir()))  # down to its last level
        finally:
            await after.close()
            for child in _LEFT_ALONE:
                child.wait(WAIT_S)

    begin = time.monotonic()
    with bound_to_end():
        asyncio.run(run())
    assert time.monotonic() - begin < 60
