# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a training step on jax: Stratagem, a loop by hand, Keras alone and with DataParallel; and torch.

    python benchmarks/step_time_jax.py --model transformer --starts 2 --rounds 4

Contestants take turns as in step_time.py. Each on jax is one process, whose CPU devices share the machine's cores.
"""

from __future__ import annotations

import _rounds
from _contestant import Contestant


def _on_jax(letter: str, title: str, trainer: str, devices: int) -> Contestant:
    # Several devices get the pool of threads that Stratagem would ask for: with less, XLA's collectives starve.
    env = {"NPROC": str(2 * devices)} if devices > 1 else {}
    return Contestant(letter=letter, title=title, trainer=trainer, processes=1, backend="jax", devices=devices, env=env)


_FIT, _HAND, _PARALLEL = "_with_keras:MirroredFit", "_with_jax:HandLoop", "_with_jax:DataParallelFit"

CONTESTANTS = (
    _on_jax("p", "Keras on jax, fit, one device", "_with_keras:PlainFit", 1),
    _on_jax("s1", "Stratagem, R = 1, fit", _FIT, 1),
    _on_jax("s2", "Stratagem, R = 2, fit", _FIT, 2),
    _on_jax("h2", "loop by hand, shard_map, 2 devices", _HAND, 2),
    _on_jax("k2", "Keras on jax, DataParallel, 2 devices, fit", _PARALLEL, 2),
    _on_jax("s4", "Stratagem, R = 4, fit", _FIT, 4),
    _on_jax("h4", "loop by hand, shard_map, 4 devices", _HAND, 4),
    _on_jax("k4", "Keras on jax, DataParallel, 4 devices, fit", _PARALLEL, 4),
    Contestant(letter="tp", title="Keras on torch, fit", trainer="_with_keras:PlainFit", processes=1, threads=2),
    Contestant(letter="t2", title="Stratagem on torch, R = 2, fit", trainer=_FIT, processes=2, threads=1),
)

RATIOS = (
    ("s2", "h2", "fit, R = 2, against the loop by hand"),
    ("s4", "h4", "fit, R = 4, against the loop by hand"),
    ("s2", "k2", "fit, R = 2, against DataParallel"),
    ("s4", "k4", "fit, R = 4, against DataParallel"),
    ("s1", "p", "fit, R = 1, against plain Keras"),
    ("s2", "p", "fit, R = 2, against plain Keras"),
    ("p", "tp", "plain Keras, jax against torch"),
    ("s2", "t2", "fit, R = 2, jax against torch"),
)

if __name__ == "__main__":
    _rounds.compare(CONTESTANTS, RATIOS, ("mlp", "transformer", "mobilenet96"), __doc__ or "")
