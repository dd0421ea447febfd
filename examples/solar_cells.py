# SPDX-License-Identifier: Apache-2.0
"""Find broken solar cells: MobileNetV2 on 2,624 photos, on all devices of this machine.

    stratagem run --cpu-devices 2 examples/solar_cells.py                         # about 2 minutes on 2 cores
    stratagem run examples/solar_cells.py --image-size 224 --alpha 1 --epochs 5   # the real thing

PyTorch computes; with KERAS_BACKEND=jax before these lines JAX does: slower on CPUs, see docs/torch_or_jax.md.

It trains, prints accuracy and AUC on photos held back, and measures what the replicas bring: the same training
without distribution, with the same global batch, and with one such batch per replica.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from elpv_dataset.utils import load_dataset
from PIL import Image

import stratagem

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--image-size", type=int, default=64, help="width and height of the photos")
parser.add_argument("--alpha", type=float, default=0.35, help="width of MobileNetV2: 1 is the full one")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--global-batch", type=int, default=32, help="photos of one step, over all replicas")
parser.add_argument("--table-epochs", type=int, default=3, help="for each row of the table; the first warms up")
parser.add_argument("--no-table", action="store_true", help="train and evaluate only")
parser.add_argument("--no-distribution", action="store_true", help="plain Keras: print its row of the table as JSON")
args = parser.parse_args()


def load_photos():
    """Grey photos (rows, size, size, 1), whether each shows a defect (rows,), and which fifth to hold back (rows,)."""
    photos, probabilities, _ = load_dataset()
    size = (args.image_size, args.image_size)
    small = [np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BILINEAR)) for photo in photos]
    defective = probabilities > 0.5
    held_back = np.zeros(len(small), bool)
    for label in (False, True):  # a fifth of each class; the seed makes it the same fifth in every process
        held_back[np.random.default_rng(0).permutation(np.flatnonzero(defective == label))[::5]] = True
    return np.stack(small)[..., np.newaxis], defective.astype("float32"), held_back


def build_model():
    shape = (args.image_size, args.image_size, 1)
    net = keras.applications.MobileNetV2(shape, args.alpha, weights=None, classes=1, classifier_activation="sigmoid")
    for layer in net.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # 0.999 suits millions of photos; after these few, the averages would still be zeros
    photo = keras.Input(shape, dtype="uint8")
    model = keras.Model(photo, net(keras.ops.cast(photo, "float32") / 127.5 - 1.0))
    metrics = [keras.metrics.BinaryAccuracy(name="accuracy"), keras.metrics.AUC(name="auc")]
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss="binary_crossentropy", metrics=metrics)
    return model


class Stopwatch(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.started)


def num_threads():
    """That this process computes with."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.get_num_threads()
    return len(os.sched_getaffinity(0))  # jax takes all cores


def train(model, data, batch, epochs, verbose):
    """Fit `model`, and return a row of the table."""
    watch = Stopwatch()
    model.fit(*data, batch_size=batch, epochs=epochs, verbose=verbose, callbacks=[watch])
    seconds = statistics.median(watch.seconds[1:] or watch.seconds)
    row = {"batch": batch, "threads": num_threads(), "seconds": seconds, "images": len(data[0]) / seconds}
    return row | {"load": os.getloadavg()[0]}


def num_processes(strategy):
    """With PyTorch each replica is a process; with JAX one process has them all."""
    return strategy.num_replicas_in_sync if keras.backend.backend() == "torch" else 1


def on_gpu(strategy):
    return any("GPU" in device for device in strategy.extended.worker_devices)


def train_without_distribution(strategy, chief):
    """The row of plain Keras, on the chief: measured in a process of its own, with the threads of all replicas."""
    threads = num_threads() * (1 if on_gpu(strategy) else num_processes(strategy))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, *sys.argv, "--no-distribution"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) if chief else None

    def running():
        return process is not None and process.poll() is None

    # It may take longer than a replica waits for another, so all tell one another that they are there.
    while float(strategy.reduce("SUM", strategy.run(keras.ops.convert_to_tensor, args=(float(running()),)), axis=None)):
        time.sleep(1)
    if process is None:
        return None
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"plain Keras ended with exit code {process.returncode}")
    return json.loads(output.splitlines()[-1])


def print_table(alone, rows, strategy):
    print("| training | processes x threads | global batch | s/epoch | images/s | speed-up | efficiency |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    gpu, replicas = on_gpu(strategy), strategy.num_replicas_in_sync
    for name, row in [("no distribution", alone), *rows.items()]:
        processes = 1 if row is alone else num_processes(strategy)
        speed_up = alone["seconds"] / row["seconds"]
        units = (1 if row is alone else replicas) if gpu else processes * row["threads"] / alone["threads"]
        print(f"| {name} | {processes} x {row['threads']} | {row['batch']} | {row['seconds']:.1f} | ", end="")
        print(f"{row['images']:.0f} | {speed_up:.2f}x | {speed_up / units:.0%} |")
    shared = "has a GPU to itself" if gpu else "has all the replicas' threads to itself"
    print(f"No distribution: plain Keras, without Stratagem and its faster kernels; it {shared}.")
    print(f"Efficiency: speed-up divided by how many times the {'GPUs' if gpu else 'threads'} of no distribution.")
    load = max(row["load"] for row in (alone, *rows.values()))
    if not gpu and load > alone["threads"] + 1:
        print(f"Other programs kept this machine busy (load {load:.1f}): measure again before you believe the table.")


def main():
    photos, defective, held_back = load_photos()
    training, testing = (photos[~held_back], defective[~held_back]), (photos[held_back], defective[held_back])
    if args.no_distribution:
        print(json.dumps(train(build_model(), training, args.global_batch, args.table_epochs, verbose=0)))
        return

    strategy = stratagem.MirroredStrategy()
    replicas = strategy.num_replicas_in_sync
    ids = strategy.run(lambda: stratagem.get_replica_context().replica_id_in_sync_group)
    chief = int(strategy.experimental_local_results(ids)[0]) == 0  # it alone prints

    def say(text):
        if chief:
            print(text, flush=True)

    say(f"{len(training[0])} photos to train on, {len(testing[0])} held back; number of replicas: {replicas}")
    with strategy.scope():
        model = build_model()
    same_batch = train(model, training, args.global_batch, args.epochs, verbose="auto")
    scores = model.evaluate(*testing, batch_size=args.global_batch, verbose=0, return_dict=True)
    say(f"On the photos held back: accuracy {scores['accuracy']:.3f}, AUC {scores['auc']:.3f}")
    if args.no_table:
        return

    say(f"Now {args.table_epochs} epochs each with {replicas} times the batch and without distribution, to compare.")
    with strategy.scope():
        model = build_model()
    large_batch = train(model, training, args.global_batch * replicas, args.table_epochs, verbose=0)
    say(f"With {replicas} times the batch: {large_batch['seconds']:.1f} s per epoch. Now without distribution ...")
    alone = train_without_distribution(strategy, chief)
    if chief:
        print_table(alone, {"same global batch": same_batch, f"{replicas} times the batch": large_batch}, strategy)


if __name__ == "__main__":
    main()
