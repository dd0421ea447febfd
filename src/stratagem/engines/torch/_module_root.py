# SPDX-License-Identifier: Apache-2.0
"""A module of torch that no other one holds: what is in it, and what `strategy.run` attaches to it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import torch

from stratagem.engines.torch._module_buffers import buffers_of
from stratagem.engines.torch._module_gradients import ModuleGradients
from stratagem.engines.torch._transport import Transport
from stratagem.errors import ArgumentError

__all__ = ["ModuleRoot"]


class ModuleRoot:
    """One such module, without keeping it alive.

    Args:
        transport: Of the job.
        number: It is the same module that has this number in the other processes.
        module: It.

    Attributes:
        buffers: All in it.
        parameters: Those whose gradients are summed.
        is_common: All replicas have had replica 0's values.
        without_shape: The name of a part that is still without a shape; "" if there is none.
    """

    def __init__(self, transport: Transport, number: int, module: torch.nn.Module) -> None:
        self._transport = transport
        self._number = number
        self._label = type(module).__name__
        self._module = weakref.ref(module)
        self.is_common = False
        self._gradients: ModuleGradients | None = None
        self._key: list[Any] = []
        self.read(module)

    def read(self, module: torch.nn.Module) -> None:
        """Look at what is in the module now."""
        self.buffers = buffers_of(f"{self._label} {self._number}", module)
        self._named = dict(module.named_parameters())
        self.without_shape = _without_shape(module)

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """Those whose gradients are summed."""
        return () if self._gradients is None else self._gradients.parameters

    def refresh(self) -> None:
        """Take note of what has changed without anybody telling: `requires_grad`, dtypes, devices, lazy parameters."""
        module = self._module()
        if module is not None and self.without_shape:
            self.read(module)
        if self.without_shape:
            return
        key = [
            (parameter, parameter.requires_grad, parameter.dtype, parameter.device)
            for parameter in self._named.values()
        ]
        if _same(key, self._key):
            return
        self.close()
        self._key = key
        learning = [parameter for parameter in self._named.values() if parameter.requires_grad]
        if learning:
            self._gradients = ModuleGradients(self._transport, self._label, learning)

    def refuse_new_shapes(self) -> None:
        """After a run, of a root that was without a shape before it.

        Raises:
            ArgumentError: it no longer is.
        """
        module = self._module()
        if module is not None and _without_shape(module) != self.without_shape:
            raise ArgumentError(
                f"{self.without_shape} of {self._label}, a module made in strategy.scope(), got its shape in "
                "strategy.run(), where each replica makes values of its own",
                fix="call the module on an example before the first run, or use layers that are told their sizes",
            )

    def begin(self) -> None:
        """A run begins."""
        if self._gradients is not None:
            self._gradients.begin()

    def end(self, *, failed: bool) -> None:
        """It ends."""
        if self._gradients is not None:
            self._gradients.end(failed=failed)

    def close(self) -> None:
        """Leave the module as it was."""
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None

    def values(self) -> list[torch.Tensor]:
        """Its parameters and buffers."""
        buffers = [tensor for buffer in self.buffers if (tensor := buffer.tensor) is not None]
        return [value.detach() for value in (*self._named.values(), *buffers)]

    def describe(self) -> tuple[str, list[tuple[str, str, tuple[int, ...]]]]:
        """What every replica must have alike."""
        names = [*self._named, *(buffer.name for buffer in self.buffers if buffer.tensor is not None)]
        return self._label, [
            (name, str(value.dtype), tuple(value.shape)) for name, value in zip(names, self.values(), strict=True)
        ]

    def name_of_summed(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """The name of a parameter whose gradient is among `tensors`."""
        if self._gradients is None:
            return None
        given = {id(tensor) for tensor in tensors}
        return next(
            (
                f"{self._label}.{name}"
                for name, parameter in self._named.items()
                if parameter.requires_grad and parameter.grad is not None and id(parameter.grad) in given
            ),
            None,
        )


def _without_shape(module: torch.nn.Module) -> str:
    for name, part in module.named_modules():
        if isinstance(part, keras.Layer) and not part.built:
            return name or part.name
    return next((name for name, one in module.named_parameters() if torch.nn.parameter.is_lazy(one)), "")


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(
        mine[0] is theirs[0] and mine[1:] == theirs[1:] for mine, theirs in zip(left, right, strict=True)
    )
