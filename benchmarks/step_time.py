# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a training step: Keras alone, Stratagem, a loop by hand in DistributedDataParallel, TensorFlow.

    python benchmarks/step_time.py --model mobilenet96 --starts 2 --rounds 4

All contestants are started together. Then they take turns, round by round, so that what else happens on the machine
hits all alike; a ratio is the median over rounds of the ratio within a round. They are started more than once because
where a process happens to lie in memory can favour it for its whole life. A turn is a whole call of `fit` (or a pass
of the loop by hand), with all that it costs, divided by its steps.
"""

from __future__ import annotations

import _rounds
from _contestant import Contestant

_NO_FAST_PATHS = {"STRATAGEM_FAST_PATHS": "0"}

CONTESTANTS = (
    Contestant(letter="a", title="Keras on torch, fit", trainer="_with_keras:PlainFit", processes=1, threads=2),
    Contestant(letter="b", title="Stratagem, R = 1, fit", trainer="_with_keras:MirroredFit", processes=1, threads=2),
    Contestant(
        letter="b0",
        title="b without fast paths",
        trainer="_with_keras:MirroredFit",
        processes=1,
        threads=2,
        env=_NO_FAST_PATHS,
    ),
    Contestant(letter="c", title="Stratagem, R = 2, fit", trainer="_with_keras:MirroredFit", processes=2, threads=1),
    Contestant(
        letter="c0",
        title="c without fast paths",
        trainer="_with_keras:MirroredFit",
        processes=2,
        threads=1,
        env=_NO_FAST_PATHS,
    ),
    Contestant(
        letter="d",
        title="loop by hand, DistributedDataParallel",
        trainer="_with_ddp:HandLoop",
        processes=2,
        threads=1,
    ),
    Contestant(
        letter="d1",
        title="d with our fast paths",
        trainer="_with_ddp:HandLoopWithOurKernels",
        processes=2,
        threads=1,
    ),
    Contestant(
        letter="e",
        title="TensorFlow, 2 logical CPUs, fit",
        trainer="_with_tensorflow:TensorFlowFit",
        processes=1,
        threads=2,
        backend="tensorflow",
    ),
)

RATIOS = (
    ("c", "d", "fit, R = 2, against DistributedDataParallel"),
    ("c0", "d", "the same, both with Keras's own kernels"),
    ("c", "d1", "the same, both with our kernels"),
    ("b", "a", "fit, R = 1, against plain Keras"),
    ("b0", "a", "the same, both with Keras's own kernels"),
    ("c", "a", "fit, R = 2, against plain Keras"),
    ("e", "c", "TensorFlow's MirroredStrategy against fit, R = 2"),
)


if __name__ == "__main__":
    _rounds.compare(CONTESTANTS, RATIOS, ("mobilenet96", "mobilenet224", "mlp", "transformer"), __doc__ or "")
