"""The worker of every job of the soak: it appends to a ledger what it does, and who runs beside it and must not.

`worker.py LEDGER KIND STEPS CODE`; the job works for STEPS over all its lives, then ends with CODE. KIND:
  plain     no checkpoint: starts from nothing each time
  stubborn  the same, and ignores SIGTERM
  saves     rank 0 counts steps in a file of the checkpoint folder; leaves with 75 when asked
  messy     the same, and leaves a child behind
  elastic   uses levada.runtime and changes its size while it trains
  lease     a script for Gavel: run it with `python -m levada.runtime.gavel`
  careless  the same, and calls `complete` whenever its iterator is done, as some of Gavel's scripts do

Each worker holds a lock on each of its devices and (unless elastic) on its generation for as long as it lives: the
kernel lets go of them however it ends. A lock that another one holds is a clash: two jobs on one device, or two
generations of one job at once. The ledger has one file per job and one JSON line per fact, appended under a lock.
Only the standard library is imported, so that `python -S -E` is up in no time.
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
LEFT = 75
#: A script for Gavel saves this often besides when it leaves.
_SAVE_EVERY = 20


def main() -> None:
    """The whole life of a worker."""
    ledger, kind, steps, code = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    say(
        ledger,
        "start",
        size=int(os.environ["LEVADA_WORLD_SIZE"]),
        node=os.environ["LEVADA_NODE"],
        devices=devices,
    )
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: say(ledger, "asked"))
    elif kind not in ("elastic", "lease", "careless"):
        signal.signal(signal.SIGTERM, lambda *_: (say(ledger, "asked"), os._exit(LEFT)))
    for device in devices:
        hold(ledger, f"device {os.environ['LEVADA_NODE']} {device}")
    if kind == "elastic":
        return train(ledger, steps)
    stay_alone(ledger)
    if kind in ("lease", "careless"):
        return train_on_lease(ledger, steps, careless=kind == "careless")
    if kind == "messy":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if kind in ("saves", "messy"):
        work(ledger, steps)
    else:
        for _ in range(steps):
            time.sleep(STEP_S)
    say(ledger, "end", code=code)
    os._exit(code)


def stay_alone(ledger: str) -> None:
    """Tells of workers of other generations of this job that live."""
    job, generation = os.environ["LEVADA_JOB"], os.environ["LEVADA_GENERATION"]
    hold(ledger, f"generation {job} {generation} {os.getpid()}")
    for name in os.listdir(ledger):
        if name.startswith(f"generation {job} ") and name.split()[2] != generation:
            look(ledger, name)


def work(ledger: str, steps: int) -> None:
    """Until so many steps are counted in the checkpoint folder; rank 0 counts."""
    path = os.path.join(os.environ["LEVADA_CHECKPOINT_DIR"], "steps")
    counts = is_first()
    if counts:
        say(ledger, "resume", step=counted(path))
    while (done := counted(path)) < steps:
        time.sleep(STEP_S)
        if counts:
            replace(path, str(done + 1))
            say(ledger, "step", step=done + 1)
            say(ledger, "saved", step=done + 1)


def train(ledger: str, steps: int) -> None:
    """The same with the runtime: all members step together, whoever comes and goes."""
    import levada.runtime

    job = levada.runtime.init(save_every_s=0.5)
    state = {"steps": 0}
    job.state(save=lambda: dict(state), load=state.update)
    generation, saves = -1, 0
    for step in job.steps(steps):
        here = {"generation": job.generation}
        if state["steps"] != step:
            say(ledger, "miscount", step=step, state=state["steps"])
        if job.is_main and job.generation != generation:
            generation, saves = job.generation, job.saves
            say(ledger, "resume", step=step, **here)
        with job.guard():
            job.group.agree([1.0])
            state["steps"] += 1
            time.sleep(STEP_S)
        if job.is_main and state["steps"] == step + 1:
            say(ledger, "step", step=step + 1, **here)
            if job.saves > saves:
                saves = job.saves
                say(ledger, "saved", step=job.saved_step, **here)
    if state["steps"] != steps:
        say(ledger, "miscount", step=steps, state=state["steps"])
    say(ledger, "end", code=0)  # before the server can hear of it
    job.complete()


def train_on_lease(ledger: str, steps: int, *, careless: bool) -> None:
    """A loop as scripts for Gavel have it."""
    from gavel_iterator import GavelIterator

    folder = os.environ["LEVADA_CHECKPOINT_DIR"]
    path = os.path.join(folder, "model")
    data = GavelIterator(range(50), folder, load, lambda done: replace(path, str(done)), verbose=False)
    done = data.load_checkpoint(path) or 0

    def tell(what: str) -> None:
        if is_first():
            if what == "saved":
                data.save_checkpoint(done)
            say(ledger, what, step=done)

    tell("resume")
    while not data.done:
        for _ in data:
            time.sleep(STEP_S)
            done += 1
            tell("step")
            if done % _SAVE_EVERY == 0:
                tell("saved")
            if done >= steps:
                say(ledger, "end", code=0)  # before the server can hear of it
                data.complete()
                break
    if careless:
        data.complete()
    tell("saved")


def is_first() -> bool:
    """Whether this worker counts for all."""
    return os.environ.get("LEVADA_RANK", "0") == "0"


def load(path: str) -> int | None:
    """What `replace` has kept; None where there is nothing."""
    return counted(path) or None


def counted(path: str) -> int:
    """How many steps are done."""
    try:
        with open(path) as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def replace(path: str, text: str) -> None:
    """Replaces a file as a whole; ranks of one generation, and nobody else, may do so at once."""
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def hold(ledger: str, name: str) -> None:
    """Locks *name* for life; says so where another one has it."""
    handle = os.open(os.path.join(ledger, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(ledger, "clash", what=name)


def look(ledger: str, name: str) -> None:
    """Says so where another one holds *name*; several may look at once."""
    with open(os.path.join(ledger, name), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            say(ledger, "clash", what=name)


def say(ledger: str, what: str, **more: object) -> None:
    """Appends a line to the file of the job."""
    fact = {
        "type": what,
        "job": os.environ["LEVADA_JOB"],
        "worker": os.path.basename(os.environ["LEVADA_STATE_DIR"]),
        "generation": int(os.environ["LEVADA_GENERATION"]),
        "pid": os.getpid(),
        "at": time.time(),
        **more,
    }
    # A handler that said something in the middle of this would wait for its own process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    handle = os.open(os.path.join(ledger, f"{os.environ['LEVADA_JOB']}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, (json.dumps(fact) + "\n").encode())
    finally:
        os.close(handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


main()
