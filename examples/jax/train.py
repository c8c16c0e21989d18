"""Elastic data-parallel training with JAX: a small network learns the sum of two waves.

    python train.py                     one worker, without a server
    levada submit -f job.yaml           1 to 4 workers, resized in place

STEPS (300) is the number of steps. STEP_SECONDS (0) is added to the time of every step.
"""

import os
import time

import numpy as np

try:
    import levada.runtime.jax
except ModuleNotFoundError:
    raise SystemExit("this example needs JAX: pip install jax") from None

job = levada.runtime.jax.init()  # before anything else uses JAX

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

STEPS = int(os.environ.get("STEPS", "300"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
BATCH, RATE, SEED = 96, 0.1, 7


def loss_of(net, points, heights):
    """Return the mean squared error."""
    hidden = jnp.tanh(points @ net["w1"] + net["b1"])
    return jnp.mean((hidden @ net["w2"] - heights) ** 2)


@jax.jit
def update(value, points, heights):
    """Apply one gradient step; the mean is over the batch of all workers."""
    loss, slopes = jax.value_and_grad(loss_of)(value["net"], points, heights)
    return {"net": jax.tree.map(lambda part, slope: part - RATE * slope, value["net"], slopes)}, loss


def main():
    """Train with any number of workers."""
    rng = np.random.default_rng(SEED)
    net = {"w1": rng.normal(size=(1, 32)), "b1": rng.normal(size=32), "w2": rng.normal(size=32) / 32}
    tree = job.tree(net={name: part.astype(np.float32) for name, part in net.items()})

    for step in job.steps(STEPS):
        # The batch does not depend on the number of workers; each worker takes its part.
        points = np.random.default_rng((SEED, step)).uniform(-2, 2, size=(BATCH, 1)).astype(np.float32)
        mine = np.array_split(points, job.world_size)[job.rank]
        heights = (np.sin(2 * mine) + 0.5 * np.sin(5 * mine))[:, 0]
        tree.value, loss = update(tree.value, job.shard(mine), job.shard(heights))
        time.sleep(STEP_SECONDS)
        if job.is_main and (step % max(1, STEPS // 20) == 0 or step == STEPS - 1):
            print(f"step {step + 1}/{STEPS}  loss {float(loss):.6f}  workers {job.world_size}", flush=True)
    job.complete()


if __name__ == "__main__":
    main()
