# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a training step: Keras alone, Stratagem, a loop by hand in DistributedDataParallel, TensorFlow.

    python benchmarks/step_time.py --model mobilenet96 --starts 2 --rounds 4

All contestants are started together. Then they take turns, round by round, so that what else happens on the machine
hits all alike; a ratio is the median over rounds of the ratio within a round. They are started more than once because
where a process happens to lie in memory can favour it for its whole life. A turn is a whole call of `fit` (or a pass
of the loop by hand), with all that it costs, divided by its steps.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import _machine
from _contestant import Contestant, Running
from _workloads import GLOBAL_BATCH, WORKLOADS

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

# Numerator, denominator, and what the ratio shows.
RATIOS = (
    ("c", "d", "fit, R = 2, against DistributedDataParallel"),
    ("c0", "d", "the same, both with Keras's own kernels"),
    ("c", "d1", "the same, both with our kernels"),
    ("b", "a", "fit, R = 1, against plain Keras"),
    ("b0", "a", "the same, both with Keras's own kernels"),
    ("c", "a", "fit, R = 2, against plain Keras"),
    ("e", "c", "TensorFlow's MirroredStrategy against fit, R = 2"),
)


def main() -> None:
    args = _arguments()
    workload = WORKLOADS[args.model]
    steps = args.steps or workload.steps
    chosen = [contestant for contestant in CONTESTANTS if not args.only or contestant.letter in args.only]
    print(f"{workload.title}, global batch {GLOBAL_BATCH}, {args.starts} x {args.rounds} rounds of {steps} steps")
    print(_machine.describe(), flush=True)
    seconds: dict[str, list[float]] = {contestant.letter: [] for contestant in chosen}
    threads: dict[str, str] = {}
    for _ in range(args.starts):
        with contextlib.ExitStack() as stack:
            running = {contestant.letter: stack.enter_context(Running(contestant, args.model)) for contestant in chosen}
            threads = _warm_up(running)
            for _ in range(args.rounds):
                for letter, contestant in running.items():
                    seconds[letter].append(contestant.seconds_per_step(steps))
    print_times(chosen, threads, seconds)
    print_ratios(seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(WORKLOADS), default="mobilenet96")
    parser.add_argument("--starts", type=int, default=2, help="how often all processes are started anew")
    parser.add_argument("--rounds", type=int, default=4, help="from each start")
    parser.add_argument("--steps", type=int, help="of each round; by default some seconds' worth")
    letters = [contestant.letter for contestant in CONTESTANTS]
    parser.add_argument("--only", nargs="+", choices=letters, help="these contestants only")
    return parser.parse_args()


def _warm_up(running: Mapping[str, Running]) -> dict[str, str]:
    """Get all ready, as many at a time as there are cores; what each computes with."""
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        return dict(zip(running, executor.map(Running.prepare, running.values()), strict=True))


def print_times(
    contestants: Sequence[Contestant], threads: Mapping[str, str], seconds: Mapping[str, Sequence[float]]
) -> None:
    """A table of step times."""
    print("\n|  | contestant | processes | threads of each | median ms | min ms |")
    print("| --- " * 6 + "|")
    for contestant in contestants:
        times = [1e3 * value for value in seconds[contestant.letter]]
        cells = [contestant.letter, contestant.title, contestant.processes, threads[contestant.letter]]
        print("|", " | ".join(map(str, cells)), f"| {statistics.median(times):.1f} | {min(times):.1f} |")


def print_ratios(seconds: Mapping[str, Sequence[float]]) -> None:
    """A table of the ratios whose contestants both ran."""
    print("\n| ratio | of what | median | min - max |")
    print("| --- " * 4 + "|")
    for above, below, title in RATIOS:
        if above in seconds and below in seconds:
            ratios = [over / under for over, under in zip(seconds[above], seconds[below], strict=True)]
            median = statistics.median(ratios)
            print(f"| {above}/{below} | {title} | {median:.3f} | {min(ratios):.3f} - {max(ratios):.3f} |")


if __name__ == "__main__":
    main()
