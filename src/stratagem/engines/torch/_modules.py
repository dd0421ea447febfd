# SPDX-License-Identifier: Apache-2.0
"""Modules of torch that a program makes in the scope of several replicas, and what `strategy.run` does for them.

Before the first run all take the values of replica 0. In a run `backward()` sums the gradients, and after it the
buffers are made equal. Keras's layers are modules too; Keras's optimizers and `keras_fit` see to those.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import torch
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stratagem._core import contexts
from stratagem.engines.torch._module_buffers import BuffersBefore, rows_of
from stratagem.engines.torch._module_root import ModuleRoot
from stratagem.engines.torch._transport import Transport
from stratagem.errors import ArgumentError, StructureMismatchError

__all__ = ["Modules"]

_logger = logging.getLogger(__name__)
_CHIEF = 0
_NOTHING_AROUND = contextlib.nullcontext()


class Modules:
    """The modules of one job, in one of its processes.

    Args:
        transport: Of the job.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._noted: weakref.WeakValueDictionary[int, torch.nn.Module] = weakref.WeakValueDictionary()
        self._numbers: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._edits = 0
        self._roots: dict[int, ModuleRoot] = {}
        self._seen: tuple[int, int] | None = None
        self._have_buffers = False
        self._reduced_numbers = 0
        self._warned: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        hooks: tuple[Callable[[Any], Any], ...] = (
            torch_module.register_module_parameter_registration_hook,
            torch_module.register_module_buffer_registration_hook,
            torch_module.register_module_module_registration_hook,
        )
        self._hooks = [register(self._note) for register in hooks]
        self._hooks.append(register_optimizer_step_pre_hook(self._check_summed))

    @property
    def transport(self) -> Transport:
        """Of the job."""
        return self._transport

    def close(self) -> None:
        """Leave torch as it was."""
        for hook in self._hooks:
            hook.remove()
        for root in self._roots.values():
            root.close()
        self._roots.clear()

    def in_run(self, args: Any) -> contextlib.AbstractContextManager[None]:
        """Around a call of `strategy.run` with these arguments.

        Raises:
            ArgumentError: a module got the shapes of its parameters inside.
            StructureMismatchError: the processes have made different modules.
        """
        self._reduced_numbers = 0
        roots = self._up_to_date()
        return self._around(roots, args) if self._roots else _NOTHING_AROUND

    @contextlib.contextmanager
    def _around(self, roots: Sequence[ModuleRoot], args: Any) -> Iterator[None]:
        waiting = [root for root in self._roots.values() if root.without_shape]
        for root in roots:
            root.begin()
        before = BuffersBefore([buffer for root in roots for buffer in root.buffers])
        failed = True
        try:
            yield
            failed = False
        finally:
            for root in roots:
                root.end(failed=failed)
        for root in waiting:
            root.refuse_new_shapes()
        if self._have_buffers:
            before.agree(self._transport, rows_of(args))

    def note_all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """The function that runs sums `tensors` over replicas itself."""
        if self._transport.is_in_run:
            self._reduced_numbers += sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())

    def refuse_summed(self, gradients: Sequence[torch.Tensor]) -> None:
        """Of gradients that are about to be summed.

        Raises:
            ArgumentError: `backward()` has summed one of them.
        """
        if not self._transport.is_in_run:
            return
        for root in self._roots.values():
            if (name := root.name_of_summed(gradients)) is not None:
                raise ArgumentError(
                    f"the gradient of {name} would be summed over replicas a second time: backward() in strategy.run() "
                    "sums those of modules that were made in strategy.scope()",
                    fix="leave out your all_reduce, and let an optimizer of torch.optim take the step",
                )

    def _note(self, module: torch.nn.Module, name: str, value: object) -> None:
        del name, value
        self._edits += 1
        context = contexts.current()
        if context is None or not context.is_cross_replica or module in self._numbers:
            return
        if context.strategy.num_replicas_in_sync == self._transport.world_size:
            number = self._numbers[module] = next(self._next_number)
            self._noted[number] = module

    def _up_to_date(self) -> list[ModuleRoot]:
        if self._seen != (self._edits, len(self._noted)):
            self._find_roots()
            self._seen = (self._edits, len(self._noted))
        for root in self._roots.values():
            root.refresh()
        roots = [root for _, root in sorted(self._roots.items()) if not root.without_shape]
        new = [root for root in roots if not root.is_common]
        if new:
            _take_chiefs_values(self._transport, new)
        self._have_buffers = self._have_buffers or any(root.buffers for root in roots)
        return roots

    def _find_roots(self) -> None:
        noted = dict(self._noted.items())
        inner = {id(child) for module in noted.values() for child in module.modules() if child is not module}
        found = {
            number: module
            for number, module in noted.items()
            if id(module) not in inner and not isinstance(module, keras.Layer)
        }
        for number in self._roots.keys() - found.keys():
            self._roots.pop(number).close()
        for number, module in found.items():
            if number in self._roots:
                self._roots[number].read(module)
            else:
                self._roots[number] = ModuleRoot(self._transport, number, module)

    def _check_summed(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if not self._transport.is_in_run or optimizer in self._warned:
            return
        summed = {id(parameter) for root in self._roots.values() for parameter in root.parameters}
        own = [
            parameter.grad.numel()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and id(parameter) not in summed
        ]
        if not own or self._reduced_numbers >= sum(own):
            return
        self._warned.add(optimizer)
        if self._transport.rank == _CHIEF:
            _logger.warning(
                "%s changes %d parameters in strategy.run() by gradients of this replica alone, so the replicas drift "
                "apart: make their modules inside `with strategy.scope():`, and not by copy.deepcopy, or sum the "
                "gradients with get_replica_context().all_reduce",
                type(optimizer).__name__,
                len(own),
            )


def _take_chiefs_values(transport: Transport, roots: Sequence[ModuleRoot]) -> None:
    mine = [root.describe() for root in roots]
    for replica, theirs in enumerate(transport.all_gather_object(mine)):
        if theirs != mine:
            here, there = _first_difference(mine, theirs)
            raise StructureMismatchError(
                f"replica {transport.rank} made {here} in strategy.scope(), but replica {replica} made {there}",
                fix="make the same modules in every process, in the same order",
            )
    values = [value for root in roots for value in root.values()]
    with transport.from_source(_CHIEF, None, values, "the first values of modules") as (_, chiefs):
        if transport.rank != _CHIEF:
            for value, chiefs_value in zip(values, chiefs, strict=True):
                value.copy_(chiefs_value)
    for root in roots:
        root.is_common = True


def _first_difference(mine: Sequence[Any], theirs: Sequence[Any]) -> tuple[str, str]:
    for (label, parts), (other_label, other_parts) in zip(mine, theirs, strict=False):
        if label != other_label:
            return label, other_label
        for one, other in itertools.zip_longest(parts, other_parts):
            if one != other:
                return f"{label} with {_said(one)}", f"it with {_said(other)}"
    return f"{len(mine)} modules", f"{len(theirs)}"


def _said(part: tuple[str, str, tuple[int, ...]] | None) -> str:
    return "nothing in its place" if part is None else f"{part[0]} {list(part[2])} {part[1]}"
