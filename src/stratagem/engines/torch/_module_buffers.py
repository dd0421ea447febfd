# SPDX-License-Identifier: Apache-2.0
"""What the replicas make of the buffers of modules in one call of `strategy.run`: equal on all of them afterwards.

Of floating-point buffers, such as BatchNorm's running statistics, the old value plus the mean of the replicas' changes,
weighted by rows, stays, as of the moving statistics of Keras's layers. Of integers, such as the number of batches,
replica 0's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from stratagem._core import nest
from stratagem._core.enums import Reduction
from stratagem.engines.torch._transport import Transport
from stratagem.errors import StructureMismatchError

__all__ = ["Buffer", "BuffersBefore", "buffers_of", "rows_of"]

_CHIEF = 0


class Buffer:
    """A buffer's place in a module, as its tensor may be another one at each step.

    Args:
        name: Unique in the job, and the same in every process.
        owner: The module that has it.
        attribute: Its name there.
    """

    def __init__(self, name: str, owner: torch.nn.Module, attribute: str) -> None:
        self.name = name
        self._owner = weakref.ref(owner)
        self._attribute = attribute

    @property
    def tensor(self) -> torch.Tensor | None:
        """The buffer; None where there is none any more."""
        return getattr(self._owner(), self._attribute, None)


def buffers_of(label: str, module: torch.nn.Module) -> list[Buffer]:
    """All buffers in `module`; `label` is the first part of their names."""
    return [
        Buffer(".".join(filter(None, (label, path, attribute))), owner, attribute)
        for path, owner in module.named_modules()
        for attribute, _ in owner.named_buffers(recurse=False)
    ]


class BuffersBefore:
    """The values that all replicas start from.

    Args:
        buffers: Whose.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = {buffer.name: buffer for buffer in buffers}
        self._before = {
            buffer.name: tensor.detach().clone() for buffer in buffers if (tensor := buffer.tensor) is not None
        }

    @torch.no_grad()
    def agree(self, transport: Transport, rows: int | None) -> None:
        """Make the buffers equal on all replicas; a collective.

        Args:
            transport: Of the job.
            rows: Of this replica; None where that is not known, and all replicas count the same.
        """
        said = transport.all_gather_object((rows, self._changed()))
        names = list(dict.fromkeys(name for _, changed in said for name in changed))
        if not names:
            return
        counts = [1 if count is None else count for count, _ in said]
        weight = counts[transport.rank] / max(sum(counts), 1)
        buffers = [self._tensor(name, transport.rank) for name in names]
        parts = [self._part(name, tensor, transport.rank, weight) for name, tensor in zip(names, buffers, strict=True)]
        for name, tensor, total in zip(names, buffers, transport.all_reduce(Reduction.SUM, parts), strict=True):
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.copy_(self._start(name, tensor).to(total.dtype) + total)
            else:
                tensor.copy_(total)

    def _changed(self) -> list[str]:
        names: list[str] = []
        flags: list[torch.Tensor] = []
        for name, buffer in self._buffers.items():
            now, before = buffer.tensor, self._before.get(name)
            if now is None:
                continue
            names.append(name)
            fits = before is not None and before.shape == now.shape and before.dtype == now.dtype
            flags.append((now != before).any() if fits else torch.ones((), dtype=torch.bool, device=now.device))
        # One look at a device's memory, not one for each.
        differ = torch.stack(flags).tolist() if flags else []
        return [name for name, differs in zip(names, differ, strict=True) if differs]

    def _tensor(self, name: str, rank: int) -> torch.Tensor:
        tensor = self._buffers[name].tensor if name in self._buffers else None
        if tensor is None:
            raise StructureMismatchError(
                f"another replica changed the buffer {name} in strategy.run(), and replica {rank} does not have it",
                fix="make the same modules in every process",
            )
        return tensor

    def _start(self, name: str, now: torch.Tensor) -> torch.Tensor:
        before = self._before.get(name)
        if before is None or before.shape != now.shape:
            return torch.zeros_like(now)
        # A mask's infinities: the difference of two is no number.
        return torch.where(torch.isfinite(before), before, torch.zeros_like(before))

    def _part(self, name: str, now: torch.Tensor, rank: int, weight: float) -> torch.Tensor:
        now = now.detach()
        if now.is_floating_point() or now.is_complex():
            wide = torch.float32 if now.dtype.itemsize < 4 else now.dtype
            if weight == 0:
                return torch.zeros_like(now, dtype=wide)  # not times 0: what was computed without rows may be no number
            return (now.to(wide) - self._start(name, now).to(wide)) * weight
        of_chief = now if rank == _CHIEF else torch.zeros_like(now)
        return of_chief.to(torch.uint8) if now.dtype == torch.bool else of_chief


def rows_of(args: Any) -> int | None:
    """A replica's rows: the first dimension of the first array or tensor of its arguments; None if there is none."""
    for leaf in nest.flatten(args):
        shape = getattr(leaf, "shape", ())
        if len(shape) > 0:
            return int(shape[0])
    return None
