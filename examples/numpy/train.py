"""Elastic data-parallel training with NumPy: workers share each batch and sum their gradients.

    python train.py                     one worker, without a server
    levada submit -f job.yaml           1 to 4 workers, resized in place

STEPS (300) is the number of steps. STEP_SECONDS (0) is the simulated work of a step in seconds, divided among the
workers.
"""

import os
import time

import numpy as np

import levada.runtime

STEPS = int(os.environ.get("STEPS", "300"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
BATCH, RATE, SEED = 240, 0.5, 7


def make_data(rng):
    """Return points in a square and their side of a wavy line."""
    points = rng.uniform(-1, 1, size=(4096, 2))
    return points, (points[:, 1] > 0.5 * np.sin(4 * points[:, 0])).astype(float)


def gradients(net, points, sides):
    """Return the summed loss and the gradient of every parameter, in one array."""
    hidden = np.tanh(points @ net["w1"] + net["b1"])
    guess = 1 / (1 + np.exp(-(hidden @ net["w2"] + net["b2"])))
    loss = -np.sum(np.log(np.where(sides == 1, guess, 1 - guess)))
    error = (guess - sides)[:, None]
    back = error @ net["w2"][None, :] * (1 - hidden**2)
    slopes = (points.T @ back, back.sum(axis=0), (hidden * error).sum(axis=0), error.sum(axis=0))
    return np.concatenate([[loss], *(slope.ravel() for slope in slopes)])


def update(net, slopes):
    """Apply one gradient step."""
    at = 0
    for value in net.values():
        value -= RATE * slopes[at : at + value.size].reshape(value.shape)
        at += value.size


def main():
    """Train with any number of workers."""
    rng = np.random.default_rng(SEED)
    points, sides = make_data(rng)
    net = {"w1": rng.normal(size=(2, 16)), "b1": np.zeros(16), "w2": rng.normal(size=16) / 4, "b2": np.zeros(1)}

    job = levada.runtime.init()
    job.state(**net)
    total = None
    for step in job.steps(STEPS):
        with job.guard():
            # The batch does not depend on the number of workers; each worker takes its part.
            batch = np.random.default_rng((SEED, step)).integers(len(points), size=BATCH)
            mine = np.array_split(batch, job.world_size)[job.rank]
            total = gradients(net, points[mine], sides[mine])
            time.sleep(STEP_SECONDS / job.world_size)
            job.group.allreduce(total)
            update(net, total[1:] / BATCH)
            if job.is_main and (step % max(1, STEPS // 20) == 0 or step == STEPS - 1):
                print(f"step {step + 1}/{STEPS}  loss {total[0] / BATCH:.6f}  workers {job.world_size}", flush=True)
    job.complete()
    if job.is_main:
        norm = sum(float(np.sum(value**2)) for value in net.values()) ** 0.5
        print(f"done after {job.step} steps  norm of the net {norm:.9f}", flush=True)


if __name__ == "__main__":
    main()
