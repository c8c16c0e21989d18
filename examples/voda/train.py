"""A script written for Voda, without any reference to Levada: a CSV line and a checkpoint after every epoch."""

import argparse
import csv
import json
import os
import random
import time
from datetime import datetime

parser = argparse.ArgumentParser()
parser.add_argument("--name", required=True)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--metrics-dir", required=True)
parser.add_argument("--store-dir", required=True)
parser.add_argument("--epoch-seconds", type=float, default=0.0)
options = parser.parse_args()

metrics = os.path.join(options.metrics_dir, options.name + ".csv")
weights = os.path.join(options.store_dir, "weights.json")
for folder in (options.metrics_dir, options.store_dir):
    os.makedirs(folder, exist_ok=True)

# After a restart the last line of the file determines the next epoch.
first, slope = 0, 0.0
if os.path.exists(metrics):
    with open(metrics) as file:
        first = 1 + max((int(row["epoch"]) for row in csv.DictReader(file)), default=-1)
    with open(weights) as file:
        slope = json.load(file)["slope"]

for epoch in range(first, options.epochs):
    began, rng = datetime.now(), random.Random(epoch)
    for _ in range(20):
        x = rng.uniform(-1, 1)
        slope -= 0.3 * (slope * x - 3 * x) * x
        time.sleep(options.epoch_seconds / 20)
    with open(weights, "w") as file:
        json.dump({"slope": slope}, file)
    seconds = (datetime.now() - began).total_seconds()
    row = {
        "epoch": epoch,
        "epoch_time_sec": seconds,
        "start_time": began.strftime("%Y-%m-%d %H:%M:%S.%f"),
        "step_time_sec": seconds / 20,
        "steps": 20,
        "total_epochs": options.epochs,
        "workers": int(os.environ.get("WORLD_SIZE", "1")),
    }
    is_new = not os.path.exists(metrics)
    with open(metrics, "a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(f"epoch {epoch + 1}/{options.epochs}  slope {slope:.4f}", flush=True)
