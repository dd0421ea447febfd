# SPDX-License-Identifier: Apache-2.0
"""Programs around plain modules of torch, run in the replicas' processes."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any

import numpy as np

BATCH = 12
UNEVEN = 41  # rows; the last batch, of 5, leaves the fourth replica without any


def data(rows: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The same in every process."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 6)).astype("float32"), draw.normal(size=(rows, 1)).astype("float32")


def _strategy(replicas: int) -> Any:
    import stratagem

    return stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")


def _replica(strategy: Any) -> int:
    import stratagem

    number = strategy.run(lambda: stratagem.get_replica_context().replica_id_in_sync_group)
    return int(strategy.experimental_local_results(number)[0])


def _state(*modules: Any) -> dict[str, np.ndarray]:
    return {
        f"{number}.{name}": value.detach().numpy().copy()
        for number, module in enumerate(modules)
        for name, value in module.state_dict().items()
    }


def train(replicas: int) -> dict[str, Any]:
    """Two passes, with what a sum of gradients has to go well with.

    Two modules with an optimizer each, copies of a layer, a shared and an unused parameter, gradients of two losses
    that add up, clipping, `set_to_none=False`, a layer that learns in the second pass only. Each process draws initial
    weights of its own, and replica 0 has others in the end.
    """
    import torch

    import stratagem

    strategy = _strategy(replicas)
    replica = _replica(strategy)
    with strategy.scope():
        torch.manual_seed(100 + replica)
        layer = torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # which copies the layer
        head = torch.nn.Linear(6, 6)
        body = torch.nn.ModuleDict({"encoder": encoder, "head": head, "again": head, "unused": torch.nn.Linear(2, 2)})
        critic = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    if replica == 0:
        torch.manual_seed(7)
        with torch.no_grad():
            for parameter in [*body.parameters(), *critic.parameters()]:
                parameter.uniform_(-0.4, 0.4)
    critic[0].requires_grad_(False)
    first = torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9)
    second = torch.optim.Adam(critic.parameters(), lr=0.02)
    norms = []

    def step(x: Any, y: Any) -> Any:
        first.zero_grad(set_to_none=False)
        second.zero_grad()
        hidden = body["again"](torch.tanh(body["head"](body["encoder"](x[:, None])[:, 0])))
        error = stratagem.compute_average_loss((critic(hidden) - y).square()[:, 0])
        penalty = stratagem.compute_average_loss(hidden.abs().sum(dim=1))
        error.backward(retain_graph=True)
        (0.1 * penalty).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(body.parameters(), 0.5)))
        first.step()
        second.step()
        return error.detach() + 0.1 * penalty.detach()

    x, y = data(UNEVEN)
    losses = []
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset((x, y), BATCH)):
            losses.append(float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)))
        critic[0].requires_grad_(True)
    return {"losses": [*losses, *norms], "state": _state(body, critic)}


def keep_buffers(replicas: int) -> dict[str, Any]:
    """Buffers of several kinds over a batch that divides unevenly, one replica of four having no rows."""
    import torch

    import stratagem

    class Tracker(torch.nn.Module):
        """Keeps a running mean, its last rows, a mask, flags and a half-precision copy."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(6))
            self.register_buffer("halved", torch.zeros(6, dtype=torch.float16))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("first", torch.zeros(2, dtype=torch.bool))
            self.register_buffer("mask", torch.full((3,), -torch.inf))
            self.register_buffer("replaced", torch.zeros(6))

        def forward(self, x: Any) -> Any:
            """Takes note of `x`; without rows its means are no numbers."""
            self.average.mul_(0.5).add_(x.mean(dim=0), alpha=0.5)
            self.halved.copy_(self.average)
            self.seen += len(x)
            self.first[0] = True
            self.mask[0] = 0.0
            self.replaced = x.mean(dim=0)
            return x

    strategy = _strategy(replicas)
    with strategy.scope():
        torch.manual_seed(_replica(strategy))
        model = torch.nn.Sequential(Tracker(), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5))
    x, _ = data(6)

    def step(x: Any) -> Any:
        return model(x).sum()

    states = []
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset(x, 6)):
            strategy.run(step, args=(batch,))
        states.append(_state(model))
    model.eval()
    strategy.run(lambda x: model[1:](x).sum(), args=(torch.ones(3, 6),))
    return {"states": states, "after": _state(model)}


def draw(replicas: int) -> dict[str, Any]:
    """What Dropout drops in `run`: two equal runs of two calls each; and what is drawn outside afterwards."""
    import keras
    import torch

    import stratagem

    def run(strategy: Any) -> Any:
        torch.manual_seed(5)
        with strategy.scope():
            layer = torch.nn.Linear(1, 1)
            dropouts = torch.nn.Dropout(0.5), keras.layers.Dropout(0.5, seed=3)

        def step() -> Any:
            layer.weight.sum().backward()
            masks = torch.stack([dropouts[0](torch.ones(64)), dropouts[1](torch.ones(64), training=True)])
            return stratagem.get_replica_context().all_gather(masks[None], axis=0)

        made = [strategy.experimental_local_results(strategy.run(step))[0].numpy() for _ in range(2)]
        return made, torch.rand(3).numpy()

    strategy = _strategy(replicas)
    return {"runs": [run(strategy) for _ in range(2)]}


def refuse(replicas: int) -> dict[str, str]:
    """What is said about that which can't be done, by the name of the mistake."""
    import keras
    import torch

    import stratagem

    strategy = _strategy(replicas)
    replica = _replica(strategy)
    x = torch.from_numpy(data(4)[0])

    def run_of(module: Any, how: Any) -> str:
        try:
            strategy.run(how, args=(module, x))
        except stratagem.errors.StratagemError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def by_hand(module: Any, x: Any) -> Any:
        module(x).sum().backward()
        return stratagem.get_replica_context().all_reduce("SUM", [one.grad for one in module.parameters()])

    def twice(module: Any, x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about memory
            module(x).square().sum().backward(create_graph=True)

    def simple(module: Any, x: Any) -> Any:
        module(x.long().abs() if isinstance(module, torch.nn.Embedding) else x).sum().backward()

    def with_keras(module: Any, x: Any) -> Any:
        module(x).sum().backward()
        optimizer.apply([one.value.grad for one in module[0].trainable_variables], module[0].trainable_variables)

    said: dict[str, str] = {}
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
        dense = keras.layers.Dense(2)
        dense.build((None, 6))
        made = {
            "by hand": (torch.nn.Linear(6, 1), by_hand),
            "create_graph": (torch.nn.Linear(6, 1), twice),
            "sparse": (torch.nn.Embedding(8, 2, sparse=True), simple),
            "with Keras's optimizer": (torch.nn.Sequential(dense, torch.nn.Tanh()), with_keras),
        }
    for mistake, (module, how) in made.items():
        said[mistake] = run_of(module, how)
    del made, module
    with strategy.scope():
        lazy = torch.nn.LazyLinear(3)
    said["lazy"] = run_of(lazy, simple)
    del lazy
    with strategy.scope():
        unbuilt = torch.nn.Sequential(keras.layers.Dense(3))
    said["unbuilt"] = run_of(unbuilt, simple)
    del unbuilt
    with strategy.scope():
        different = torch.nn.Linear(6, 2 + min(replica, 1))
    said["different"] = run_of(different, simple)
    del different
    said["outside"], said["outside, by hand"] = (_warnings_of_a_step(strategy, by_hand) for by_hand in (False, True))
    return said


def _warnings_of_a_step(strategy: Any, by_hand: bool) -> str:
    import torch

    import stratagem

    module = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(x: Any) -> None:
        module(x).sum().backward()
        if by_hand:
            totals = stratagem.get_replica_context().all_reduce("SUM", [one.grad for one in module.parameters()])
            for parameter, total in zip(module.parameters(), totals, strict=True):
                parameter.grad = total
        optimizer.step()

    with _logged() as lines:
        for _ in range(2):
            strategy.run(step, args=(torch.ones(2, 6),))
    return "\n".join(lines)


@contextlib.contextmanager
def _logged() -> Any:
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, keeper = logging.getLogger("stratagem"), Keeper()
    logger.addHandler(keeper)
    try:
        yield lines
    finally:
        logger.removeHandler(keeper)


def train_with_keras_layers(replicas: int) -> dict[str, Any]:
    """A module of torch around layers of Keras, trained by an optimizer of torch."""
    import keras
    import torch

    import stratagem

    class Model(torch.nn.Module):
        """One layer of each library."""

        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(5, "tanh", name="first")  # else by what the process made before
            self.first.build((None, 6))
            self.last = torch.nn.Linear(5, 1)

        def forward(self, x: Any) -> Any:
            """The prediction."""
            return self.last(self.first(x))

    strategy = _strategy(replicas)
    with strategy.scope():
        model = Model()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        stratagem.compute_average_loss((model(x) - y).square()[:, 0]).backward()
        optimizer.step()

    for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset(data(UNEVEN), BATCH)):
        strategy.run(step, args=batch)
    return {"losses": [], "state": _state(model)}
