# SPDX-License-Identifier: Apache-2.0
"""One replica's training, test and prediction steps, exact over all replicas."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from keras import tree
from keras.utils import unpack_x_y_sample_weight

from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.torch._gradients import GradientReducer
from stratagem.engines.torch._transport import Transport
from stratagem.keras_fit import _model, _step
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch._metrics import MetricStates
from stratagem.keras_fit._torch._replica_state import ReplicaState


class Steps:
    """The steps of one compiled, built model.

    Args:
        model: Compiled and built.
        transport: Of the job.
    """

    def __init__(self, model: Any, transport: Transport) -> None:
        # Weakly: the steps are kept for as long as the model lives, and must not be what keeps it.
        self._reference = weakref.ref(model)
        self._transport = transport
        self._weights = list(model.trainable_weights)
        self._metrics = MetricStates(_model.metrics(model), _model.loss_trackers(model))
        self._state = ReplicaState(_model.replica_variables(model))
        self._own_train_step = _model.overrides(model, "train_step")
        self._own_test_step = _model.overrides(model, "test_step")
        self._weighs_losses = not _model.overrides(model, "compute_loss")
        self._own_compute_metrics = _model.overrides(model, "compute_metrics")
        parameters = [] if self._own_train_step else [weight._value for weight in self._weights]
        self._training = GradientReducer(transport, parameters, {**self._metrics.extras(), **self._state.extras()})
        self._testing = GradientReducer(transport, [], self._metrics.extras())
        _take_chiefs_values(model, transport)

    @property
    def _model(self) -> Any:
        return self._reference()

    def fit(self, model: Any) -> bool:
        """Whether these steps are still right for what `model` holds now."""
        weights = model.trainable_weights
        return (
            len(weights) == len(self._weights)
            and all(mine is theirs for mine, theirs in zip(self._weights, weights, strict=True))
            and self._metrics.holds(_model.metrics(model))
            and self._state.holds(_model.replica_variables(model))
        )

    def close(self) -> None:
        """Take the hooks off the model's parameters."""
        self._training.close()
        self._testing.close()

    def train(self, step: Step, data: Any) -> dict[str, Any]:
        """One training step; the logs are those of the global batch."""
        step.weighs_losses = self._weighs_losses and not self._own_train_step
        step.reduces_gradients = self._own_train_step
        with _step.running(step):
            self._state.begin()
            self._metrics.begin()
            if self._own_train_step:
                logs = self._model.train_step(data)
                self._send(step)
                self._training.finish()
            else:
                logs = None
                self._stock_train(step, data)
            self._state.end(step, self._training.extra_total)
            self._metrics.end(step, self._training.extra_total)
        return self._logs(step, logs)

    def test(self, step: Step, data: Any) -> dict[str, Any]:
        """One test step; the logs are those of the global batch."""
        step.weighs_losses = self._weighs_losses and not self._own_test_step
        with _step.running(step), torch.no_grad():
            self._metrics.begin()
            if self._own_test_step:
                logs = self._model.test_step(data)
            else:
                logs = None
                self._forward(step, data, training=False)
            self._testing.start()
            self._metrics.contribute(step, self._testing.extra, terms=not self._own_test_step)
            self._testing.finish()
            self._metrics.end(step, self._testing.extra_total)
        return self._logs(step, logs)

    def predict(self, step: Step, data: Any) -> Any:
        """One prediction step; the outputs are those of the global batch, in order."""
        with _step.running(step), torch.no_grad():
            outputs = self._model.predict_step(data)
        flat = [torch.as_tensor(output) for output in tree.flatten(outputs)]
        mine = flat if step.counts else [output[:0] for output in flat]
        return tree.pack_sequence_as(outputs, self._transport.all_gather(mine, axis=0))

    def _stock_train(self, step: Step, data: Any) -> None:
        model = self._model
        self._training.start(contributes=step.counts)
        loss = self._forward(step, data, training=True)
        if not step.weighs_losses:
            loss = loss * step.share.fraction
        if not step.counts:
            # It still runs backwards: synchronised layers of all replicas meet there, and it must add nothing to them.
            loss = loss * 0.0
        self._send(step)
        if self._weights:
            model.optimizer.scale_loss(loss).backward()
        gradients = self._training.finish(contributes=step.counts)
        if self._weights:
            with torch.no_grad():
                model.optimizer.apply(gradients, self._weights)

    def _forward(self, step: Step, data: Any, *, training: bool) -> torch.Tensor:
        """The loss, with the metrics updated; what `train_step` and `test_step` of Keras have in common."""
        model = self._model
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        # A loss that did not weigh itself, or has no reduction, becomes a mean over this replica's rows; the tracker
        # takes terms of a sum.
        weighed = step.weighs_losses and loss.ndim == 0
        term = loss if weighed else loss * step.share.fraction
        rows = next(part for part in tree.flatten(x) if part is not None).shape[0]
        model._loss_tracker.update_state(term.detach(), sample_weight=rows)
        with torch.no_grad():
            if self._own_compute_metrics:
                model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            elif model._compile_metrics is not None:
                model._compile_metrics.update_state(y, y_pred, sample_weight)
        return loss

    def _send(self, step: Step) -> None:
        self._metrics.contribute(step, self._training.extra, terms=not self._own_train_step)
        self._state.contribute(step, self._training.extra)

    def _logs(self, step: Step, own_logs: Any) -> dict[str, Any]:
        """Keras's logs from the global metric states; of what a user's step returned besides, the mean by rows."""
        logs = self._model.get_metrics_result()
        if not isinstance(own_logs, dict):
            return logs
        containers = {metric.name: metric for metric in self._model.metrics if metric.name not in logs}
        return {
            name: logs[name]
            if name in logs
            else containers[name].result()
            if name in containers
            else tree.map_structure(lambda part: _mean_by_rows(step, part), value)
            for name, value in own_logs.items()
        }


def _take_chiefs_values(model: Any, transport: Transport) -> None:
    """Start from the same weights and optimizer state everywhere: replica 0's, as a mirrored variable does."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.weights, *(optimizer.variables if optimizer is not None else [])]
    values = [variable._value.detach() for variable in variables]
    with transport.from_source(0, None, values, "the first weights") as (_, chiefs):
        if transport.rank != 0:
            for value, chiefs_value in zip(values, chiefs, strict=True):
                value.copy_(chiefs_value)


def _mean_by_rows(step: Step, value: Any) -> Any:
    engine = select.engine()
    if not (engine.is_tensor(value) or isinstance(value, (bool, int, float, np.ndarray, np.generic))):
        return value
    part = engine.to_tensor(value).detach().double() * step.share.fraction
    return step.transport.all_reduce(Reduction.SUM, [part])[0].float()


class SingleSteps:
    """Keras's own steps, for one replica."""

    def __init__(self, model: Any) -> None:
        self._reference = weakref.ref(model)

    @property
    def _model(self) -> Any:
        return self._reference()

    def fit(self, model: Any) -> bool:
        """Keras's steps read the model anew each time."""
        return True

    def close(self) -> None:
        """Nothing was attached."""

    def train(self, step: Step, data: Any) -> Any:
        """`Model.train_step`."""
        return self._call(step, self._model.train_step, data)

    def test(self, step: Step, data: Any) -> Any:
        """`Model.test_step`."""
        with torch.no_grad():
            return self._call(step, self._model.test_step, data)

    def predict(self, step: Step, data: Any) -> Any:
        """`Model.predict_step`."""
        with torch.no_grad():
            return self._call(step, self._model.predict_step, data)

    def _call(self, step: Step, function: Callable[[Any], Any], data: Any) -> Any:
        with _step.running(step):
            return function(data)
