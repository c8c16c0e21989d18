"""A program without the runtime: it reports nothing, saves nothing, and cannot be resized."""

import os
import time

STEPS = int(os.environ.get("STEPS", "60"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.5"))

guess = 1.0
for step in range(STEPS):
    guess = (guess + 2 / guess) / 2 + 1 / (step + 1) ** 2
    time.sleep(STEP_SECONDS)
    if step % max(1, STEPS // 10) == 0:
        print(f"step {step + 1}/{STEPS}  guess {guess:.6f}", flush=True)
print(f"done  guess {guess:.6f}", flush=True)
