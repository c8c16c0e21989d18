"""One real worker under a real shim: output, exit codes, kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from levada.backends.local import processes, procfs, shim
from levada.backends.local.processes import ProcessState, ProcessStatus, WorkerSpec
from levada.backends.local.supervisor_protocol import RUNS, WorkerStatus
from levada.backends.local.worker import Worker
from tests.timeouts import WAIT_S


def python(code: str, **fields: Any) -> WorkerSpec:
    """A worker that runs *code*."""
    env = {"PATH": os.environ["PATH"], "LEVADA_JOB": "toy"}
    return WorkerSpec(
        **{"argv": [sys.executable, "-u", "-S", "-E", "-c", code], "cwd": "/", "grace_s": 20.0, "env": env, **fields}
    )


def wait_until(condition: Callable[[], object]) -> None:
    """Wait wait_until *condition* holds; fail after `WAIT_S`."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.005)


async def final_status(folder: Path, child: subprocess.Popen[bytes] | None = None) -> ProcessStatus:
    return await asyncio.wait_for(processes.wait_ended(folder, child), WAIT_S)


def output_of(folder: Path) -> str:
    log = folder / shim.LOG
    return log.read_text() if log.exists() else ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    worker_folder = tmp_path / "worker"
    yield worker_folder
    processes.kill(worker_folder)


async def test_exit_code_and_output_of_a_worker_are_stored(folder: Path) -> None:
    child = processes.start(folder, python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"))
    status = await final_status(folder, child)
    assert (status.state, status.code, status.asked) == (ProcessState.ENDED, 7, False)
    assert child.returncode == shim.DONE
    assert sorted(output_of(folder).split()) == ["err", "out"]


async def test_a_worker_that_cannot_be_executed_reports_why(folder: Path) -> None:
    spec = WorkerSpec(argv=["no-such-program"], env={"PATH": "/bin"}, cwd="/")
    status = await final_status(folder, processes.start(folder, spec))
    assert status.code == shim.CANNOT_EXECUTE
    assert "cannot start 'no-such-program': not found in PATH" in output_of(folder)


async def test_a_missing_work_folder_is_reported(folder: Path) -> None:
    status = await final_status(folder, processes.start(folder, python("", cwd="/no/such/folder")))
    assert status.code == shim.CANNOT_EXECUTE
    assert "/no/such/folder" in output_of(folder)


async def test_process_limits_are_enforced(folder: Path) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    await final_status(folder, processes.start(folder, python(code, limits={"nofile": 77})))
    assert output_of(folder) == "(77, 77)\n"


async def test_a_second_start_of_a_worker_is_ignored(folder: Path) -> None:
    assert processes.inspect(folder).state is ProcessState.ABSENT
    code = "import os, time; print(os.getpid()); time.sleep(600)"
    children = [processes.start(folder, python(code)) for _ in range(6)]
    wait_until(lambda: output_of(folder))
    wait_until(lambda: sum(child.poll() is not None for child in children) == 5)
    assert sorted(child.returncode or 0 for child in children) == [0, *[shim.ALREADY_RUNS] * 5]
    assert len(output_of(folder).split()) == 1
    assert processes.inspect(folder).pid == int(output_of(folder))
    processes.ask_to_leave(folder)
    assert (await final_status(folder)).code == -signal.SIGTERM
    assert [child.wait() for child in children].count(shim.DONE) == 1
    again = processes.start(folder, python(code))
    assert again.wait() == shim.FINISHED_BEFORE
    assert len(output_of(folder).split()) == 1


async def test_a_signal_after_the_exit_of_a_worker_is_ignored(folder: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nprint('up')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)"
    child = processes.start(folder, python(code))
    wait_until(lambda: output_of(folder))
    before = processes.inspect(folder)
    assert before.shim is not None
    assert before.pid is not None
    os.kill(before.shim, signal.SIGSTOP)
    go.touch()
    wait_until(lambda: (worker := procfs.look(before.pid or 0)) is None or worker.is_zombie)
    assert processes.ask_to_leave(folder)
    os.kill(before.shim, signal.SIGCONT)
    status = await final_status(folder, child)
    assert (status.state, status.code, status.asked) == (ProcessState.ENDED, 0, False)


async def test_a_worker_asked_to_stop_may_save_first(folder: Path) -> None:
    code = (
        # A signal handler must not call `print`, which may be interrupted by it.
        "import os, signal, sys, time\n"
        "def leave(*_):\n    os.write(1, b'saved')\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave)\nos.write(1, b'up')\ntime.sleep(600)"
    )
    child = processes.start(folder, python(code))
    wait_until(lambda: "up" in output_of(folder))
    assert processes.ask_to_leave(folder)
    status = await final_status(folder, child)
    assert (status.code, status.asked) == (75, True)
    assert "saved" in output_of(folder)
    assert not processes.ask_to_leave(folder), "the shim has ended"


async def test_a_worker_gets_one_signal_for_repeated_stops(folder: Path, tmp_path: Path) -> None:
    """Python resets its handlers at exit: a second signal would kill a worker that exits with 75."""
    code = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'T'))\nos.write(1, b'up')\n"
        f"go = pathlib.Path({str(tmp_path / 'go')!r})\n"
        "while not go.exists():\n    time.sleep(0.005)\n"
    )
    child = processes.start(folder, python(code))
    wait_until(lambda: "up" in output_of(folder))
    for _ in range(3):
        assert processes.ask_to_leave(folder)
        wait_until(lambda: "T" in output_of(folder))
    (tmp_path / "go").touch()
    await final_status(folder, child)
    assert output_of(folder).count("T") == 1


async def test_a_worker_that_does_not_stop_is_killed_after_its_grace_period(folder: Path) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)"
    child = processes.start(folder, python(code, grace_s=0.2))
    wait_until(lambda: "up" in output_of(folder))
    processes.ask_to_leave(folder)
    status = await final_status(folder, child)
    assert (status.code, status.asked) == (-signal.SIGKILL, True)


async def test_the_signal_of_a_killed_worker_is_reported(folder: Path) -> None:
    child = processes.start(folder, python("import time; print('up'); time.sleep(600)"))
    wait_until(lambda: "up" in output_of(folder))
    pid = processes.inspect(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    status = await final_status(folder, child)
    assert (status.code, status.asked) == (-signal.SIGKILL, False)


async def test_child_processes_of_a_worker_end_with_it(folder: Path) -> None:
    code = (
        "import os, time\nready, tell = os.pipe()\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.write(1, str(os.getpid()).encode())\n"
        "    os.write(tell, b'!')\n    time.sleep(600)\n"
        "os.read(ready, 1)"
    )
    assert (await final_status(folder, processes.start(folder, python(code)))).code == 0
    process = procfs.look(int(output_of(folder)))
    assert process is None or process.is_zombie


def test_a_worker_dies_with_its_shim(folder: Path) -> None:
    child = processes.start(folder, python("import time; print('up'); time.sleep(600)"))
    wait_until(lambda: "up" in output_of(folder))
    worker = processes.inspect(folder).pid
    assert worker is not None
    assert processes.kill(folder)
    child.wait()
    assert processes.inspect(folder).state is ProcessState.LOST
    wait_until(lambda: (process := procfs.look(worker)) is None or process.is_zombie)


def test_children_of_a_lost_worker_are_found_by_their_environment(folder: Path) -> None:
    mark = f"lost-{os.getpid()}"
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "os.write(1, f'up {os.getpid()}\\n'.encode())\ntime.sleep(600)"
    )
    spec = python(code)
    child = processes.start(folder, WorkerSpec(argv=spec.argv, env={**spec.env, "LEVADA_JOB": mark}, cwd="/"))
    wait_until(lambda: output_of(folder).count("\n") == 2)
    processes.kill(folder)
    child.wait()
    pids = [int(line.split()[1]) for line in output_of(folder).splitlines()]
    assert set(processes.kill_marked({"LEVADA_JOB": mark})) <= set(pids)
    wait_until(lambda: all((process := procfs.look(pid)) is None or process.is_zombie for pid in pids))


HIDDEN = (
    "import subprocess, time\n"
    "subprocess.Popen(['setsid', '-f', 'env', '-i', 'sh', '-c', 'echo $$; exec sleep 987'], env={})\n"
    "time.sleep(600)"
)


@pytest.mark.parametrize("is_parent", [True, False])
async def test_children_with_an_empty_environment_end_with_a_killed_shim(folder: Path, is_parent: bool) -> None:
    """In the process that started the worker, and in the next server, which adopts it."""
    child = processes.start(folder, python(HIDDEN))
    wait_until(lambda: output_of(folder).endswith("\n"))
    hidden = int(output_of(folder))
    wait_until(lambda: processes.inspect(folder).pid is not None)

    ending = asyncio.create_task(processes.wait_ended(folder, child if is_parent else None))
    await asyncio.sleep(0)
    assert processes.kill(folder)
    assert (await asyncio.wait_for(ending, WAIT_S)).state is ProcessState.LOST
    process = procfs.look(hidden)
    assert process is None or process.is_zombie
    child.wait()


async def test_a_killed_reaper_changes_nothing(folder: Path) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.005)\nsys.exit(5)"
    child = processes.start(folder, python(code, cwd=str(folder.parent)))
    wait_until(lambda: processes.inspect(folder).pid is not None)
    child.kill()
    child.wait()
    assert processes.inspect(folder).state is ProcessState.RUNS
    (folder.parent / "go").touch()
    assert (await final_status(folder)).code == 5


@pytest.mark.parametrize("is_parent", [True, False])
async def test_a_frozen_reaper_is_killed_and_the_exit_code_is_correct(folder: Path, is_parent: bool) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.005)\nsys.exit(5)"
    child = processes.start(folder, python(code, cwd=str(folder.parent)))
    wait_until(lambda: processes.inspect(folder).pid is not None)
    child.send_signal(signal.SIGSTOP)
    (folder.parent / "go").touch()
    status = await final_status(folder, child if is_parent else None)
    assert (status.state, status.code, status.asked) == (ProcessState.ENDED, 5, False)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("end", "code"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), 11)", -11)])
async def test_a_shim_hanging_after_its_worker_is_killed_and_the_exit_code_is_correct(
    folder: Path, end: str, code: int
) -> None:
    """Child processes of the worker end, too."""
    script = (
        "import os, pathlib, sys, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
        f"while not pathlib.Path('go').exists(): time.sleep(0.005)\n{end}"
    )
    child = processes.start(folder, python(script, cwd=str(folder.parent)))
    wait_until(lambda: processes.inspect(folder).pid is not None)
    worker, holder = processes.inspect(folder).pid, processes.inspect(folder).shim
    assert worker is not None
    assert holder is not None
    assert processes.idle_shim(folder) is None, "its worker lives"
    wait_until(lambda: len(procfs.descendants(worker)) == 1)
    (left,) = procfs.descendants(worker)
    os.kill(holder, signal.SIGSTOP)
    (folder.parent / "go").touch()
    wait_until(lambda: (idle := processes.idle_shim(folder)) is not None and idle.code is not None)
    idle = processes.idle_shim(folder)
    assert idle == (True, code)
    processes.end_idle_shim(folder, idle)
    status = await final_status(folder, child)
    assert (status.state, status.code, status.asked) == (ProcessState.ENDED, code, False)
    assert not procfs.is_same(left.pid, left.started)


async def test_a_stopped_worker_with_a_killed_shim_is_not_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levada.backends.local.worker._IDLE_S", 0.0)
    script = (
        "import pathlib, signal, sys, time\nhere = pathlib.Path()\n"
        "signal.signal(signal.SIGTERM, lambda *_: (here / 'signalled').touch())\nprint('up', flush=True)\n"
        "while not (here / 'go').exists(): time.sleep(0.005)\nsys.exit(0)"
    )
    child = processes.start(folder, python(script, cwd=str(folder.parent)))
    wait_until(lambda: output_of(folder).startswith("up"))
    standing = processes.inspect(folder)
    assert standing.shim is not None
    worker = Worker(folder, WorkerStatus(job="toy", name="g1-0", state=RUNS, pid=standing.pid), lambda *_: None)
    worker.end(at_once=False)
    wait_until((folder.parent / "signalled").exists)
    os.kill(standing.shim, signal.SIGSTOP)
    (folder.parent / "go").touch()
    wait_until(lambda: (idle := processes.idle_shim(folder)) is not None and idle.code is not None)
    worker.check_shim()
    status = await final_status(folder, child)
    assert (status.state, status.code, status.asked) == (ProcessState.ENDED, 0, True)


async def test_a_frozen_reaper_leaves_no_process_of_a_killed_shim(folder: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\ntime.sleep(600)"
    child = processes.start(folder, python(code))
    wait_until(lambda: output_of(folder).endswith("\n"))
    hidden = int(output_of(folder))
    child.send_signal(signal.SIGSTOP)
    assert processes.kill(folder)
    assert (await final_status(folder, child)).state is ProcessState.LOST
    process = procfs.look(hidden)
    assert process is None or process.is_zombie


async def test_a_process_with_the_pid_of_the_reaper_is_not_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs can write to their folder: a PID in it must not get another process killed."""
    monkeypatch.setattr(processes, "_REAPER_S", 0.1)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            for number in (bystander.pid, -5, 2**40):
                worker_folder = folder.with_name(f"w{number}")
                started = procfs.look(bystander.pid)
                assert started is not None
                child = processes.start(worker_folder, python("pass"))
                assert (await final_status(worker_folder, child)).code == 0
                run = json.loads((worker_folder / shim.RUN).read_text())
                (worker_folder / shim.RUN).write_text(
                    json.dumps({**run, "keeper": number, "keeper_started": started.started})
                )
                assert (await final_status(worker_folder)).code == 0
            assert bystander.poll() is None
        finally:
            bystander.kill()


async def test_shim_files_are_private_and_worker_files_use_its_umask(folder: Path, tmp_path: Path) -> None:
    code = "import os; open('created', 'w'); print(oct(os.umask(0)))"
    before = os.umask(0o022)
    try:
        await final_status(folder, processes.start(folder, python(code, cwd=str(folder.parent))))
        given = folder.with_name("given")
        await final_status(given, processes.start(given, python(code, cwd=str(tmp_path), umask=0o027)))
    finally:
        os.umask(before)
    assert (output_of(folder), output_of(given)) == ("0o22\n", "0o27\n")
    assert (folder.parent / "created").stat().st_mode & 0o777 == 0o644
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077] == []


def test_a_private_umask_of_the_server_does_not_affect_workers(folder: Path) -> None:
    server = (
        "import os, pathlib, sys\nfrom levada.backends.local import processes\nos.umask(0o002)\n"
        "processes.restrict_umask()\nopen(sys.argv[2], 'w').close()\n"
        "spec = processes.WorkerSpec(argv=['sh', '-c', 'umask'], env={'PATH': os.environ['PATH']}, cwd='/')\n"
        "processes.start(pathlib.Path(sys.argv[1]), spec).wait()"
    )
    own = folder.with_name("own")
    subprocess.run([sys.executable, "-c", server, str(folder), str(own)], check=True, timeout=WAIT_S)
    assert int(output_of(folder), 8) == 0o002
    assert own.stat().st_mode & 0o777 == 0o600


async def test_a_worker_survives_the_server_and_is_adopted_by_the_next(folder: Path) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.005)\nsys.exit(9)"
    server = (
        "import pathlib, sys\nfrom levada.backends.local import processes\n"
        f"spec = processes.WorkerSpec(argv=[sys.executable, '-S', '-E', '-c', {code!r}], env={{}}, cwd=sys.argv[1])\n"
        "folder = pathlib.Path(sys.argv[1])\nprocesses.start(folder, spec)\n"
        "while processes.inspect(folder).pid is None: pass\nprint('started', flush=True)\nimport time; time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", server, str(folder)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "started\n"
        first.kill()
    assert processes.inspect(folder).state is ProcessState.RUNS
    (folder / "go").touch()
    assert (await final_status(folder)).code == 9


async def test_large_output_is_rotated_and_never_blocks_the_worker(folder: Path) -> None:
    code = "import sys\nfor i in range(20000): print(f'{i:06d}')\nsys.exit(3)"
    status = await final_status(folder, processes.start(folder, python(code, log_bytes=10_000, log_parts=3)))
    assert (status.code, status.lost_output) == (3, 0)
    parts = [folder / "log.2", folder / "log.1", folder / "log"]
    stored = "".join(part.read_text() for part in parts).split()
    assert stored[-1] == "019999"
    assert stored == [f"{i:06d}" for i in range(20000 - len(stored), 20000)]
    assert all(part.stat().st_size <= 70_000 for part in parts)
    assert sorted(path.name for path in folder.glob("log*")) == ["log", "log.1", "log.2", "log.times"]


def test_an_unwritable_worker_folder_starts_nothing(tmp_path: Path) -> None:
    """Like on a full disk: a folder with the name of the record makes its write fail."""
    (tmp_path / (shim.EXIT + ".new")).mkdir()
    ran = tmp_path / "ran"
    child = processes.start(tmp_path, python(f"open({str(ran)!r}, 'w')"))
    assert child.wait() == shim.NO_RECORD
    assert "cannot write to" in (tmp_path / "shim.err").read_text()
    assert processes.inspect(tmp_path).state is ProcessState.ABSENT
    assert not ran.exists()


def test_a_barred_worker_never_starts(folder: Path) -> None:
    folder.mkdir()
    assert processes.prevent_start(folder)
    ran = folder / "ran"
    child = processes.start(folder, python(f"open({str(ran)!r}, 'w')"))
    assert child.wait() == shim.FINISHED_BEFORE
    assert not ran.exists()


def test_a_running_worker_cannot_be_barred(folder: Path) -> None:
    child = processes.start(folder, python("import time; print('up'); time.sleep(600)"))
    wait_until(lambda: output_of(folder))
    assert not processes.prevent_start(folder)
    assert processes.inspect(folder).state is ProcessState.RUNS
    processes.kill(folder)
    child.wait()


def test_a_damaged_record_is_ignored(folder: Path) -> None:
    folder.mkdir()
    for name in (shim.RUN, shim.EXIT):
        (folder / name).write_text('{"code": 0, "wor')
    assert processes.inspect(folder).state is ProcessState.ABSENT


async def test_a_stop_reaches_a_worker_that_is_starting(folder: Path) -> None:
    """With repeated stops from its start on, the worker exits at once, not after its grace period."""
    for attempt in range(5):
        place = folder / str(attempt)
        began = time.monotonic()
        child = processes.start(place, python("import time; time.sleep(600)", grace_s=30.0))
        while child.poll() is None and not processes.ask_to_leave(place):
            pass
        await final_status(place, child)
        assert time.monotonic() - began < 20
