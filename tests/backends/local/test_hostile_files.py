"""Hostile files in job folders: pipes, endless files, very deep folders."""

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

from levada.backends.local import logs, processes, safe_fs, shim, worker_files
from levada.backends.local.job_state import ControllerState, load
from levada.backends.local.processes import ProcessState, WorkerSpec
from levada.backends.local.supervisor import _UNWATCHED, Supervisor
from levada.backends.local.supervisor_protocol import ENDED, RUNS, Forget, Kill, Publish, StartWorker, StatusUpdate
from tests.timeouts import WAIT_S

DEEP = 1500


def make_deep(folder: Path, levels: int = DEEP) -> None:
    """Create nested folders step by step, since the full path is too long for the kernel."""
    code = f"import os\nfor _ in range({levels}): os.mkdir('d'); os.chdir('d')\nopen('last', 'w')"
    assert os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", f'cd "{folder}" && exec "{sys.executable}" -c "{code}"']) == 0


def at_once(act: Callable[[], Any]) -> Any:
    """The result of *act*, which must not block; a blocked daemon thread ends with the tests."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(act()), daemon=True)
    thread.start()
    thread.join(20)
    assert results, "the call blocks"
    return results[0]


def test_a_pipe_instead_of_a_file_does_not_block(tmp_path: Path) -> None:
    names = ("report", "toy.csv", "gang.json", "log", "log.times", "run.json", "exit.json", "lock", "shim.err")
    for name in names:
        os.mkfifo(tmp_path / name)
    assert at_once(lambda: (worker_files.read_report(tmp_path / "report"),)) == (None,)
    assert at_once(lambda: (worker_files.epochs_in_csv(tmp_path / "toy.csv"),)) == (None,)
    assert at_once(lambda: (load(tmp_path),)) == (None,)
    assert at_once(lambda: logs.read(tmp_path, logs.Cursor()).lines) == ()
    assert at_once(lambda: logs.end_of(tmp_path, 10)) == logs.Cursor()
    assert at_once(lambda: processes.inspect(tmp_path).state) is ProcessState.ABSENT
    with pytest.raises(FileNotFoundError):
        safe_fs.open_file(tmp_path / "lock", os.O_WRONLY | os.O_CREAT)


def test_writes_replace_existing_entries_of_any_kind(tmp_path: Path) -> None:
    record = ControllerState(job="toy", number=1)
    os.mkfifo(tmp_path / "gang.json.new")
    thread = threading.Thread(target=record.save, args=(tmp_path,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    os.symlink("/dev/full", tmp_path / "gang.json.new")
    record.save(tmp_path)
    assert load(tmp_path) == record
    assert (tmp_path / "gang.json").stat().st_mode & 0o777 == 0o600


def test_links_folders_and_devices_are_not_read_as_files(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x" * 100)
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.symlink("/dev/zero", tmp_path / "zero")
    for name in ("link", "zero", "absent"):
        with pytest.raises(FileNotFoundError):
            safe_fs.read_file(tmp_path / name)
    with pytest.raises(OSError, match="more than 99 bytes"):
        safe_fs.read_file(tmp_path / "real", 99)
    assert safe_fs.read_file(tmp_path / "real", 100) == b"x" * 100


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"worker": "me"}', b'{"worker": 1e99}', b"\xff"])
def test_records_overwritten_by_a_job_are_ignored(tmp_path: Path, content: bytes) -> None:
    for name in (shim.RUN, shim.EXIT):
        (tmp_path / name).write_bytes(content)
    assert processes.inspect(tmp_path).state is ProcessState.ABSENT


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
def test_the_epoch_count_is_read_from_the_last_row(tmp_path: Path, text: str, epochs: float | None) -> None:
    (tmp_path / "toy.csv").write_text(text)
    assert worker_files.epochs_in_csv(tmp_path / "toy.csv") == epochs


def test_a_deep_folder_is_scanned_partly_and_removed_completely(tmp_path: Path) -> None:
    top = tmp_path / "job"
    (top / "a" / "b").mkdir(parents=True)
    make_deep(top, 2 * DEEP)
    (top / "a" / "b" / "saved").touch()
    os.utime(top / "a" / "b" / "saved", ns=(5, 5))
    assert safe_fs.newest_change(top) == 5
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "other").touch()
    os.symlink(outside, top / "a" / "way-out")
    safe_fs.remove(top)
    assert not top.exists()
    assert (outside / "other").exists()


# --- with a supervisor ----------------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> WorkerSpec:
    env = {"PATH": os.environ["PATH"], "HERE": str(folder), "LEVADA_STATE_DIR": str(folder / "workers" / "g1-0")}
    return WorkerSpec(argv=["/bin/sh", "-c", text], env=env, cwd="/", grace_s=1.0)


def start(supervisor: Supervisor, job: str, text: str) -> None:
    spec = script(supervisor.home / "jobs" / job, text)
    supervisor.do(StartWorker(job=job, epoch=1, number=1, generation=1, name="g1-0", spec=spec))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)


def state(supervisor: Supervisor, job: str) -> str:
    return supervisor.jobs[job].workers["g1-0"].status.state


@contextlib.contextmanager
def bound_to_end() -> Any:
    """Interrupt a loop that blocks on a pipe by a signal."""

    def stuck(*_: object) -> None:
        raise AssertionError("the loop is held up")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(int(WAIT_S))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


async def test_hostile_files_of_one_job_affect_neither_others_nor_the_next_start(tmp_path: Path) -> None:
    world = worker_files.WorldFile(1, ("g1-0",), ("127.0.0.1",), worker_files.MemberAddress("127.0.0.1", 1))

    begin = time.monotonic()
    with bound_to_end():
        updates: list[StatusUpdate] = []
        supervisor = Supervisor(tmp_path, updates.append)
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
            await until(lambda: supervisor._rounds > rounds + 3)  # the folders were scanned
        finally:
            await supervisor.close()
        after = Supervisor(tmp_path, updates.append)
        await after.open()
        try:
            assert (state(after, "bad"), state(after, "good")) == (RUNS, ENDED)
            after.do(Kill(job="bad", epoch=1, names=("g1-0",)))
            await until(lambda: state(after, "bad") != RUNS)
            after.do(Forget(job="bad", epoch=1))
            await until(lambda: not (tmp_path / "jobs/bad").exists())
            await until(lambda: not list((tmp_path / "gone").iterdir()))  # including the deepest level
        finally:
            await after.close()
            for child in _UNWATCHED:
                child.wait(WAIT_S)
    assert time.monotonic() - begin < 60
