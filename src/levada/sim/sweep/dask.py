"""Runs of a sweep on a Dask cluster. Results come back here and are kept here: its workers need no disk of ours.

Workers need the same version of Levada, and files that a run reads (a trace, a table of speeds) under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from levada import __version__
from levada.errors import BadInput, LevadaError
from levada.sim.sweep.folder import Folder
from levada.sim.sweep.one import Outcome, run_one
from levada.sim.sweep.plan import Task
from levada.sim.sweep.pool import FAILED, Done

SCHEME = "dask://"
_CONNECT_S = 10


def work_on(address: str, tasks: list[Task], folder: Folder) -> Iterator[Done]:
    """Runs all of them there and tells of each when it is over. What is closed early is cancelled."""
    distributed = _distributed()
    if not address.startswith(SCHEME) or ":" not in address[len(SCHEME) :]:
        raise BadInput.one(f"--on {address}: must be {SCHEME}HOST:PORT, the address of a Dask scheduler")
    scheduler = f"tcp://{address[len(SCHEME) :]}"
    try:
        client = distributed.Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise LevadaError(f"no Dask scheduler answers at {address}: {error}") from None
    try:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise LevadaError(f"{address} has no workers; start some with `dask worker {scheduler}`")
        of = {client.submit(run_there, msgspec.msgpack.encode(task), __version__, pure=False): task for task in tasks}
        for future in distributed.as_completed(of):
            yield _over(future, of[future], folder)
            future.release()
    finally:
        client.close()  # whoever holds no result any more has it cancelled


def run_there(task: bytes, version: str) -> Outcome | str:
    """What comes of a run, or why nothing did; called by a worker."""
    if version != __version__:
        return f"the worker has Levada {__version__}, whoever asks has {version}; install the same"
    try:
        return run_one(msgspec.msgpack.decode(task, type=Task))
    except Exception as error:
        return str(error) if isinstance(error, LevadaError) else f"{type(error).__name__}: {error}"


def _over(future: Any, task: Task, folder: Folder) -> Done:
    try:
        outcome: Outcome | str = future.result()
    except Exception as error:
        # Its worker died, again and again, or could not even begin.
        return Done(task.key, FAILED, f"{type(error).__name__}: {error}")
    if isinstance(outcome, str):
        return Done(task.key, FAILED, outcome)
    folder.keep(task, outcome)
    return Done(task.key, outcome.row["status"])


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise LevadaError("--on dask:// needs Dask: pip install 'levada[dask]'") from None
    return distributed
