"""The worker of a job in these tests: it tells in files whoever runs beside it and must not.

Every worker holds a lock on each of its devices and on its generation for as long as it lives, however it ends: the
kernel lets go of them. Whoever comes and finds one held by another has seen two jobs on one device, or two gangs of one
job, and says so. `python -S -E worker.py NOTES TICKS CODE MANNER`: it works for TICKS, over all its lives, then exits
with CODE. MANNER: kind (leaves when asked), stubborn (has to be killed), messy (leaves children behind), elastic (uses
the runtime, and changes its size while it trains).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

TICK_S = 0.05
LEFT = 75


def main() -> None:
    """The whole life of a worker."""
    notes, ticks, code, manner = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif manner != "elastic":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(LEFT))
    job, generation, rank = os.environ["LEVADA_JOB"], os.environ["LEVADA_GENERATION"], os.environ["LEVADA_RANK"]
    node, devices = os.environ["LEVADA_NODE"], os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    say(notes, job, "start", generation=int(generation), rank=int(rank), node=node, devices=devices)
    for device in devices:
        hold(notes, job, f"device {node} {device}", fcntl.LOCK_EX)
    if manner == "elastic":
        train(ticks)
        say(notes, job, "end", code=code)
        return
    hold(notes, job, f"gang {job} {generation}", fcntl.LOCK_SH)
    for name in os.listdir(notes):
        other = name.removeprefix(f"gang {job} ")
        if other not in (name, generation):
            look(notes, job, name)
    if manner == "messy":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    work(os.path.join(os.environ["LEVADA_CHECKPOINT_DIR"], "ticks"), ticks, rank == "0")
    say(notes, job, "end", code=code)
    sys.exit(code)


def work(path: str, ticks: int, counts: bool) -> None:
    """Until so many ticks have been counted; rank 0 counts."""
    while (done := counted(path)) < ticks:
        time.sleep(TICK_S)
        if counts:
            with open(path + ".new", "w") as file:
                file.write(str(done + 1))
            os.replace(path + ".new", path)


def train(ticks: int) -> None:
    """The same with the runtime: all members step together, whoever comes and goes."""
    import levada.runtime

    job = levada.runtime.init(save_every_s=0.5)
    state = {"steps": 0}
    job.state(save=lambda: dict(state), load=state.update)
    for _ in job.steps(ticks):
        with job.guard():
            job.group.agree([1.0])
            state["steps"] += 1
            time.sleep(TICK_S)
    job.complete()


def counted(path: str) -> int:
    """How many ticks have passed."""
    try:
        with open(path) as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def hold(notes: str, job: str, name: str, kind: int) -> None:
    """Locks *name* for life; says so where somebody else has it."""
    handle = os.open(os.path.join(notes, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        say(notes, job, "clash", what=name)


def look(notes: str, job: str, name: str) -> None:
    """Says so where somebody holds *name*."""
    with open(os.path.join(notes, name), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(notes, job, "clash", what=name)


def say(notes: str, job: str, what: str, **more: object) -> None:
    """A line in the file of the job."""
    line = json.dumps({"type": what, "pid": os.getpid(), "at": time.clock_gettime(time.CLOCK_BOOTTIME), **more})
    with open(os.path.join(notes, f"{job}.jsonl"), "a") as file:
        file.write(line + "\n")


main()
