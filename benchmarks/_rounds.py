# SPDX-License-Identifier: Apache-2.0
"""Contestants that take turns, and the tables of what came out."""

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

# Numerator, denominator, and what the ratio shows.
Ratio = tuple[str, str, str]


def compare(contestants: Sequence[Contestant], ratios: Sequence[Ratio], models: Sequence[str], about: str) -> None:
    """Read the command line, let the contestants take turns, and print times and ratios.

    Args:
        contestants: All there are.
        ratios: Printed where both contestants ran.
        models: Keys of WORKLOADS to choose from; the first is the default.
        about: For --help.
    """
    args = _arguments(contestants, models, about)
    workload = WORKLOADS[args.model]
    steps = args.steps or workload.steps
    chosen = [contestant for contestant in contestants if not args.only or contestant.letter in args.only]
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
    print_ratios(ratios, seconds)


def _arguments(contestants: Sequence[Contestant], models: Sequence[str], about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models, default=models[0])
    parser.add_argument("--starts", type=int, default=2, help="how often all processes are started anew")
    parser.add_argument("--rounds", type=int, default=4, help="from each start")
    parser.add_argument("--steps", type=int, help="of each round; by default some seconds' worth")
    letters = [contestant.letter for contestant in contestants]
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


def print_ratios(ratios: Sequence[Ratio], seconds: Mapping[str, Sequence[float]]) -> None:
    """A table of the ratios whose contestants both ran."""
    print("\n| ratio | of what | median | min - max |")
    print("| --- " * 4 + "|")
    for above, below, title in ratios:
        if above in seconds and below in seconds:
            found = [over / under for over, under in zip(seconds[above], seconds[below], strict=True)]
            median = statistics.median(found)
            print(f"| {above}/{below} | {title} | {median:.3f} | {min(found):.3f} - {max(found):.3f} |")
