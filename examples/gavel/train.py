"""A script written for Gavel, without any reference to Levada: fit a line to generated points."""

import argparse
import json
import os
import random
import time

from gavel_iterator import GavelIterator


class Points:
    """Batches of points near the line y = 3 x - 1."""

    def __init__(self, batches, size):
        self._batches, self._size = batches, size

    def __len__(self):
        return self._batches

    def __iter__(self):
        rng = random.Random(7)
        for _ in range(self._batches):
            xs = [rng.uniform(-1, 1) for _ in range(self._size)]
            yield [(x, 3 * x - 1 + rng.gauss(0, 0.1)) for x in xs]


def load_checkpoint(path):
    """Return the model and its step count, or None without a checkpoint."""
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def save_checkpoint(state, path):
    """Save the model and its step count."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(state, file)


def main():
    """Train until all steps are done or the lease ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_steps", type=int, default=400)
    parser.add_argument("--checkpoint_dir", default="checkpoints")
    parser.add_argument("--step_seconds", type=float, default=0.0)
    options = parser.parse_args()

    path = os.path.join(options.checkpoint_dir, "model.json")
    loader = GavelIterator(Points(50, 16), options.checkpoint_dir, load_checkpoint, save_checkpoint)
    state = loader.load_checkpoint(path) or {"slope": 0.0, "offset": 0.0, "steps": 0}

    while not loader.done:
        for batch in loader:
            errors = [(state["slope"] * x + state["offset"] - y, x) for x, y in batch]
            state["slope"] -= 0.1 * sum(error * x for error, x in errors) / len(batch)
            state["offset"] -= 0.1 * sum(error for error, _ in errors) / len(batch)
            state["steps"] += 1
            time.sleep(options.step_seconds)
            if state["steps"] % 50 == 0:
                print(f"step {state['steps']}  y = {state['slope']:.3f} x + {state['offset']:.3f}", flush=True)
            if state["steps"] >= options.num_steps:
                loader.complete()
                break
    loader.save_checkpoint(state, path)


if __name__ == "__main__":
    main()
