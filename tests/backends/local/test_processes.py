"""One real worker under a real shim: what it says, how it ends, and who may die meanwhile."""

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
from levada.backends.local.messages import RUNS, Sighting
from levada.backends.local.processes import Spec, Standing, State
from levada.backends.local.worker import Worker
from tests.patience import WAIT_S


def python(code: str, **fields: Any) -> Spec:
    """A worker that runs *code*."""
    env = {"PATH": os.environ["PATH"], "LEVADA_JOB": "toy"}
    return Spec(
        **{"argv": [sys.executable, "-u", "-S", "-E", "-c", code], "cwd": "/", "grace_s": 20.0, "env": env, **fields}
    )


def until(true: Callable[[], object]) -> None:
    """Waits for something that another process does."""
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def end_of(folder: Path, child: subprocess.Popen[bytes] | None = None) -> Standing:
    return asyncio.run(asyncio.wait_for(processes.ended(folder, child), WAIT_S))


def said(folder: Path) -> str:
    log = folder / shim.LOG
    return log.read_text() if log.exists() else ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "worker"
    yield made
    processes.kill(made)


def test_a_worker_runs_and_its_code_and_output_are_kept(folder: Path) -> None:
    child = processes.start(folder, python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"))
    found = end_of(folder, child)
    assert (found.state, found.code, found.asked) == (State.ENDED, 7, False)
    assert child.returncode == shim.DONE
    assert sorted(said(folder).split()) == ["err", "out"]


def test_a_worker_that_cannot_be_executed_says_why(folder: Path) -> None:
    spec = Spec(argv=["no-such-program"], env={"PATH": "/bin"}, cwd="/")
    found = end_of(folder, processes.start(folder, spec))
    assert found.code == shim.CANNOT_EXECUTE
    assert "cannot start 'no-such-program': not found in PATH" in said(folder)


def test_a_folder_that_is_not_there_says_why(folder: Path) -> None:
    found = end_of(folder, processes.start(folder, python("", cwd="/no/such/folder")))
    assert found.code == shim.CANNOT_EXECUTE
    assert "/no/such/folder" in said(folder)


def test_limits_hold(folder: Path) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    end_of(folder, processes.start(folder, python(code, limits={"nofile": 77})))
    assert said(folder) == "(77, 77)\n"


def test_nothing_stands_before_the_start_and_a_second_start_starts_nothing(folder: Path) -> None:
    assert processes.standing(folder).state is State.ABSENT
    code = "import os, time; print(os.getpid()); time.sleep(600)"
    children = [processes.start(folder, python(code)) for _ in range(6)]
    until(lambda: said(folder))
    until(lambda: sum(child.poll() is not None for child in children) == 5)
    assert sorted(child.returncode or 0 for child in children) == [0, *[shim.ALREADY_RUNS] * 5]
    assert len(said(folder).split()) == 1
    assert processes.standing(folder).pid == int(said(folder))
    processes.ask_to_leave(folder)
    assert end_of(folder).code == -signal.SIGTERM
    assert [child.wait() for child in children].count(shim.DONE) == 1
    again = processes.start(folder, python(code))
    assert again.wait() == shim.FINISHED_BEFORE
    assert len(said(folder).split()) == 1


def test_who_asks_after_the_end_of_a_worker_asked_nobody(folder: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nprint('up')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)"
    child = processes.start(folder, python(code))
    until(lambda: said(folder))
    before = processes.standing(folder)
    assert before.shim is not None
    assert before.pid is not None
    os.kill(before.shim, signal.SIGSTOP)
    go.touch()
    until(lambda: (worker := procfs.look(before.pid or 0)) is None or worker.is_zombie)
    assert processes.ask_to_leave(folder)
    os.kill(before.shim, signal.SIGCONT)
    found = end_of(folder, child)
    assert (found.state, found.code, found.asked) == (State.ENDED, 0, False)


def test_a_worker_that_is_asked_to_leave_may_save_first(folder: Path) -> None:
    code = (
        # A signal may come in the middle of `print`, which cannot be called again from there.
        "import os, signal, sys, time\n"
        "def leave(*_):\n    os.write(1, b'saved')\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave)\nos.write(1, b'up')\ntime.sleep(600)"
    )
    child = processes.start(folder, python(code))
    until(lambda: "up" in said(folder))
    assert processes.ask_to_leave(folder)
    found = end_of(folder, child)
    assert (found.code, found.asked) == (75, True)
    assert "saved" in said(folder)
    assert not processes.ask_to_leave(folder), "there is nobody to ask any more"


def test_a_worker_gets_the_signal_once_however_often_it_is_asked(folder: Path, tmp_path: Path) -> None:
    """An interpreter resets its handlers before it ends: a second signal would kill one that leaves with 75."""
    code = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'T'))\nos.write(1, b'up')\n"
        f"go = pathlib.Path({str(tmp_path / 'go')!r})\n"
        "while not go.exists():\n    time.sleep(0.005)\n"
    )
    child = processes.start(folder, python(code))
    until(lambda: "up" in said(folder))
    for _ in range(3):
        assert processes.ask_to_leave(folder)
        until(lambda: "T" in said(folder))
    (tmp_path / "go").touch()
    end_of(folder, child)
    assert said(folder).count("T") == 1


def test_a_worker_that_does_not_leave_is_killed_after_its_grace_period(folder: Path) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)"
    child = processes.start(folder, python(code, grace_s=0.2))
    until(lambda: "up" in said(folder))
    processes.ask_to_leave(folder)
    found = end_of(folder, child)
    assert (found.code, found.asked) == (-signal.SIGKILL, True)


def test_a_worker_that_is_killed_says_which_signal(folder: Path) -> None:
    child = processes.start(folder, python("import time; print('up'); time.sleep(600)"))
    until(lambda: "up" in said(folder))
    pid = processes.standing(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    found = end_of(folder, child)
    assert (found.code, found.asked) == (-signal.SIGKILL, False)


def test_what_a_worker_leaves_behind_ends_with_it(folder: Path) -> None:
    code = (
        "import os, time\nready, tell = os.pipe()\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.write(1, str(os.getpid()).encode())\n"
        "    os.write(tell, b'!')\n    time.sleep(600)\n"
        "os.read(ready, 1)"
    )
    assert end_of(folder, processes.start(folder, python(code))).code == 0
    found = procfs.look(int(said(folder)))
    assert found is None or found.is_zombie


def test_a_worker_dies_with_its_shim_and_is_lost(folder: Path) -> None:
    child = processes.start(folder, python("import time; print('up'); time.sleep(600)"))
    until(lambda: "up" in said(folder))
    worker = processes.standing(folder).pid
    assert worker is not None
    assert processes.kill(folder)
    child.wait()
    assert processes.standing(folder).state is State.LOST
    until(lambda: (found := procfs.look(worker)) is None or found.is_zombie)


def test_what_a_lost_worker_left_behind_is_found_by_its_environment(folder: Path) -> None:
    mark = f"lost-{os.getpid()}"
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "os.write(1, f'up {os.getpid()}\\n'.encode())\ntime.sleep(600)"
    )
    spec = python(code)
    child = processes.start(folder, Spec(argv=spec.argv, env={**spec.env, "LEVADA_JOB": mark}, cwd="/"))
    until(lambda: said(folder).count("\n") == 2)
    processes.kill(folder)
    child.wait()
    pids = [int(line.split()[1]) for line in said(folder).splitlines()]
    processes.sweep({"LEVADA_JOB": mark})
    until(lambda: all((found := procfs.look(pid)) is None or found.is_zombie for pid in pids))


HIDDEN = (
    "import subprocess, time\n"
    "subprocess.Popen(['setsid', '-f', 'env', '-i', 'sh', '-c', 'echo $$; exec sleep 987'], env={})\n"
    "time.sleep(600)"
)


@pytest.mark.parametrize("is_parent", [True, False])
def test_what_hides_from_a_killed_shim_with_an_empty_environment_ends_too(folder: Path, is_parent: bool) -> None:
    """In whoever started it, and in the next server, which only finds it."""
    child = processes.start(folder, python(HIDDEN))
    until(lambda: said(folder).endswith("\n"))
    hidden = int(said(folder))
    until(lambda: processes.standing(folder).pid is not None)

    async def killed() -> Standing:
        ending = asyncio.create_task(processes.ended(folder, child if is_parent else None))
        await asyncio.sleep(0)
        assert processes.kill(folder)
        return await asyncio.wait_for(ending, WAIT_S)

    assert asyncio.run(killed()).state is State.LOST
    found = procfs.look(hidden)
    assert found is None or found.is_zombie
    child.wait()


def test_a_keeper_that_is_killed_changes_nothing(folder: Path) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.005)\nsys.exit(5)"
    child = processes.start(folder, python(code, cwd=str(folder.parent)))
    until(lambda: processes.standing(folder).pid is not None)
    child.kill()
    child.wait()
    assert processes.standing(folder).state is State.RUNS
    (folder.parent / "go").touch()
    assert end_of(folder).code == 5


@pytest.mark.parametrize("is_parent", [True, False])
def test_a_keeper_that_is_frozen_is_ended_and_the_code_is_right(folder: Path, is_parent: bool) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.005)\nsys.exit(5)"
    child = processes.start(folder, python(code, cwd=str(folder.parent)))
    until(lambda: processes.standing(folder).pid is not None)
    child.send_signal(signal.SIGSTOP)
    (folder.parent / "go").touch()
    found = end_of(folder, child if is_parent else None)
    assert (found.state, found.code, found.asked) == (State.ENDED, 5, False)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("end", "code"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), 11)", -11)])
def test_a_shim_that_does_nothing_after_its_worker_is_ended_and_the_code_is_right(
    folder: Path, end: str, code: int
) -> None:
    """What the worker left behind ends, too."""
    script = (
        "import os, pathlib, sys, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
        f"while not pathlib.Path('go').exists(): time.sleep(0.005)\n{end}"
    )
    child = processes.start(folder, python(script, cwd=str(folder.parent)))
    until(lambda: processes.standing(folder).pid is not None)
    worker, holder = processes.standing(folder).pid, processes.standing(folder).shim
    assert worker is not None
    assert holder is not None
    assert processes.idle_shim(folder) is None, "its worker lives"
    until(lambda: len(procfs.descendants(worker)) == 1)
    (left,) = procfs.descendants(worker)
    os.kill(holder, signal.SIGSTOP)
    (folder.parent / "go").touch()
    until(lambda: (found := processes.idle_shim(folder)) is not None and found.code is not None)
    idle = processes.idle_shim(folder)
    assert idle == (True, code)
    processes.end_idle_shim(folder, idle)
    found = end_of(folder, child)
    assert (found.state, found.code, found.asked) == (State.ENDED, code, False)
    assert not procfs.is_same(left.pid, left.started)


def test_a_worker_that_was_asked_to_leave_is_not_done_though_its_shim_had_to_be_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levada.backends.local.worker._IDLE_S", 0.0)
    script = (
        "import pathlib, signal, sys, time\nhere = pathlib.Path()\n"
        "signal.signal(signal.SIGTERM, lambda *_: (here / 'heard').touch())\nprint('up', flush=True)\n"
        "while not (here / 'go').exists(): time.sleep(0.005)\nsys.exit(0)"
    )
    child = processes.start(folder, python(script, cwd=str(folder.parent)))
    until(lambda: said(folder).startswith("up"))
    standing = processes.standing(folder)
    assert standing.shim is not None
    worker = Worker(folder, Sighting(job="toy", name="g1-0", state=RUNS, pid=standing.pid), lambda *_: None)
    worker.end(at_once=False)
    until((folder.parent / "heard").exists)
    os.kill(standing.shim, signal.SIGSTOP)
    (folder.parent / "go").touch()
    until(lambda: (found := processes.idle_shim(folder)) is not None and found.code is not None)
    worker.check_guard()
    found = end_of(folder, child)
    assert (found.state, found.code, found.asked) == (State.ENDED, 0, True)


def test_a_keeper_that_is_frozen_leaves_nothing_of_a_killed_shim(folder: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\ntime.sleep(600)"
    child = processes.start(folder, python(code))
    until(lambda: said(folder).endswith("\n"))
    hidden = int(said(folder))
    child.send_signal(signal.SIGSTOP)
    assert processes.kill(folder)
    assert end_of(folder, child).state is State.LOST
    found = procfs.look(hidden)
    assert found is None or found.is_zombie


def test_who_is_named_in_place_of_the_keeper_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs can write into their folders; nobody must be ended because a job says so."""
    monkeypatch.setattr(processes, "_KEEPER_S", 0.1)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            for number in (bystander.pid, -5, 2**40):
                here = folder.with_name(f"w{number}")
                started = procfs.look(bystander.pid)
                assert started is not None
                child = processes.start(here, python("pass"))
                assert end_of(here, child).code == 0
                run = json.loads((here / shim.RUN).read_text())
                (here / shim.RUN).write_text(json.dumps({**run, "keeper": number, "keeper_started": started.started}))
                assert end_of(here).code == 0
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_files_of_a_shim_are_its_owners_and_those_of_a_worker_as_it_wants(folder: Path, tmp_path: Path) -> None:
    code = "import os; open('made', 'w'); print(oct(os.umask(0)))"
    before = os.umask(0o022)
    try:
        end_of(folder, processes.start(folder, python(code, cwd=str(folder.parent))))
        given = folder.with_name("given")
        end_of(given, processes.start(given, python(code, cwd=str(tmp_path), umask=0o027)))
    finally:
        os.umask(before)
    assert (said(folder), said(given)) == ("0o22\n", "0o27\n")
    assert (folder.parent / "made").stat().st_mode & 0o777 == 0o644
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077] == []


def test_who_keeps_private_what_it_writes_takes_nothing_from_workers(folder: Path) -> None:
    server = (
        "import os, pathlib, sys\nfrom levada.backends.local import processes\nos.umask(0o002)\n"
        "processes.keep_private()\nopen(sys.argv[2], 'w').close()\n"
        "spec = processes.Spec(argv=['sh', '-c', 'umask'], env={'PATH': os.environ['PATH']}, cwd='/')\n"
        "processes.start(pathlib.Path(sys.argv[1]), spec).wait()"
    )
    own = folder.with_name("own")
    subprocess.run([sys.executable, "-c", server, str(folder), str(own)], check=True, timeout=WAIT_S)
    assert int(said(folder), 8) == 0o002
    assert own.stat().st_mode & 0o777 == 0o600


def test_a_worker_outlives_the_server_and_the_next_one_finds_it(folder: Path) -> None:
    code = "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.005)\nsys.exit(9)"
    server = (
        "import pathlib, sys\nfrom levada.backends.local import processes\n"
        f"spec = processes.Spec(argv=[sys.executable, '-S', '-E', '-c', {code!r}], env={{}}, cwd=sys.argv[1])\n"
        "folder = pathlib.Path(sys.argv[1])\nprocesses.start(folder, spec)\n"
        "while processes.standing(folder).pid is None: pass\nprint('started', flush=True)\nimport time; time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", server, str(folder)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "started\n"
        first.kill()
    assert processes.standing(folder).state is State.RUNS
    (folder / "go").touch()
    assert end_of(folder).code == 9


def test_much_output_is_rotated_and_never_holds_the_worker_up(folder: Path) -> None:
    code = "import sys\nfor i in range(20000): print(f'{i:06d}')\nsys.exit(3)"
    found = end_of(folder, processes.start(folder, python(code, log_bytes=10_000, log_parts=3)))
    assert (found.code, found.lost_output) == (3, 0)
    parts = [folder / "log.2", folder / "log.1", folder / "log"]
    kept = "".join(part.read_text() for part in parts).split()
    assert kept[-1] == "019999"
    assert kept == [f"{i:06d}" for i in range(20000 - len(kept), 20000)]
    assert all(part.stat().st_size <= 70_000 for part in parts)
    assert sorted(path.name for path in folder.glob("log*")) == ["log", "log.1", "log.2", "log.times"]


def test_a_folder_that_takes_no_record_starts_nothing(tmp_path: Path) -> None:
    """As on a full disk: the name of the record is taken by something that cannot be written."""
    (tmp_path / (shim.EXIT + ".new")).mkdir()
    ran = tmp_path / "ran"
    child = processes.start(tmp_path, python(f"open({str(ran)!r}, 'w')"))
    assert child.wait() == shim.NO_RECORD
    assert "cannot keep a record" in (tmp_path / "shim.err").read_text()
    assert processes.standing(tmp_path).state is State.ABSENT
    assert not ran.exists()


def test_a_worker_that_was_barred_never_starts(folder: Path) -> None:
    folder.mkdir()
    assert processes.bar(folder)
    ran = folder / "ran"
    child = processes.start(folder, python(f"open({str(ran)!r}, 'w')"))
    assert child.wait() == shim.FINISHED_BEFORE
    assert not ran.exists()


def test_a_worker_that_runs_cannot_be_barred(folder: Path) -> None:
    child = processes.start(folder, python("import time; print('up'); time.sleep(600)"))
    until(lambda: said(folder))
    assert not processes.bar(folder)
    assert processes.standing(folder).state is State.RUNS
    processes.kill(folder)
    child.wait()


def test_a_record_that_is_damaged_is_none(folder: Path) -> None:
    folder.mkdir()
    for name in (shim.RUN, shim.EXIT):
        (folder / name).write_text('{"code": 0, "wor')
    assert processes.standing(folder).state is State.ABSENT


def test_a_request_to_leave_reaches_a_worker_that_is_just_being_started(folder: Path) -> None:
    """Asked again and again from the first moment on, it leaves at once and not after its grace period."""
    for attempt in range(5):
        place = folder / str(attempt)
        began = time.monotonic()
        child = processes.start(place, python("import time; time.sleep(600)", grace_s=30.0))
        while child.poll() is None and not processes.ask_to_leave(place):
            pass
        end_of(place, child)
        assert time.monotonic() - began < 20
