"""Runs training scripts written for Gavel as they are: `python -m levada.runtime.gavel SCRIPT ARGUMENT…`.

Such a script wraps its data in a `GavelIterator`, leaves its loops when that is `done`, calls `complete` when it has
trained enough, and saves a checkpoint in the end. Here the iterator counts steps for Levada and is done when the
supervisor asks the worker to leave, or its lease ends.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import levada.runtime
from levada.runtime import checkpoint
from levada.runtime.checkpoint import Outdated, Progress
from levada.runtime.job import LEFT


class GavelIterator:
    """The data of a job, for as long as it may run.

    *synthetic_data* gives the first item again and again. *write_on_close* is taken and not needed: what was counted
    is never lost.
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
        self._data = data_loader
        self._folder = Path(checkpoint_dir)
        self._load = load_checkpoint_func
        self._save = save_checkpoint_func
        self._is_synthetic = synthetic_data
        self._is_verbose = verbose
        self._job = levada.runtime.init(elastic=False)
        self._items: Iterator[Any] = iter(())
        #: An item was given whose step has not been counted yet.
        self._is_busy = False
        self._is_done = False

    @property
    def done(self) -> bool:
        """Whether to leave: the job is complete, or asked to go."""
        return self._is_done

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]  # for those who have one

    def __iter__(self) -> GavelIterator:
        self._items = self._same_again() if self._is_synthetic else iter(self._data)
        return self

    def __next__(self) -> Any:
        self._job.join()
        if self._is_busy and not self._is_done:
            self._is_busy = False
            self._is_done = self._job.tick()
            if self._is_done and self._is_verbose:
                sys.stderr.write(f"levada: asked to leave after step {self._job.step}\n")
        if self._is_done:
            raise StopIteration
        item = next(self._items)
        self._is_busy = True
        return item

    def complete(self, timeout: bool = False) -> None:
        """Says that the whole job is done, unless it only ran out of time (*timeout*)."""
        self._job.step += self._is_busy
        self._is_busy = False
        self._is_done = True
        if not timeout:
            self._job.complete()

    def load_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """What the script's own function loads; steps are counted from there on."""
        loaded = self._load(*arguments, **named)
        found = checkpoint.peek(self._folder) if loaded is not None else None
        if found is not None:
            self._job.step, self._job.saves, self._job.saved_step = found.step, found.saves, found.saved_step
        return loaded

    def save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """Lets the script's own function save, unless a newer generation has."""
        job = self._job
        if checkpoint.saved_by(self._folder) > job.generation:
            sys.stderr.write(f"levada: a newer generation has saved in {self._folder}; this worker leaves\n")
            raise SystemExit(LEFT)
        answer = self._save(*arguments, **named)
        # What is saved is the step under way, too; it is counted when all others count it.
        step = job.step + self._is_busy
        progress = Progress(step=step, saves=job.saves + 1, saved_step=step)
        try:
            checkpoint.save(self._folder, job.generation, progress, b"")
        except Outdated as error:
            sys.stderr.write(f"levada: {error}; this worker leaves\n")
            raise SystemExit(LEFT) from None
        job.saved(step)
        return answer

    def _same_again(self) -> Iterator[Any]:
        first = next(iter(self._data))
        for _ in range(len(self)):
            yield first


def main() -> None:
    """Runs a script, for which this module is Gavel's."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m levada.runtime.gavel SCRIPT ARGUMENT…")
    import levada.runtime.gavel as adapter

    sys.modules["gavel_iterator"] = adapter
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
