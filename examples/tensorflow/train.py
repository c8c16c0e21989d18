"""Parameter servers and workers with TensorFlow: the first worker coordinates, the others compute.

    python train.py                     one process, without a server
    levada submit -f job.yaml           TF_CONFIG sets the role of every process

STEPS (400) is the number of steps.
"""

import json
import os
import time
from pathlib import Path

try:
    import tensorflow as tf
except ModuleNotFoundError:
    raise SystemExit("this example needs TensorFlow: pip install tensorflow") from None

import levada.runtime

STEPS = int(os.environ.get("STEPS", "400"))
ROUND = 20
TRUTH = [[1.0], [-2.0], [3.0], [0.5]]


def read_tf_config():
    """Return the cluster, and the type and index of this process. Without a chief, the first worker is the chief."""
    config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {}, "task": {"type": "chief", "index": 0}}')
    cluster, kind, index = dict(config["cluster"]), config["task"]["type"], config["task"]["index"]
    if "chief" not in cluster and cluster:
        cluster["chief"], cluster["worker"] = cluster["worker"][:1], cluster["worker"][1:]
        if kind == "worker":
            kind, index = ("chief", 0) if index == 0 else ("worker", index - 1)
    return {name: hosts for name, hosts in cluster.items() if hosts}, kind, index


def serve(cluster, kind, index, done):
    """Run a parameter server, or a worker that executes what the chief schedules."""
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=kind, task_index=index, protocol="grpc")
    print(f"{kind} {index} serves", flush=True)
    while not done.exists():
        time.sleep(0.5)


def strategy_for(cluster):
    """Return a parameter server strategy with its coordinator, or the local strategy for a single process."""
    if "worker" not in cluster or "ps" not in cluster:
        return tf.distribute.get_strategy(), None
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)


def train(cluster, done):
    """Fit a plane to generated points."""
    done.unlink(missing_ok=True)
    job = levada.runtime.init(elastic=False)
    strategy, coordinator = strategy_for(cluster)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([4, 1]))

    @tf.function
    def step():
        points = tf.random.normal([64, 4])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((points @ weights - points @ tf.constant(TRUTH)) ** 2)
        weights.assign_sub(0.02 * tape.gradient(loss, weights))
        return loss

    def save():
        if coordinator:
            coordinator.join()
        return weights.numpy()

    job.state(save=save, load=weights.assign)
    for number in job.steps(STEPS):
        loss = coordinator.schedule(step) if coordinator else step()
        if (number + 1) % ROUND == 0:
            if coordinator:
                coordinator.join()
                loss = loss.fetch()
            print(f"step {number + 1}/{STEPS}  loss {loss:.6f}  workers {len(cluster.get('worker', [0]))}", flush=True)
    job.complete()
    done.touch()
    print("weights", " ".join(f"{value:.2f}" for value in weights.numpy().ravel()), flush=True)


def main():
    """Run the role that TF_CONFIG sets."""
    cluster, kind, index = read_tf_config()
    done = Path(os.environ.get("LEVADA_CHECKPOINT_DIR", "."), "done")
    if kind == "chief":
        train(cluster, done)
    else:
        serve(cluster, kind, index, done)


if __name__ == "__main__":
    main()
