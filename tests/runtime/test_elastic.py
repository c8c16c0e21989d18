"""Workers that come and go: real processes, the NumPy example, and a supervisor that only writes files."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from levada.runtime.report import COMPLETE, IN_PROCESS, LEAVES, READY, SAVES
from tests.runtime.supervisor import Worker, supervising

TRAIN = str(Path(__file__).parents[2] / "examples" / "numpy" / "train.py")
STEPS = 300
ENV = {"STEPS": str(STEPS), "STEP_SECONDS": "0.01"}


@cache
def undisturbed() -> float:
    """The net after as many steps of one worker without a server."""
    done = subprocess.run(
        [sys.executable, TRAIN], env={"STEPS": str(STEPS)}, capture_output=True, text=True, check=True, timeout=180
    )
    return net(done.stdout)


def net(output: str) -> float:
    """What the main worker printed at its end."""
    found = re.search(rf"done after {STEPS} steps  norm of the net (\S+)", output)
    assert found is not None, output
    return float(found[1])


def losses(*workers: Worker) -> dict[int, float]:
    """Loss by step, as printed by whoever was the main worker."""
    lines = "".join(worker.output for worker in workers)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+)/\d+  loss (\S+)", lines)}


def is_close(one: float, other: float) -> bool:
    return abs(one - other) < 1e-6 * abs(other)


def test_one_becomes_three_becomes_one_and_the_net_is_the_same(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1, ahead=2)
        job.entered()
        job.reached(20)
        pid = first.process.pid
        job.resize([first], add=2)
        job.entered()
        second, third = job.members[1:]
        assert [worker.report.flags for worker in job.members] == [READY | IN_PROCESS | SAVES] * 3
        assert 0 < first.report.pause_s < 5
        job.reached(int(first.report.step) + 20)
        assert second.report.step > 20
        job.resize([third])
        assert (first.ended(), second.ended()) == (75, 75)
        job.entered()
        assert third.ended() == 0
        assert third.report.flags & COMPLETE
        assert third.report.step == STEPS
        assert is_close(net(third.output), undisturbed())
        assert "workers 3" in first.output
        assert first.process.pid == pid
        assert not list(job.checkpoints.iterdir())  # no step was ever read back from a disk


def test_a_member_is_killed_and_the_others_go_on(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second, third = job.start(3)
        job.entered()
        job.reached(30)
        second.signal(signal.SIGKILL)
        assert second.ended() == -9
        job.resize([first, third])
        job.entered()
        assert [first.ended(), third.ended()] == [0, 0]
        assert is_close(net(first.output), undisturbed())
        assert "workers 2" in first.output
        assert max(losses(first).values()) == losses(first)[1]


def test_rank_0_is_killed_and_somebody_new_takes_its_place(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second = job.start(2, ahead=1)
        job.entered()
        job.reached(30)
        first.signal(signal.SIGKILL)
        first.ended()
        job.resize([second], add=1)
        job.entered()
        newcomer = job.members[1]
        assert second.report.generation == newcomer.report.generation == 2
        assert newcomer.report.step >= 30
        assert [second.ended(), newcomer.ended()] == [0, 0]
        assert is_close(net(second.output), undisturbed())


def test_somebody_new_at_rank_0_goes_on_where_the_others_are(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1)
        job.entered()
        job.reached(30)
        job.generation += 1
        (newcomer,) = job.spawn(1, stay=1)
        job.are_ready([newcomer])
        job.publish([newcomer, first])
        job.entered()
        assert [newcomer.ended(), first.ended()] == [0, 0]
        assert min(losses(newcomer)) > 30, "no step is done twice"
        assert is_close(net(newcomer.output), undisturbed())


def test_members_lost_while_they_meet_are_survived_too(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1, ahead=1)
        job.entered()
        job.reached(10)
        # It is ready and said to be a member, but dies before it comes.
        job.resize([first], add=1)
        job.members[1].signal(signal.SIGKILL)
        job.members[1].ended()
        job.resize([first], add=1)
        job.entered()
        assert [worker.ended() for worker in job.members] == [0, 0]
        assert is_close(net(first.output), undisturbed())


def test_stopped_and_started_anew_at_another_size(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        before = job.start(2)
        job.entered()
        job.reached(40)
        for worker in before:
            worker.signal(signal.SIGTERM)
        assert [worker.ended() for worker in before] == [75, 75]
        left = [worker.report for worker in before]
        assert all(report.flags & LEAVES for report in left)
        assert left[0].saves == 1
        assert left[0].saved_step == left[0].step == left[1].step
        assert (job.checkpoints / "generation").read_text() == "1\n"

        after = job.start(3)
        job.entered()
        assert all(worker.report.step >= left[0].step for worker in after)
        assert after[2].report.saves == 1
        assert [worker.ended() for worker in after] == [0, 0, 0]
        assert is_close(net(after[0].output), undisturbed())
        assert min(losses(*after)) > left[0].step


def test_one_that_is_asked_takes_all_with_it(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        workers = job.start(2)
        job.entered()
        workers[1].signal(signal.SIGTERM)
        assert [worker.ended() for worker in workers] == [75, 75]
        assert workers[0].report.saves == 1


def test_a_leaver_that_is_also_asked_leaves_alone(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second = job.start(2)
        job.entered()
        job.reached(10)
        job.resize([first])
        second.signal(signal.SIGTERM)
        assert second.ended() == 75
        job.entered()
        job.reached(int(first.report.step) + 5)
        assert first.report.saves == 0


def test_who_waits_leaves_when_asked_and_when_not_wanted(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (first,) = job.start(1)
        job.entered()
        job.generation += 1
        asked, unwanted = job.spawn(2, stay=1)
        job.are_ready([asked, unwanted])
        assert asked.report.generation == unwanted.report.generation == 0
        asked.signal(signal.SIGTERM)
        assert asked.ended() == 75
        assert unwanted.process.poll() is None
        job.generation += 1
        job.publish([first])
        assert unwanted.ended() == 75
        job.entered()


def test_after_a_loss_who_is_asked_saves_what_it_has(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        first, second, third = job.start(3)
        job.entered()
        job.reached(20)
        first.signal(signal.SIGKILL)
        first.ended()
        for worker in (second, third):
            worker.signal(signal.SIGTERM)
        assert [second.ended(), third.ended()] == [75, 75]
        saved = max(second.report.saved_step, third.report.saved_step)
        assert saved >= 20
        (again,) = job.start(1)
        job.entered()
        assert again.report.step >= saved
        assert again.ended() == 0
        assert is_close(net(again.output), undisturbed())


def test_a_leftover_of_an_older_generation_overwrites_nothing(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (worker,) = job.start(1)
        job.entered()
        (job.checkpoints / "generation").write_text("5\n")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 75
        assert worker.report.saves == 0
        assert not worker.report.flags & LEAVES
        assert "generation 5 has saved in" in worker.output
        assert sorted(path.name for path in job.checkpoints.iterdir()) == [".lock", "generation"]


def test_a_checkpoint_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with supervising(tmp_path, [TRAIN], ENV) as job:
        (worker,) = job.start(1)
        job.entered()
        job.checkpoints.rmdir()
        job.checkpoints.write_text("a file where a folder should be")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 1
        assert "levada: no checkpoint:" in worker.output
