"""Execute the runs of a sweep on a Dask cluster, without a shared disk.

This process saves the results. Workers need the same version of Levada, and the files that a run reads (trace,
throughput table) under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from levada import __version__
from levada.errors import BadInput, LevadaError, MissingExtra
from levada.sim.sweep.folder import Folder
from levada.sim.sweep.plan import Task
from levada.sim.sweep.pool import FAILED, Done
from levada.sim.sweep.run import RunOutcome, run_one

SCHEME = "dask://"
_CONNECT_S = 10


def work_on(address: str, tasks: list[Task], folder: Folder) -> Iterator[Done]:
    """Execute all tasks on the cluster and yield each end. Closing the iterator cancels the others."""
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
            raise LevadaError(f"{address} has no workers; start one with `dask worker {scheduler}`")
        task_of = {
            client.submit(run_remote, msgspec.msgpack.encode(task), __version__, pure=False): task for task in tasks
        }
        for future in distributed.as_completed(task_of):
            yield _finish(future, task_of[future], folder)
            future.release()
    finally:
        client.close()  # cancels the futures that were not released


def run_remote(task: bytes, version: str) -> RunOutcome | str:
    """Return the result of a run, or the error; called by a worker."""
    if version != __version__:
        return f"the worker has Levada {__version__}, this machine has {version}; install the same version"
    try:
        return run_one(msgspec.msgpack.decode(task, type=Task))
    except Exception as error:
        return str(error) if isinstance(error, LevadaError) else f"{type(error).__name__}: {error}"


def _finish(future: Any, task: Task, folder: Folder) -> Done:
    try:
        outcome: RunOutcome | str = future.result()
    except Exception as error:
        # Workers died repeatedly, or could not start the task.
        return Done(task.key, FAILED, f"{type(error).__name__}: {error}")
    if isinstance(outcome, str):
        return Done(task.key, FAILED, outcome)
    folder.save(task, outcome)
    return Done(task.key, outcome.row["status"])


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise MissingExtra("--on dask://", "dask") from None
    return distributed
