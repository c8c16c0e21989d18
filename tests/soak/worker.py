"""The worker of every job of the soak: it appends facts about its actions and conflicts to a ledger.

`worker.py LEDGER KIND STEPS CODE`: the job does STEPS steps over all its runs, then exits with CODE. KIND:
  plain     no checkpoint: starts at step 0 each time
  stubborn  the same, and ignores SIGTERM
  saves     rank 0 counts steps in a file of the checkpoint folder; exits with 75 on SIGTERM
  messy     the same, and leaves a child process behind
  elastic   uses levada.runtime and changes its size while it trains
  lease     a Gavel script: run it with `python -m levada.runtime.gavel`
  careless  the same, and calls `complete` at every end of its iterator, like some of Gavel's scripts

Each worker locks each of its devices and (unless elastic) its generation until it ends; the kernel releases the locks
of a killed worker. A lock held by another worker is a conflict: two jobs on one device, or two concurrent generations
of one job. The ledger has one file per job and one JSON line per fact, appended under a lock.
Only the standard library is imported, so that `python -S -E` starts quickly.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

STEP_S = 0.05
STOPPED = 75
#: A Gavel script saves after this many steps, and at its end.
_SAVE_EVERY = 20


def main() -> None:
    """Run the worker."""
    ledger, kind, steps, code = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    record(
        ledger,
        "start",
        size=int(os.environ["LEVADA_WORLD_SIZE"]),
        node=os.environ["LEVADA_NODE"],
        devices=devices,
    )
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: record(ledger, "sigterm"))
    elif kind not in ("elastic", "lease", "careless"):
        signal.signal(signal.SIGTERM, lambda *_: (record(ledger, "sigterm"), os._exit(STOPPED)))
    for device in devices:
        lock(ledger, f"device {os.environ['LEVADA_NODE']} {device}")
    if kind == "elastic":
        return train(ledger, steps)
    check_other_generations(ledger)
    if kind in ("lease", "careless"):
        return train_on_lease(ledger, steps, careless=kind == "careless")
    if kind == "messy":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if kind in ("saves", "messy"):
        work(ledger, steps)
    else:
        for _ in range(steps):
            time.sleep(STEP_S)
    record(ledger, "end", code=code)
    os._exit(code)


def check_other_generations(ledger: str) -> None:
    """Record running workers of other generations of this job."""
    job, generation = os.environ["LEVADA_JOB"], os.environ["LEVADA_GENERATION"]
    lock(ledger, f"generation {job} {generation} {os.getpid()}")
    for name in os.listdir(ledger):
        if name.startswith(f"generation {job} ") and name.split()[2] != generation:
            check_unlocked(ledger, name)


def work(ledger: str, steps: int) -> None:
    """Work until the checkpoint folder counts *steps* steps; rank 0 counts."""
    path = os.path.join(os.environ["LEVADA_CHECKPOINT_DIR"], "steps")
    counts = is_rank_0()
    if counts:
        record(ledger, "resume", step=counted(path))
    while (done := counted(path)) < steps:
        time.sleep(STEP_S)
        if counts:
            replace(path, str(done + 1))
            record(ledger, "step", step=done + 1)
            record(ledger, "saved", step=done + 1)


def train(ledger: str, steps: int) -> None:
    """The same with the runtime: all members step together across resizes."""
    import levada.runtime

    job = levada.runtime.init(save_every_s=0.5)
    state = {"steps": 0}
    job.state(save=lambda: dict(state), load=state.update)
    generation, saves = -1, 0
    for step in job.steps(steps):
        here = {"generation": job.generation}
        if state["steps"] != step:
            record(ledger, "miscount", step=step, state=state["steps"])
        if job.is_main and job.generation != generation:
            generation, saves = job.generation, job.saves
            record(ledger, "resume", step=step, **here)
        with job.guard():
            job.group.agree([1.0])
            state["steps"] += 1
            time.sleep(STEP_S)
        if job.is_main and state["steps"] == step + 1:
            record(ledger, "step", step=step + 1, **here)
            if job.saves > saves:
                saves = job.saves
                record(ledger, "saved", step=job.saved_step, **here)
    if state["steps"] != steps:
        record(ledger, "miscount", step=steps, state=state["steps"])
    record(ledger, "end", code=0)  # before the server can know it
    job.complete()


def train_on_lease(ledger: str, steps: int, *, careless: bool) -> None:
    """The training loop of a Gavel script."""
    from gavel_iterator import GavelIterator

    folder = os.environ["LEVADA_CHECKPOINT_DIR"]
    path = os.path.join(folder, "model")
    data = GavelIterator(range(50), folder, load, lambda done: replace(path, str(done)), verbose=False)
    done = data.load_checkpoint(path) or 0

    def record_step(what: str) -> None:
        if is_rank_0():
            if what == "saved":
                data.save_checkpoint(done)
            record(ledger, what, step=done)

    record_step("resume")
    while not data.done:
        for _ in data:
            time.sleep(STEP_S)
            done += 1
            record_step("step")
            if done % _SAVE_EVERY == 0:
                record_step("saved")
            if done >= steps:
                record(ledger, "end", code=0)  # before the server can know it
                data.complete()
                break
    if careless:
        data.complete()
    record_step("saved")


def is_rank_0() -> bool:
    """Whether this worker has rank 0."""
    return os.environ.get("LEVADA_RANK", "0") == "0"


def load(path: str) -> int | None:
    """The value written by `replace`; None if there is none."""
    return counted(path) or None


def counted(path: str) -> int:
    """The number of completed steps."""
    try:
        with open(path) as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def replace(path: str, text: str) -> None:
    """Replace a file atomically; only ranks of one generation may do so concurrently."""
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def lock(ledger: str, name: str) -> None:
    """Lock *name* until the process ends; record a conflict if it is locked."""
    handle = os.open(os.path.join(ledger, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        record(ledger, "conflict", what=name)


def check_unlocked(ledger: str, name: str) -> None:
    """Record a conflict if *name* is locked; several processes may check concurrently."""
    with open(os.path.join(ledger, name), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            record(ledger, "conflict", what=name)


def record(ledger: str, what: str, **more: object) -> None:
    """Append a fact to the file of the job."""
    fact = {
        "type": what,
        "job": os.environ["LEVADA_JOB"],
        "worker": os.path.basename(os.environ["LEVADA_STATE_DIR"]),
        "generation": int(os.environ["LEVADA_GENERATION"]),
        "pid": os.getpid(),
        "at": time.time(),
        **more,
    }
    # A signal handler that records within this call would wait for its own lock.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    handle = os.open(os.path.join(ledger, f"{os.environ['LEVADA_JOB']}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, (json.dumps(fact) + "\n").encode())
    finally:
        os.close(handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


main()
