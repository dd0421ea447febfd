# SPDX-License-Identifier: Apache-2.0
"""`Model.fit` under TensorFlow's own MirroredStrategy, on logical CPU devices of one process."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from _model import build
from _workloads import GLOBAL_BATCH, Workload

_REPLICAS = 2


class TensorFlowFit:
    """TensorFlow with its default threads."""

    def __init__(self, workload: Workload) -> None:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * _REPLICAS)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(_REPLICAS)])
        with strategy.scope():
            self._model = build(workload)

    def threads(self) -> str:
        """What the process computes with."""
        threading = tf.config.threading
        settings = (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
        # 0 is TensorFlow's word for as many as there are cores.
        return "intra {}, inter {}".format(*(setting or "all cores" for setting in settings))

    def train(self, x: Any, y: Any) -> None:
        """One pass over the rows."""
        self._model.fit(x, y, batch_size=GLOBAL_BATCH, verbose=0)
