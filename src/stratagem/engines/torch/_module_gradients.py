# SPDX-License-Identifier: Apache-2.0
"""A module's gradients, summed over replicas by `backward()` itself: when it returns, `grad` is the global batch's.

Clipping, gradient norms and scalers of a program then see what one device would have; a sum in `optimizer.step()` would
come too late for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import get_gradient_edge

from stratagem.engines.torch._gradients import GradientReducer
from stratagem.engines.torch._transport import Transport
from stratagem.errors import ArgumentError

__all__ = ["ModuleGradients"]


class ModuleGradients:
    """Sums what `backward()` adds to the gradients of some parameters, between `begin` and `end`.

    Args:
        transport: Of the job.
        label: Names the module in errors.
        parameters: Those that require gradients; the same on every replica.
    """

    def __init__(self, transport: Transport, label: str, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._transport = transport
        self._label = label
        # Its tensor holds a parameter's node weakly: without this list the hooks would be gone.
        self._nodes = [get_gradient_edge(parameter).node for parameter in self.parameters]
        self._hooks = [node.register_prehook(self._on_gradient) for node in self._nodes]
        self._reducer: GradientReducer | None = None
        self._earlier: list[torch.Tensor | None] = []
        self._in_run = self._in_backward = False

    def begin(self) -> None:
        """From now on `backward()` sums."""
        self._in_run = True

    def end(self, *, failed: bool) -> None:
        """From now on it does not; `failed` if a backward pass may have been left halfway."""
        self._in_run = False
        if failed and self._in_backward and self._reducer is not None:
            self._reducer.close()
            self._reducer = None
        self._in_backward = False

    def close(self) -> None:
        """Leave the parameters as they were."""
        for hook in self._hooks:
            hook.remove()
        self._nodes.clear()
        if self._reducer is not None:
            self._reducer.close()

    def _on_gradient(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        # Before a gradient is added to a parameter's; `torch.autograd.grad` adds to none, and does not come here.
        if not self._in_run:
            return
        for gradient in gradients:
            if gradient is not None and (gradient.is_sparse or gradient.requires_grad):
                raise self._refusal(gradient)
        if self._in_backward:
            return
        self._in_backward = True
        if self._reducer is None:
            self._reducer = GradientReducer(self._transport, self.parameters, {})
        self._earlier = [parameter.grad for parameter in self.parameters]
        self._reducer.start()
        # Which parameters a loss depends on is only known when the pass is over. DDP asks for the same call.
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # pyright: ignore[reportAttributeAccessIssue]

    def _finish(self) -> None:
        assert self._reducer is not None, "started by the first gradient"
        totals = self._reducer.finish()
        with torch.no_grad():
            for parameter, earlier, total in zip(self.parameters, self._earlier, totals, strict=True):
                mine = parameter.grad
                if total is None:
                    parameter.grad = earlier
                elif earlier is not None:
                    parameter.grad = earlier.add_(total)
                elif mine is None:
                    parameter.grad = total.clone()
                else:
                    mine.copy_(total)
        self._earlier = []
        self._in_backward = False

    def _refusal(self, gradient: torch.Tensor) -> ArgumentError:
        if gradient.is_sparse:
            return ArgumentError(
                f"{self._label} has a sparse gradient, which is not summed over replicas",
                fix="make the embedding with sparse=False",
            )
        return ArgumentError(
            f"backward(create_graph=True) was called in strategy.run() for {self._label}, whose gradients are summed "
            "over replicas and then have no graph",
            fix="differentiate twice with torch.autograd.grad(..., create_graph=True), and call backward() on the loss",
        )
