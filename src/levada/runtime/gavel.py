"""Runs training scripts written for Gavel as they are: `python -m levada.runtime.gavel SCRIPT ARGUMENT…`.

Such a script wraps its data in a `GavelIterator`, leaves its loops when that is `done`, and then saves. It keeps no
step count: how long it trains is up to its lease. The server grants the steps that the job file declares, and the
seconds of its time limit. The iterator counts steps over all restarts, and it is done when the granted steps or seconds
are used up, or the supervisor asks the worker to leave. The job is done when its steps are, whatever the script says;
without declared steps it is done when the script ends by itself.
"""

from __future__ import annotations

import math
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import levada.runtime
from levada.runtime import place
from levada.runtime.checkpoint import Outdated, Progress
from levada.runtime.job import FAILED, LEFT, Job
from levada.runtime.loading import protect_loaders
from levada.runtime.stepcount import StepCount

#: Scripts, and the processes that they spawn, find `gavel_iterator` here.
_MODULES = str(Path(__file__).parent / "gavel_modules")


class GavelIterator:
    """The data of a job, for as long as it may run.

    *synthetic_data* gives the first item again and again. *write_on_close* is accepted and not needed. A pickled
    iterator goes on in the process that loads it, which reports from then on.
    """

    def __init__(
        self,
        data_loader: Iterable[Any],
        checkpoint_dir: str | os.PathLike[str],
        load_checkpoint_func: Callable[..., Any],
        save_checkpoint_func: Callable[..., Any],
        synthetic_data: bool = False,
        write_on_close: bool = True,
        verbose: bool = True,
    ) -> None:
        if not isinstance(data_loader, Iterable):
            raise ValueError(f"data_loader must be iterable, not {type(data_loader).__name__}")
        self._data = data_loader
        self._load = load_checkpoint_func
        self._save = save_checkpoint_func
        self._is_synthetic = synthetic_data
        self._is_verbose = verbose
        self._count = StepCount(Path(checkpoint_dir), place.read().job)
        #: Steps in the checkpoint that training goes on from, or went on from so far.
        self._progress = self._count.read()
        self._items: Iterator[Any] = iter(())
        #: An item was given whose step has not been counted yet.
        self._is_busy = False
        self._is_done = False
        #: The script says that it has trained enough, and the lease did not end its loop.
        self._is_script_done = False
        self._own_job: Job | None = None
        protect_loaders()
        self._init_logger()

    @property
    def done(self) -> bool:
        """Whether to leave: the lease is over, or the script has called `complete`."""
        return self._is_done

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]  # for those who have one

    def __iter__(self) -> GavelIterator:
        self._items = self._same_again() if self._is_synthetic else iter(self._data)
        return self

    def __next__(self) -> Any:
        job = self._join()
        if self._is_busy and not self._is_done:
            self._is_busy = False
            is_stopped = job.tick()
            if job.step >= job.total_steps:
                self._is_done = True
            elif is_stopped:
                self._is_done = True
                self._say(f"asked to leave after step {job.step}")
        if self._is_done:
            raise StopIteration
        try:
            item = next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            # SIGTERM goes to all processes of the worker, and one that loads data may have ended by it.
            if not job.is_asked_to_stop:
                raise
            self._is_done = job.is_stopped = True
            self._say(f"asked to leave after step {job.step}; no more data: {error}")
            raise StopIteration from None
        self._is_busy = True
        return item

    def complete(self, timeout: bool = False) -> None:
        """Says that the script has trained enough, unless it only ran out of time (*timeout*).

        Many scripts call this whenever their loop has ended, so it counts only where the lease did not end it; and with
        declared steps it does not count at all.
        """
        job = self._join()
        self._count_last(job)
        self._is_script_done |= not self._is_done and not timeout
        self._is_done = True
        # Most scripts save after this: then the job is complete when that is done.
        if job.saved_step == job.step:
            self._complete(job)

    def load_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """What the script's own function loads; training starts from nothing where that is None or fails."""
        found, self._progress = self._progress, Progress()
        loaded = self._load(*arguments, **named)
        if loaded is not None:
            self._progress = found
        elif found.step:
            self._say(f"the checkpoint with {found.step} steps was not loaded: steps are counted from 0 again")
        return loaded

    def save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """Lets the script's own function save, unless a newer generation has, and keeps the step count with it."""
        job = self._join()
        # What is saved is the step under way, too; it is counted when all others count it.
        step = job.step + self._is_busy
        progress = Progress(step=step, saves=job.saves + 1, saved_step=step)
        try:
            with self._count.saving(job.generation, progress):
                answer = self._save(*arguments, **named)
        except Outdated as error:
            self._say(f"{error}; this worker leaves")
            raise SystemExit(LEFT) from None
        job.saved(step)
        if self._is_done:
            self._complete(job)
        return answer

    def end(self) -> int:
        """The script has ended without an error; the exit code of the worker."""
        job = self._own_job
        if job is None:
            return 0  # another process has taken over
        job = self._join()
        self._count_last(job)
        self._is_script_done |= not self._is_done
        self._is_done = True
        self._complete(job)
        missing = job.total_steps - job.step
        if job.is_stopped or missing <= 0 or missing == math.inf:
            return 0
        if job.step > self._progress.step:
            self._say(f"the script ended after step {job.step} of {job.total_steps:g}: it will be started again")
            return 0
        self._say(
            f"the script ended at step {job.step} of {job.total_steps:g} without training: "
            "correct `steps` in the job file, or the script's own limit"
        )
        return FAILED

    # -------------------------------------------------------------------------- names that scripts call in the original

    def _close_file_handler(self) -> None:
        """Another process goes on with the iterator: this one reports nothing more."""
        if self._own_job is not None:
            self._own_job.hand_over()
            self._own_job = levada.runtime._current = None

    def _init_logger(self) -> None:
        """This process reports from now on."""
        global _latest
        _latest = self
        self._job()

    def __getstate__(self) -> dict[str, Any]:
        self._close_file_handler()
        return {**self.__dict__, "_items": None, "_own_job": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._items = iter(())

    # ----------------------------------------------------------------------------------------------------------- inside

    def _job(self) -> Job:
        if self._own_job is None:
            self._own_job = levada.runtime.init(elastic=False)
        return self._own_job

    def _join(self) -> Job:
        """The job, which has begun; only now it is known from where on steps are counted."""
        job = self._job()
        if not job.is_joined:
            job.step, job.saves, job.saved_step = self._progress.step, self._progress.saves, self._progress.saved_step
            job.follow_lease()
            job.join()
            self._is_done |= job.step >= job.total_steps
            self._complete(job)
        return job

    def _count_last(self, job: Job) -> None:
        """The loop was left in the middle: its last step is done."""
        job.step += self._is_busy
        self._is_busy = False

    def _complete(self, job: Job) -> None:
        """Ends the job where all its steps are done, or nobody has said how many and the script has trained enough."""
        enough = job.step >= job.total_steps or (job.total_steps == math.inf and self._is_script_done)
        if enough and job.is_main:
            job.finish()

    def _same_again(self) -> Iterator[Any]:
        first = next(iter(self._data))
        for _ in range(len(self)):
            yield first

    def _say(self, text: str) -> None:
        if self._is_verbose:
            sys.stderr.write(f"levada: {text}\n")


#: The one whose steps are those of the job.
_latest: GavelIterator | None = None


def main() -> None:
    """Runs a script, for which this module is Gavel's."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m levada.runtime.gavel SCRIPT ARGUMENT…")
    del sys.argv[0]
    sys.path[:0] = [_MODULES, str(Path(sys.argv[0]).resolve().parent)]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise
    if _latest is not None:
        raise SystemExit(_latest.end())


if __name__ == "__main__":
    # Under its own name: the script must find the same module, not a second one.
    import levada.runtime.gavel

    levada.runtime.gavel.main()
