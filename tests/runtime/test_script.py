"""What a script sees: alone, under a supervisor, with a lease, over items, with a server that answers or does not."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from levada.runtime.report import IN_PROCESS, LEAVES, READY, SAVES
from tests.runtime.supervisor import Supervisor, free_port, supervising, wait_until

COUNT = """
    import levada.runtime, os, sys, time
    job = levada.runtime.init(save_every_s=float(os.environ.get("SAVE_EVERY", "600")))
    seen = []
    job.state(seen=seen)
    for step in job.steps(int(os.environ.get("STEPS", "1000000"))):
        seen.append(step)
        time.sleep(0.002)
    assert seen == list(range(job.step)), seen
    job.complete()
    print("all", job.step, job.rank, job.world_size, job.generation)
"""


def script(folder: Path, text: str) -> str:
    """The path of a script with this text."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def run(path: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end, without a supervisor."""
    return subprocess.run([sys.executable, path], env=dict(env or {}), capture_output=True, text=True, timeout=180)


@contextmanager
def counting(folder: Path, env: Mapping[str, str] | None = None, text: str = COUNT) -> Iterator[Supervisor]:
    with supervising(folder, [script(folder, text)], env) as job:
        yield job


def test_importing_it_brings_in_nothing_but_the_standard_library() -> None:
    code = """
        import sys
        before = set(sys.modules)
        import levada.runtime
        new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"levada"}
        ours = sorted(name for name in sys.modules if name.startswith("levada.") and "runtime" not in name)
        print(sorted(name for name in new if name not in sys.stdlib_module_names), ours)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=180)
    assert done.stdout == "[] []\n"


def test_without_a_server_it_is_alone_and_endless(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), {"STEPS": "50"})
    assert (done.stdout, done.stderr, done.returncode) == ("all 50 0 1 0\n", "", 0)


def test_alone_it_still_saves_on_sigterm_and_goes_on_from_there(tmp_path: Path) -> None:
    env = {"LEVADA_CHECKPOINT_DIR": str(tmp_path / "kept"), "STEPS": "1000000", "SAVE_EVERY": "0.05"}
    path = script(tmp_path, COUNT)
    with subprocess.Popen([sys.executable, path], env=env) as process:
        try:
            wait_until((tmp_path / "kept" / "levada.checkpoint").exists, "it saves now and then by itself")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 75
        finally:
            process.kill()
    saved = json.loads((tmp_path / "kept" / "levada.checkpoint").read_bytes().splitlines()[0])
    assert saved["saves"] >= 2
    done = run(path, {**env, "STEPS": str(saved["step"] + 5)})
    assert done.stdout == f"all {saved['step'] + 5} 0 1 0\n"


def test_sigterm_without_a_folder_for_checkpoints_says_so(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, script(tmp_path, COUNT.replace("seen.append(step)", "seen.append(step); print(flush=True)"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=180)
    assert process.returncode == 1
    assert said == b"levada: no checkpoint: LEVADA_CHECKPOINT_DIR is not set\n"


def test_a_script_that_says_it_is_done_after_a_stop_is_not(tmp_path: Path) -> None:
    text = """
        import levada.runtime, time
        job = levada.runtime.init(elastic=False)
        job.join()
        while not job.tick():
            time.sleep(0.002)
        job.saved()
        job.complete()
    """
    with counting(tmp_path, {}, text) as job:
        (worker,) = job.start(1)
        job.reached(20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        assert worker.report.flags == READY | LEAVES
        assert worker.report.saved_step == worker.report.step


def test_the_report_tells_steps_pace_and_time(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        (worker,) = job.start(1)
        job.reached(100)
        report = worker.report
        assert 0.001 < report.step_s < 0.5
        assert abs(report.at - time.time()) < 10
        assert report.flags == READY | IN_PROCESS | SAVES
        assert (report.generation, report.pause_s, report.dropped) == (1, 0.0, 0)
        worker.signal(signal.SIGKILL)
        worker.ended()
        assert worker.report.step >= report.step  # it outlives the worker


def test_a_lease_stops_the_job_after_the_step_it_names(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        (worker,) = job.start(1, lease={"until_step": 40, "then": "stop"})
        assert worker.ended() == 75
        assert worker.report.step == worker.report.saved_step == 40


def test_members_stop_at_the_end_of_a_lease_after_the_same_step(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        workers = job.start(2, lease={"until_step": 40, "then": "stop"})
        assert [worker.ended() for worker in workers] == [75, 75]
        assert [worker.report.step for worker in workers] == [40, 40]


def test_a_lease_that_ends_without_a_word_changes_nothing(tmp_path: Path) -> None:
    with counting(tmp_path, {"STEPS": "100"}) as job:
        (worker,) = job.start(1, lease={"until_step": 10, "until_time": 1.0})
        assert worker.ended() == 0


def test_a_lease_ends_by_the_clock_too(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        (worker,) = job.start(1)
        job.reached(5)
        job.publish([worker], lease={"until_time": time.time(), "then": "stop"})
        assert worker.ended() == 75


def test_saving_in_the_middle_of_a_step_saves_the_whole_step(tmp_path: Path) -> None:
    text = COUNT.replace("seen.append(step)", "job.save_now(); seen.append(step)")
    with counting(tmp_path, {"STEPS": "300"}, text) as job:
        (worker,) = job.start(1)
        job.sees(lambda: worker.report.saves >= 5, "it saves after every step")
        worker.signal(signal.SIGKILL)
        worker.ended()
        (again,) = job.start(1)
        assert again.ended() == 0  # it has seen every step once
        assert again.report.saves > worker.report.saves


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), {"LEVADA_STATE_DIR": "/nowhere/at/all"})
    assert "LEVADA_STATE_DIR is /nowhere/at/all, which is no folder: unset it" in done.stderr


def test_a_variable_that_is_no_number_is_a_clear_error(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), {"LEVADA_RANK": "first"})
    assert "LEVADA_RANK is 'first' and should be a whole number" in done.stderr


ITEMS = """
    import levada.runtime, os, time
    job = levada.runtime.init()
    seen = []
    job.state(seen=seen)
    for epoch in job.epochs(3):
        for item in levada.runtime.steps(list("abcdefghij")):
            seen.append((epoch, item))
            time.sleep(float(os.environ["PACE"]))
    job.complete()
    print("".join(f"{epoch}{item}" for epoch, item in seen), job.step, job.epoch)
"""
ALL_ITEMS = "".join(f"{epoch}{item}" for epoch in range(3) for item in "abcdefghij") + " 30 3\n"


def test_passes_over_items_go_on_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    with counting(tmp_path, {"PACE": "0.05"}, ITEMS) as job:
        (worker,) = job.start(1)
        job.reached(13)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 75
        (again,) = job.start(1)
        assert again.ended() == 0
        assert again.output == ALL_ITEMS


def test_newcomers_find_their_place_in_the_pass(tmp_path: Path) -> None:
    with counting(tmp_path, {"PACE": "0.06"}, ITEMS) as job:
        (worker,) = job.start(1, ahead=1)
        job.reached(3)
        job.resize([worker], add=1)
        newcomer = job.members[1]
        assert [worker.ended(), newcomer.ended()] == [0, 0]
        assert worker.output == newcomer.output == ALL_ITEMS


def test_breaking_out_of_a_pass_begins_the_next_one_anew(tmp_path: Path) -> None:
    text = """
        import levada.runtime
        seen = []
        for _ in range(2):
            for item in levada.runtime.steps("abc"):
                seen.append(item)
                if item == "b":
                    break
        print(seen, levada.runtime.init().step)
    """
    assert run(script(tmp_path, text)).stdout == "['a', 'b', 'a', 'b'] 2\n"


def test_own_groups_stay_as_they_are(tmp_path: Path) -> None:
    text = """
        import levada.runtime, time
        job = levada.runtime.init(elastic=False)
        for step in job.steps(10_000_000):
            time.sleep(0.002)
    """
    with counting(tmp_path, {}, text) as job:
        first, second = job.start(2)
        job.entered()
        job.reached(10)
        assert first.report.flags == second.report.flags == 1
        assert job.port not in {int(line.split()[1].split(":")[1], 16) for line in _listening()}
        first.signal(signal.SIGTERM)
        assert first.ended() == 75
        assert second.process.poll() is None


def _listening() -> list[str]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[3] == "0A"]


def test_children_end_on_sigterm_as_ever(tmp_path: Path) -> None:
    text = """
        import levada.runtime, os, signal, time
        levada.runtime.init()
        is_up, up = os.pipe()
        child = os.fork()
        if not child:
            os.write(up, b"1")
            time.sleep(30)
            os._exit(0)
        os.read(is_up, 1)
        os.kill(child, signal.SIGTERM)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]))
    """
    assert run(script(tmp_path, text)).stdout == "15\n"


# ---------------------------------------------------------------------------------------------------------- a server


class Reports(ThreadingHTTPServer):
    """Takes reports as a server does."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.answer: dict[str, Any] = {}
        super().__init__(("127.0.0.1", 0), Taken)


class Taken(BaseHTTPRequestHandler):
    """One report."""

    protocol_version = "HTTP/1.1"
    server: Reports

    def do_POST(self) -> None:
        assert self.path == "/api/v1/worker/report"
        self.server.tokens.add(self.headers["Authorization"])
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps(self.server.answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Reports]:
    with Reports() as taking:
        thread = threading.Thread(target=taking.serve_forever, args=(0.01,))
        thread.start()
        yield taking
        taking.shutdown()
        thread.join()


def far_away(url: str, steps: int) -> dict[str, str]:
    """The environment of a worker that has a server and no folder."""
    return {
        "LEVADA_SERVER": url,
        "LEVADA_TOKEN": "secret",
        "LEVADA_JOB": "job-1",
        "LEVADA_GENERATION": "4",
        "LEVADA_RANK": "0",
        "LEVADA_WORLD_SIZE": "1",
        "STEPS": str(steps),
    }


def test_reports_go_to_a_server_where_there_is_no_folder(tmp_path: Path, server: Reports) -> None:
    done = run(script(tmp_path, COUNT), far_away(f"http://127.0.0.1:{server.server_port}", 600))
    assert (done.stdout, done.returncode) == ("all 600 0 1 4\n", 0)
    assert server.tokens == {"Bearer secret"}
    fields = {"job", "generation", "rank", "flags", "step", "step_s", "saves", "saved_step"}
    assert all(body.keys() == fields for body in server.bodies)
    last = server.bodies[-1]
    assert (last["job"], last["generation"], last["rank"]) == ("job-1", 4, 0)
    assert (last["flags"], last["step"]) == (7, 600)
    assert last["step_s"] > 0
    assert len(server.bodies) < 20  # one a second, and when something is new


def test_a_server_may_end_a_lease(tmp_path: Path, server: Reports) -> None:
    server.answer = {"lease": {"until_step": 30, "then": "stop"}}
    env = far_away(f"http://127.0.0.1:{server.server_port}", 10**6) | {"LEVADA_CHECKPOINT_DIR": str(tmp_path)}
    done = run(script(tmp_path, COUNT), env)
    assert done.returncode == 75
    assert server.bodies[-1]["flags"] & 8
    assert server.bodies[-1]["saved_step"] >= 30


def test_a_server_may_add_a_worker(tmp_path: Path, server: Reports) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    first_env = far_away(url, 2000) | {"LEVADA_GENERATION": "1"}
    port = str(free_port())
    second_env = far_away(url, 2000) | {
        "LEVADA_GENERATION": "2",
        "LEVADA_RANK": "1",
        "LEVADA_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    command = [sys.executable, script(tmp_path, COUNT)]
    with (
        subprocess.Popen(command, env=first_env, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, env=second_env, stdout=subprocess.PIPE, text=True) as second,
    ):
        try:
            wait_until(lambda: any((body["step"] or 0) > 5 for body in server.bodies), "the first one trains")
            master = {"address": "127.0.0.1", "port": int(port)}
            server.answer = {"world": {"generation": 2, "members": ["g1-0", "g2-1"], "master": master}}
            said = [process.communicate(timeout=180)[0] for process in (first, second)]
        finally:
            first.kill()
            second.kill()
    assert said == ["all 2000 0 2 2\n", "all 2000 1 2 2\n"]
    assert {body["rank"] for body in server.bodies if body["generation"] == 2} == {0, 1}


def test_a_server_that_refuses_is_not_minded(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), far_away(f"http://127.0.0.1:{free_port()}", 50))
    assert (done.stdout, done.stderr, done.returncode) == ("all 50 0 1 4\n", "", 0)


def test_a_server_that_never_answers_costs_the_steps_nothing(tmp_path: Path) -> None:
    text = """
        import levada.runtime, time
        job = levada.runtime.init()
        slowest, last = 0.0, time.monotonic()
        for step in job.steps(200_000):
            now = time.monotonic()
            slowest, last = max(slowest, now - last), now
        job.complete()
        print(slowest < 2)
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(script(tmp_path, text), far_away(f"http://127.0.0.1:{silent.getsockname()[1]}", 0))
    assert (done.stdout, done.returncode) == ("True\n", 0)
