"""Training scripts as they are written for Gavel, in small: none keeps a step count, each in the MANNER of one of them.

    python -m levada.runtime.gavel gavel_script.py MANNER FOLDER [--limit N] [--pace SECONDS] [--die WHEN]

always-complete   calls `complete` whenever its loop has ended, and saves after that
own-limit         counts its own steps from 0 and calls `complete` when it has made --limit of them
spawned           trains in a process that it spawns, with the iterator pickled
forgetful         never saves

The model is the number of steps that went into it. Every step adds a line to FOLDER/ledger, which only tests read.
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
    """What all of them do, until the iterator or their own count says so."""
    rank, made, enough = os.environ.get("RANK", "0"), 0, False
    while not (enough or loader.done):
        for _ in loader:
            # As some do: the limit is looked at when the next batch is there already.
            if options.manner == "always-complete" and options.limit and made >= options.limit:
                enough = True
                break
            state["trained"] += 1
            made += 1
            with open(os.path.join(options.folder, "ledger"), "a") as ledger:
                ledger.write(f"{os.environ.get('LEVADA_GENERATION', '0')} {rank} {state['trained']}\n")
            time.sleep(options.pace)
            if options.manner != "always-complete" and options.limit and made >= options.limit:
                enough = True
                break
    if options.manner in ("always-complete", "forgetful") or (enough and not loader.done):
        loader.complete()
    if rank == "0" and options.manner != "forgetful":
        loader.save_checkpoint(state, path, options.die)


def spawned(options: argparse.Namespace, pickled: bytes, path: str, state: dict[str, int]) -> None:
    loader = pickle.loads(pickled)
    loader._init_logger()
    train(options, loader, path, state)
    loader.complete()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("manner")
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
    if options.manner != "spawned":
        train(options, loader, path, state)
        return
    loader._close_file_handler()
    arguments = (options, pickle.dumps(loader), path, state)
    process = multiprocessing.get_context("spawn").Process(target=spawned, args=arguments)
    process.start()
    process.join()


if __name__ == "__main__":
    main()
