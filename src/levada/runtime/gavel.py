"""Gavel adapter: `python -m levada.runtime.gavel SCRIPT ARGUMENT…`.

A Gavel script wraps its data in a `GavelIterator`, leaves its loops when that is `done`, and then saves. It keeps no
step count: its lease decides how long it trains. The server grants the steps that the job file declares, and the
seconds of its time limit. The iterator counts steps over all restarts; it is done when the granted steps or seconds are
used up, or the supervisor asks the worker to leave. The job is complete when its steps are, regardless of the script;
without declared steps it is complete when the script ends voluntarily.
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
from levada.runtime import worker_env
from levada.runtime.checkpoint import Outdated, SavedProgress
from levada.runtime.data_loaders import protect_loaders
from levada.runtime.job import FAILED, LEFT, Job
from levada.runtime.step_count import StepCount

#: Search path of `gavel_iterator` for scripts and the processes that they spawn.
_MODULES = str(Path(__file__).parent / "gavel_modules")


class GavelIterator:
    """Iterator over the data of a job that ends with its lease.

    *synthetic_data* repeats the first item. *write_on_close* is accepted and ignored. A pickled iterator continues in
    the process that unpickles it, which then reports progress.
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
        self._count = StepCount(Path(checkpoint_dir), worker_env.read().job)
        #: Progress in the checkpoint from which training continues.
        self._progress = self._count.read()
        self._items: Iterator[Any] = iter(())
        #: An item was returned whose step is not counted yet.
        self._is_busy = False
        self._is_done = False
        #: The script has trained enough, and the lease did not end its loop.
        self._is_script_done = False
        self._own_job: Job | None = None
        protect_loaders()
        self._init_logger()

    @property
    def done(self) -> bool:
        """Whether to leave: the lease has ended, or the script has called `complete`."""
        return self._is_done

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]  # if the data has a length

    def __iter__(self) -> GavelIterator:
        self._items = self._repeat_first() if self._is_synthetic else iter(self._data)
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
                self._log(f"asked to leave after step {job.step}")
        if self._is_done:
            raise StopIteration
        try:
            item = next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            # SIGTERM goes to all processes of the worker and may have ended a data loader.
            if not job.is_asked_to_stop:
                raise
            self._is_done = job.is_stopped = True
            self._log(f"asked to leave after step {job.step}; no more data: {error}")
            raise StopIteration from None
        self._is_busy = True
        return item

    def complete(self, timeout: bool = False) -> None:
        """Report that the script has trained enough, unless it ran out of time (*timeout*).

        Many scripts call this whenever their loop has ended. So it is ignored if the lease ended the loop, and always
        with declared steps.
        """
        job = self._join()
        self._count_last(job)
        self._is_script_done |= not self._is_done and not timeout
        self._is_done = True
        # Most scripts save after this call; then the job is complete after the save.
        if job.saved_step == job.step:
            self._complete(job)

    def load_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """Call the script's load function; training starts from step 0 if that returns None or fails."""
        saved, self._progress = self._progress, SavedProgress()
        loaded = self._load(*arguments, **named)
        if loaded is not None:
            self._progress = saved
        elif saved.step:
            self._log(f"the checkpoint with {saved.step} steps was not loaded: steps are counted from 0 again")
        return loaded

    def save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """Call the script's save function, unless a newer generation has saved, and store the step count."""
        job = self._join()
        # The checkpoint includes the step under way, which is counted when all others count it.
        step = job.step + self._is_busy
        progress = SavedProgress(step=step, saves=job.saves + 1, saved_step=step)
        try:
            with self._count.saving(job.generation, progress):
                answer = self._save(*arguments, **named)
        except Outdated as error:
            self._log(f"{error}; this worker leaves")
            raise SystemExit(LEFT) from None
        job.saved(step)
        if self._is_done:
            self._complete(job)
        return answer

    def end(self) -> int:
        """Handle the end of the script without an error; returns the exit code of the worker."""
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
            self._log(f"the script ended after step {job.step} of {job.total_steps:g}: it will be started again")
            return 0
        self._log(
            f"the script ended at step {job.step} of {job.total_steps:g} without training: "
            "correct `steps` in the job file, or the script's own limit"
        )
        return FAILED

    # ------------------------------------------------------------------------ private names that Gavel scripts call

    def _close_file_handler(self) -> None:
        """Stop reporting: another process continues with the iterator."""
        if self._own_job is not None:
            self._own_job.hand_over()
            self._own_job = levada.runtime._current = None

    def _init_logger(self) -> None:
        """Start reporting from this process."""
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
        """The joined job; joins it on first use, when the progress in the checkpoint is known."""
        job = self._job()
        if not job.is_joined:
            job.step, job.saves, job.saved_step = self._progress.step, self._progress.saves, self._progress.saved_step
            job.follow_lease()
            job.join()
            self._is_done |= job.step >= job.total_steps
            self._complete(job)
        return job

    def _count_last(self, job: Job) -> None:
        """Count the last step of a loop that the script left early."""
        job.step += self._is_busy
        self._is_busy = False

    def _complete(self, job: Job) -> None:
        """Complete the job if all its steps are done, or if none are declared and the script has trained enough."""
        enough = job.step >= job.total_steps or (job.total_steps == math.inf and self._is_script_done)
        if enough and job.is_main:
            job.finish()

    def _repeat_first(self) -> Iterator[Any]:
        first = next(iter(self._data))
        for _ in range(len(self)):
            yield first

    def _log(self, text: str) -> None:
        if self._is_verbose:
            sys.stderr.write(f"levada: {text}\n")


#: The iterator whose steps are those of the job.
_latest: GavelIterator | None = None


def main() -> None:
    """Run a script with this module in place of Gavel's."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m levada.runtime.gavel SCRIPT ARGUMENT…")
    del sys.argv[0]
    sys.path[:0] = [_MODULES, str(Path(sys.argv[0]).resolve().parent)]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise
    _leave_process_group()
    if _latest is not None:
        raise SystemExit(_latest.end())


def _leave_process_group() -> None:
    """Destroy the process group of torch, which Gavel's scripts leave open.

    Otherwise its threads abort the interpreter in about one of four exits.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    try:
        dist.destroy_process_group()
    except Exception as error:
        # The work is done and saved: a peer that has already left must not make it a failure.
        sys.stderr.write(f"levada: the process group of torch did not end cleanly: {error}\n")


if __name__ == "__main__":
    # By its own name, so that the script imports the same module and not a second copy.
    import levada.runtime.gavel

    levada.runtime.gavel.main()
