"""Elastic workers: real processes of the NumPy example under a file supervisor."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from levada.runtime.report import COMPLETE, IN_PROCESS, LEAVES, READY, SAVES
from tests.runtime.supervisor import WorkerProcess, supervising

TRAIN = str(Path(__file__).parents[2] / "examples" / "numpy" / "train.py")
STEPS = 300
ENV = {"STEPS": str(STEPS), "STEP_SECONDS": "0.01"}


@cache
def uninterrupted_norm() -> float:
    """The norm of the network after the same steps of one worker without a server."""
    done = subprocess.run(
        [sys.executable, TRAIN], env={"STEPS": str(STEPS)}, capture_output=True, text=True, check=True, timeout=180
    )
    return printed_norm(done.stdout)


def printed_norm(output: str) -> float:
    """The norm of the network that rank 0 printed at its end."""
    match = re.search(rf"done after {STEPS} steps  norm of the net (\S+)", output)
    assert match is not None, output
    return float(match[1])


def losses(*workers: WorkerProcess) -> dict[int, float]:
    """Loss by step, as printed by workers of rank 0."""
    lines = "".join(worker.output for worker in workers)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+)/\d+  loss (\S+)", lines)}


def is_close(one: float, other: float) -> bool:
    return abs(one - other) < 1e-6 * abs(other)


def test_a_job_grows_to_three_and_shrinks_to_one_with_the_same_result(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1, ahead=2)
        job.wait_joined()
        job.wait_step(20)
        pid = first.process.pid
        job.resize([first], add=2)
        job.wait_joined()
        second, third = job.members[1:]
        assert [worker.report.flags for worker in job.members] == [READY | IN_PROCESS | SAVES] * 3
        assert 0 < first.report.pause_s < 5
        job.wait_step(int(first.report.step) + 20)
        assert second.report.step > 20
        job.resize([third])
        assert (first.exit_code(), second.exit_code()) == (75, 75)
        job.wait_joined()
        assert third.exit_code() == 0
        assert third.report.flags & COMPLETE
        assert third.report.step == STEPS
        assert is_close(printed_norm(third.output), uninterrupted_norm())
        assert "workers 3" in first.output
        assert first.process.pid == pid
        assert not list(job.checkpoints.iterdir())  # no checkpoint was needed


def test_the_others_continue_after_a_member_is_killed(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second, third = job.start(3)
        job.wait_joined()
        job.wait_step(30)
        second.signal(signal.SIGKILL)
        assert second.exit_code() == -9
        job.resize([first, third])
        job.wait_joined()
        assert [first.exit_code(), third.exit_code()] == [0, 0]
        assert is_close(printed_norm(first.output), uninterrupted_norm())
        assert "workers 2" in first.output
        assert max(losses(first).values()) == losses(first)[1]


def test_a_new_worker_replaces_a_killed_rank_0(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second = job.start(2, ahead=1)
        job.wait_joined()
        job.wait_step(30)
        first.signal(signal.SIGKILL)
        first.exit_code()
        job.resize([second], add=1)
        job.wait_joined()
        new_worker = job.members[1]
        assert second.report.generation == new_worker.report.generation == 2
        assert new_worker.report.step >= 30
        assert [second.exit_code(), new_worker.exit_code()] == [0, 0]
        assert is_close(printed_norm(second.output), uninterrupted_norm())


def test_a_new_worker_at_rank_0_continues_from_the_step_of_the_others(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1)
        job.wait_joined()
        job.wait_step(30)
        job.generation += 1
        (new_worker,) = job.spawn(1, stay=1)
        job.wait_ready([new_worker])
        job.publish([new_worker, first])
        job.wait_joined()
        assert [new_worker.exit_code(), first.exit_code()] == [0, 0]
        assert min(losses(new_worker)) > 30, "no step is done twice"
        assert is_close(printed_norm(new_worker.output), uninterrupted_norm())


def test_a_member_lost_during_rendezvous_is_replaced(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1, ahead=1)
        job.wait_joined()
        job.wait_step(10)
        # The new worker is ready and published as a member, but dies before it joins.
        job.resize([first], add=1)
        job.members[1].signal(signal.SIGKILL)
        job.members[1].exit_code()
        job.resize([first], add=1)
        job.wait_joined()
        assert [worker.exit_code() for worker in job.members] == [0, 0]
        assert is_close(printed_norm(first.output), uninterrupted_norm())


def test_a_job_restarts_from_its_checkpoint_at_another_size(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        before = job.start(2)
        job.wait_joined()
        job.wait_step(40)
        for worker in before:
            worker.signal(signal.SIGTERM)
        assert [worker.exit_code() for worker in before] == [75, 75]
        last_reports = [worker.report for worker in before]
        assert all(report.flags & LEAVES for report in last_reports)
        assert last_reports[0].saves == 1
        assert last_reports[0].saved_step == last_reports[0].step == last_reports[1].step
        assert (job.checkpoints / "generation").read_text() == "1\n"

        after = job.start(3)
        job.wait_joined()
        assert all(worker.report.step >= last_reports[0].step for worker in after)
        assert after[2].report.saves == 1
        assert [worker.exit_code() for worker in after] == [0, 0, 0]
        assert is_close(printed_norm(after[0].output), uninterrupted_norm())
        assert min(losses(*after)) > last_reports[0].step


def test_a_sigterm_to_one_member_stops_all(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        workers = job.start(2)
        job.wait_joined()
        workers[1].signal(signal.SIGTERM)
        assert [worker.exit_code() for worker in workers] == [75, 75]
        assert workers[0].report.saves == 1


def test_a_sigterm_to_a_removed_member_stops_only_it(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second = job.start(2)
        job.wait_joined()
        job.wait_step(10)
        job.resize([first])
        second.signal(signal.SIGTERM)
        assert second.exit_code() == 75
        job.wait_joined()
        job.wait_step(int(first.report.step) + 5)
        assert first.report.saves == 0


def test_a_waiting_worker_exits_on_sigterm_or_when_not_a_member(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1)
        job.wait_joined()
        job.generation += 1
        signalled, not_a_member = job.spawn(2, stay=1)
        job.wait_ready([signalled, not_a_member])
        assert signalled.report.generation == not_a_member.report.generation == 0
        signalled.signal(signal.SIGTERM)
        assert signalled.exit_code() == 75
        assert not_a_member.process.poll() is None
        job.generation += 1
        job.publish([first])
        assert not_a_member.exit_code() == 75
        job.wait_joined()


def test_after_a_loss_remaining_members_save_on_sigterm(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second, third = job.start(3)
        job.wait_joined()
        job.wait_step(20)
        first.signal(signal.SIGKILL)
        first.exit_code()
        for worker in (second, third):
            worker.signal(signal.SIGTERM)
        assert [second.exit_code(), third.exit_code()] == [75, 75]
        saved = max(second.report.saved_step, third.report.saved_step)
        assert saved >= 20
        (restarted,) = job.start(1)
        job.wait_joined()
        assert restarted.report.step >= saved
        assert restarted.exit_code() == 0
        assert is_close(printed_norm(restarted.output), uninterrupted_norm())


def test_a_worker_of_an_older_generation_does_not_overwrite_the_checkpoint(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (worker,) = job.start(1)
        job.wait_joined()
        (job.checkpoints / "generation").write_text("5\n")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 75
        assert worker.report.saves == 0
        assert not worker.report.flags & LEAVES
        assert "generation 5 has saved in" in worker.output
        assert sorted(path.name for path in job.checkpoints.iterdir()) == [".lock", "generation"]


def test_a_worker_that_cannot_write_its_checkpoint_fails(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (worker,) = job.start(1)
        job.wait_joined()
        job.checkpoints.rmdir()
        job.checkpoints.write_text("a file where a folder should be")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 1
        assert "levada: no checkpoint:" in worker.output
