"""Job API of a script: alone, supervised, leased, over items, over HTTP."""

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
    """Write a script with this text and return its path."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def run(path: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, without a supervisor."""
    return subprocess.run([sys.executable, path], env=dict(env or {}), capture_output=True, text=True, timeout=180)


@contextmanager
def counting(folder: Path, env: Mapping[str, str] | None = None, text: str = COUNT) -> Iterator[Supervisor]:
    with supervising(folder, [script(folder, text)], env) as job:
        yield job


def test_the_runtime_imports_only_the_standard_library() -> None:
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


def test_without_a_server_a_script_runs_alone_to_its_end(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), {"STEPS": "50"})
    assert (done.stdout, done.stderr, done.returncode) == ("all 50 0 1 0\n", "", 0)


def test_without_a_server_a_script_saves_on_sigterm_and_resumes(tmp_path: Path) -> None:
    env = {"LEVADA_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "STEPS": "1000000", "SAVE_EVERY": "0.05"}
    path = script(tmp_path, COUNT)
    with subprocess.Popen([sys.executable, path], env=env) as process:
        try:
            wait_until((tmp_path / "checkpoints" / "levada.checkpoint").exists, "a periodic checkpoint")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 75
        finally:
            process.kill()
    saved = json.loads((tmp_path / "checkpoints" / "levada.checkpoint").read_bytes().splitlines()[0])
    assert saved["saves"] >= 2
    done = run(path, {**env, "STEPS": str(saved["step"] + 5)})
    assert done.stdout == f"all {saved['step'] + 5} 0 1 0\n"


def test_sigterm_without_a_checkpoint_folder_is_reported(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, script(tmp_path, COUNT.replace("seen.append(step)", "seen.append(step); print(flush=True)"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=180)
    assert process.returncode == 1
    assert stderr == b"levada: no checkpoint: LEVADA_CHECKPOINT_DIR is not set\n"


def test_complete_after_a_stop_does_not_complete_the_job(tmp_path: Path) -> None:
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
        job.wait_step(20)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
        assert worker.report.flags == READY | LEAVES
        assert worker.report.saved_step == worker.report.step


def test_the_report_has_step_step_time_and_timestamp(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        (worker,) = job.start(1)
        job.wait_step(100)
        report = worker.report
        assert 0.001 < report.step_s < 0.5
        assert abs(report.at - time.time()) < 10
        assert report.flags == READY | IN_PROCESS | SAVES
        assert (report.generation, report.pause_s, report.dropped) == (1, 0.0, 0)
        worker.signal(signal.SIGKILL)
        worker.exit_code()
        assert worker.report.step >= report.step  # the report outlives the worker


def test_a_lease_stops_the_job_after_its_last_step(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        (worker,) = job.start(1, lease={"until_step": 40, "then": "stop"})
        assert worker.exit_code() == 75
        assert worker.report.step == worker.report.saved_step == 40


def test_members_stop_at_the_end_of_a_lease_after_the_same_step(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        workers = job.start(2, lease={"until_step": 40, "then": "stop"})
        assert [worker.exit_code() for worker in workers] == [75, 75]
        assert [worker.report.step for worker in workers] == [40, 40]


def test_a_lease_without_a_stop_action_does_not_stop_the_job(tmp_path: Path) -> None:
    with counting(tmp_path, {"STEPS": "100"}) as job:
        (worker,) = job.start(1, lease={"until_step": 10, "until_time": 1.0})
        assert worker.exit_code() == 0


def test_a_lease_ends_at_its_end_time(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        (worker,) = job.start(1)
        job.wait_step(5)
        job.publish([worker], lease={"until_time": time.time(), "then": "stop"})
        assert worker.exit_code() == 75


def test_save_now_within_a_step_saves_after_the_step(tmp_path: Path) -> None:
    text = COUNT.replace("seen.append(step)", "job.save_now(); seen.append(step)")
    with counting(tmp_path, {"STEPS": "300"}, text) as job:
        (worker,) = job.start(1)
        job.wait_until(lambda: worker.report.saves >= 5, "5 checkpoints")
        worker.signal(signal.SIGKILL)
        worker.exit_code()
        (restarted,) = job.start(1)
        assert restarted.exit_code() == 0  # the script asserts that it did every step once
        assert restarted.report.saves > worker.report.saves


def test_a_missing_state_folder_is_a_clear_error(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), {"LEVADA_STATE_DIR": "/nowhere/at/all"})
    assert "LEVADA_STATE_DIR is /nowhere/at/all, which is not a folder: unset it" in done.stderr


def test_a_non_numeric_rank_is_a_clear_error(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), {"LEVADA_RANK": "first"})
    assert "LEVADA_RANK is 'first' but must be an integer" in done.stderr


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


def test_an_epoch_resumes_at_its_next_item_after_a_stop(tmp_path: Path) -> None:
    with counting(tmp_path, {"PACE": "0.05"}, ITEMS) as job:
        (worker,) = job.start(1)
        job.wait_step(13)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 75
        (restarted,) = job.start(1)
        assert restarted.exit_code() == 0
        assert restarted.output == ALL_ITEMS


def test_a_new_member_continues_at_the_current_item_of_the_epoch(tmp_path: Path) -> None:
    with counting(tmp_path, {"PACE": "0.06"}, ITEMS) as job:
        (worker,) = job.start(1, ahead=1)
        job.wait_step(3)
        job.resize([worker], add=1)
        new_worker = job.members[1]
        assert [worker.exit_code(), new_worker.exit_code()] == [0, 0]
        assert worker.output == new_worker.output == ALL_ITEMS


def test_after_a_break_the_next_loop_starts_at_the_first_item(tmp_path: Path) -> None:
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


def test_a_script_with_its_own_process_group_is_not_elastic(tmp_path: Path) -> None:
    text = """
        import levada.runtime, time
        job = levada.runtime.init(elastic=False)
        for step in job.steps(10_000_000):
            time.sleep(0.002)
    """
    with counting(tmp_path, {}, text) as job:
        first, second = job.start(2)
        job.wait_joined()
        job.wait_step(10)
        assert first.report.flags == second.report.flags == 1
        assert job.port not in {int(line.split()[1].split(":")[1], 16) for line in _listening()}
        first.signal(signal.SIGTERM)
        assert first.exit_code() == 75
        assert second.process.poll() is None


def _listening() -> list[str]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[3] == "0A"]


def test_forked_children_have_the_default_sigterm_handler(tmp_path: Path) -> None:
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


# --------------------------------------------------------------------------------------------------- reports by HTTP


class ReportServer(ThreadingHTTPServer):
    """Accepts reports at the endpoint of a server."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.response: dict[str, Any] = {}
        super().__init__(("127.0.0.1", 0), ReportHandler)


class ReportHandler(BaseHTTPRequestHandler):
    """Handles one report."""

    protocol_version = "HTTP/1.1"
    server: ReportServer

    def do_POST(self) -> None:
        assert self.path == "/api/v1/worker/report"
        self.server.tokens.add(self.headers["Authorization"])
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps(self.server.response).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ReportServer]:
    with ReportServer() as report_server:
        thread = threading.Thread(target=report_server.serve_forever, args=(0.01,))
        thread.start()
        yield report_server
        report_server.shutdown()
        thread.join()


def remote_env(url: str, steps: int) -> dict[str, str]:
    """The environment of a worker with a server and without a state directory."""
    return {
        "LEVADA_SERVER": url,
        "LEVADA_TOKEN": "secret",
        "LEVADA_JOB": "job-1",
        "LEVADA_GENERATION": "4",
        "LEVADA_RANK": "0",
        "LEVADA_WORLD_SIZE": "1",
        "STEPS": str(steps),
    }


def test_without_a_state_folder_reports_are_sent_to_the_server(tmp_path: Path, server: ReportServer) -> None:
    done = run(script(tmp_path, COUNT), remote_env(f"http://127.0.0.1:{server.server_port}", 600))
    assert (done.stdout, done.returncode) == ("all 600 0 1 4\n", 0)
    assert server.tokens == {"Bearer secret"}
    fields = {"job", "generation", "rank", "flags", "step", "step_s", "saves", "saved_step"}
    assert all(body.keys() == fields for body in server.bodies)
    last = server.bodies[-1]
    assert (last["job"], last["generation"], last["rank"]) == ("job-1", 4, 0)
    assert (last["flags"], last["step"]) == (7, 600)
    assert last["step_s"] > 0
    assert len(server.bodies) < 20  # one per second, and one per change


def test_a_response_can_end_a_lease(tmp_path: Path, server: ReportServer) -> None:
    server.response = {"lease": {"until_step": 30, "then": "stop"}}
    env = remote_env(f"http://127.0.0.1:{server.server_port}", 10**6) | {"LEVADA_CHECKPOINT_DIR": str(tmp_path)}
    done = run(script(tmp_path, COUNT), env)
    assert done.returncode == 75
    assert server.bodies[-1]["flags"] & 8
    assert server.bodies[-1]["saved_step"] >= 30


def test_a_response_can_add_a_worker(tmp_path: Path, server: ReportServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    first_env = remote_env(url, 2000) | {"LEVADA_GENERATION": "1"}
    port = str(free_port())
    second_env = remote_env(url, 2000) | {
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
            wait_until(lambda: any((body["step"] or 0) > 5 for body in server.bodies), "the first worker trains")
            master = {"address": "127.0.0.1", "port": int(port)}
            server.response = {"world": {"generation": 2, "members": ["g1-0", "g2-1"], "master": master}}
            outputs = [process.communicate(timeout=180)[0] for process in (first, second)]
        finally:
            first.kill()
            second.kill()
    assert outputs == ["all 2000 0 2 2\n", "all 2000 1 2 2\n"]
    assert {body["rank"] for body in server.bodies if body["generation"] == 2} == {0, 1}


def test_an_unreachable_server_does_not_stop_a_script(tmp_path: Path) -> None:
    done = run(script(tmp_path, COUNT), remote_env(f"http://127.0.0.1:{free_port()}", 50))
    assert (done.stdout, done.stderr, done.returncode) == ("all 50 0 1 4\n", "", 0)


def test_a_server_that_never_responds_does_not_delay_steps(tmp_path: Path) -> None:
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
        done = run(script(tmp_path, text), remote_env(f"http://127.0.0.1:{silent.getsockname()[1]}", 0))
    assert (done.stdout, done.returncode) == ("True\n", 0)
