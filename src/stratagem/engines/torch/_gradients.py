# SPDX-License-Identifier: Apache-2.0
"""Gradients summed over replicas while the backward pass is still running."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from stratagem.engines.torch._buckets import Slice, plan_buckets
from stratagem.engines.torch._transport import Transport

_PRESENT = "which parameters have gradients"


class GradientReducer:
    """Sums the gradients of `parameters`, and small tensors that ride along, over all replicas.

    In a step: `start()`, fill `extra(name)`, run `backward()`, `finish()`. A bucket travels as soon as the
    backward pass has made the last gradient in it.

    Args:
        transport: Of the job.
        parameters: The leaves whose `grad` is to be summed; the same on every replica.
        extras: Dtype and shape of each tensor that rides along, by name.
        bucket_bytes: Aimed at for all buckets but the first, which is smaller; the transport's if not given.
    """

    def __init__(
        self,
        transport: Transport,
        parameters: Sequence[torch.Tensor],
        extras: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        bucket_bytes: int | None = None,
    ) -> None:
        self._parameters = list(parameters)
        layout = plan_buckets(
            [(parameter.dtype, tuple(parameter.shape)) for parameter in parameters],
            {**extras, _PRESENT: (torch.float32, (len(parameters),))},
            transport.bucket_bytes if bucket_bytes is None else bucket_bytes,
        )
        self._channel = transport.bucket_channel(layout)
        self._num_buckets = layout.num_buckets
        self._places = layout.parameters
        self._extras = layout.extras
        # Buckets with extras wait for `finish`, which fills in what is known only then.
        self._late = {place.bucket for place in layout.extras.values()}
        self._members: list[list[int]] = [[] for _ in range(layout.num_buckets)]
        for index, place in enumerate(layout.parameters):
            self._members[place.bucket].append(index)
        self._views = [self._view(place, total=False) for place in layout.parameters]
        self._results: list[torch.Tensor] | None = None
        self._missing = [0] * layout.num_buckets
        self._posted: set[int] = set()
        self._running = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._on_gradient, place.bucket))
            for parameter, place in zip(self._parameters, layout.parameters, strict=True)
        ]

    def extra(self, name: str) -> torch.Tensor:
        """Where this replica writes what rides along, between `start` and `finish`."""
        return self._view(self._extras[name], total=False)

    def extra_total(self, name: str) -> torch.Tensor:
        """Its sum over replicas after `finish`; valid until the next `finish`, and not to be written to."""
        return self._view(self._extras[name], total=True)

    def start(self, contributes: bool = True) -> None:
        """Begin a step; gradients made from now on are this step's.

        Args:
            contributes: As for `finish`, if it is known by now; else a backward pass must not run where it is False.
        """
        for parameter in self._parameters:
            parameter.grad = None
        self._missing = [len(members) for members in self._members]
        self._posted.clear()
        self._running = contributes

    def finish(self, contributes: bool = True) -> list[torch.Tensor | None]:
        """Wait for the sums.

        Args:
            contributes: Whether this replica's gradients count; else it adds zeros.

        Returns:
            Per parameter its summed gradient, or None where no replica has one. Valid until the next `finish`,
            and not to be written to.

        Raises:
            CollectiveTimeoutError: a replica did not finish its backward pass in time.
        """
        self._running = False
        has_gradient = [contributes and parameter.grad is not None for parameter in self._parameters]
        self.extra(_PRESENT).copy_(torch.tensor(has_gradient, dtype=torch.float32))
        for bucket in range(self._num_buckets):
            if bucket not in self._posted:
                self._copy(bucket, has_gradient)
                self._channel.post(bucket)
        self._channel.finish()
        if self._results is None:
            self._results = [self._view(place, total=True) for place in self._places]
        if all(has_gradient):
            return list(self._results)
        present = self.extra_total(_PRESENT).tolist()
        return [result if count else None for result, count in zip(self._results, present, strict=True)]

    def close(self) -> None:
        """Leave the parameters as they were."""
        for hook in self._hooks:
            hook.remove()

    def _on_gradient(self, bucket: int, parameter: torch.Tensor) -> None:
        if not self._running:
            return
        self._missing[bucket] -= 1
        if self._missing[bucket] == 0 and bucket not in self._late:
            self._copy(bucket, None)
            self._posted.add(bucket)
            self._channel.post(bucket)

    def _copy(self, bucket: int, has_gradient: Sequence[bool] | None) -> None:
        views, gradients = [], []
        for index in self._members[bucket]:
            gradient = self._parameters[index].grad
            if (has_gradient is None or has_gradient[index]) and gradient is not None:
                views.append(self._views[index])
                gradients.append(gradient)
            else:
                self._views[index].zero_()
        if views:
            torch._foreach_copy_(views, gradients)

    def _view(self, place: Slice, *, total: bool) -> torch.Tensor:
        buffer = self._channel.total(place.bucket) if total else self._channel.local(place.bucket)
        return buffer[place.start : place.start + place.numel].view(place.shape)
