# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch on several replicas: stratagem run --cpu-devices 2 examples/custom_loop_torch.py"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import torch
from sklearn.datasets import load_digits

import stratagem

digits, labels = load_digits(return_X_y=True)
x, y = (digits / 16).astype("float32"), labels.astype("int64")
batches = [(x[i : min(i + 128, 1500)], y[i : min(i + 128, 1500)]) for i in range(0, 1500, 128)]  # the last has 92 rows

strategy = stratagem.MirroredStrategy()


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    return model, torch.optim.Adam(model.parameters(), lr=0.005)


def train_step(model, optimizer, rows, targets):
    losses = torch.nn.functional.cross_entropy(model(rows), targets, reduction="none")
    # Divided by the rows of all replicas, so that the sum over replicas is the mean over the global batch.
    loss = stratagem.compute_average_loss(losses)
    optimizer.zero_grad()
    loss.backward()  # in strategy.run it sums the gradients over replicas
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


with strategy.scope():
    model, optimizer = make()
is_chief = strategy.experimental_local_results(
    strategy.run(lambda: stratagem.get_replica_context().replica_id_in_sync_group == 0)
)[0]
for epoch in range(5):
    for batch in strategy.experimental_distribute_dataset(batches):
        loss = strategy.reduce("SUM", strategy.run(train_step, args=(model, optimizer, *batch)), axis=None)
    if is_chief:
        print(f"epoch {epoch}: loss of the last batch {float(loss):.4f}")

# The same on one device, by the same function: every process does it for itself.
alone, optimizer = make()
for _ in range(5):
    for batch in batches:
        train_step(alone, optimizer, *map(torch.as_tensor, batch))
if is_chief:
    with torch.no_grad():
        accuracy = np.mean(model(torch.from_numpy(x[1500:])).argmax(1).numpy() == y[1500:])
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        difference = max(float((mine - theirs).abs().max()) for mine, theirs in pairs)
    print(f"accuracy on held back digits {accuracy:.3f}")
    print(f"largest difference of a weight from training on one device {difference:.1e}")
