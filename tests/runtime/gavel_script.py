"""Small training scripts for Gavel, none with a step count of its own across runs; one VARIANT per kind of script.

    python -m levada.runtime.gavel gavel_script.py VARIANT FOLDER [--limit N] [--pace SECONDS] [--die WHEN]

always-complete   calls `complete` at every end of its loop, and saves after that
own-limit         counts its own steps from 0 and calls `complete` after --limit steps
spawned           trains in a spawned process, with a pickled iterator
never-saves       never saves

The model is the number of its steps. Every step appends a line to FOLDER/ledger for the tests.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import signal
import time
from typing import Any

from gavel_iterator import GavelIterator  # type: ignore[import-not-found]

BATCHES = 20


def load_checkpoint(path: str) -> dict[str, int] | None:
    try:
        with open(path) as file:
            state: dict[str, int] = json.load(file)
    except (OSError, ValueError):
        return None
    return state


def save_checkpoint(state: dict[str, int], path: str, die: str = "") -> None:
    if die == "before-save":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.replace(path + ".new", path)
    if die == "after-save":
        os.kill(os.getpid(), signal.SIGKILL)


def train(options: argparse.Namespace, loader: Any, path: str, state: dict[str, int]) -> None:
    """Train until the iterator is done or the script's own limit is reached."""
    rank, steps, reached_limit = os.environ.get("RANK", "0"), 0, False
    while not (reached_limit or loader.done):
        for _ in loader:
            # Like some of Gavel's scripts: the limit is checked after the next batch is fetched.
            if options.variant == "always-complete" and options.limit and steps >= options.limit:
                reached_limit = True
                break
            state["trained"] += 1
            steps += 1
            with open(os.path.join(options.folder, "ledger"), "a") as ledger:
                ledger.write(f"{os.environ.get('LEVADA_GENERATION', '0')} {rank} {state['trained']}\n")
            time.sleep(options.pace)
            if options.variant != "always-complete" and options.limit and steps >= options.limit:
                reached_limit = True
                break
    if options.variant in ("always-complete", "never-saves") or (reached_limit and not loader.done):
        loader.complete()
    if rank == "0" and options.variant != "never-saves":
        loader.save_checkpoint(state, path, options.die)


def spawned(options: argparse.Namespace, pickled: bytes, path: str, state: dict[str, int]) -> None:
    loader = pickle.loads(pickled)
    loader._init_logger()
    train(options, loader, path, state)
    loader.complete()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument("folder")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--die", default="")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    path = os.path.join(options.folder, "model.json")
    loader = GavelIterator(range(BATCHES), options.folder, load_checkpoint, save_checkpoint)
    state = {"trained": 0}
    if os.path.exists(path):
        state = loader.load_checkpoint(path) or state
    if options.variant != "spawned":
        train(options, loader, path, state)
        return
    loader._close_file_handler()
    arguments = (options, pickle.dumps(loader), path, state)
    process = multiprocessing.get_context("spawn").Process(target=spawned, args=arguments)
    process.start()
    process.join()


if __name__ == "__main__":
    main()
