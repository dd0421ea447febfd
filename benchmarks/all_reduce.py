# SPDX-License-Identifier: Apache-2.0
"""How fast two processes of one host sum their gradients: through shared memory, and with gloo.

    python benchmarks/all_reduce.py --rounds 30
    python benchmarks/all_reduce.py --rounds 30 --transport process_group

With `--transport process_group` our own ways use gloo too, as between hosts. "In place" is the sum alone, of gradients
that already lie in the buckets; "copied in" includes the copy into them, as in training; "checked" is `all_reduce` of
one tensor, as in `strategy.run`, which first makes sure that all replicas do the same, and returns a new tensor; so
does "gloo, apart", while "gloo" sums in place. GB/s is the size of the
gradients over the time. The ways take turns, round by round.
"""

from __future__ import annotations

import argparse
import statistics

import _late
import _machine

from stratagem.testing import ReplicaPool

_PROCESSES = 2
_WAYS = ("gloo", "gloo, apart", "in place", "copied in", "checked")
# What each of our ways is compared with: one that also leaves the tensor that it was given as it was, or does not.
_COMPARED = (("gloo", "in place"), ("gloo", "copied in"), ("gloo", "checked"), ("gloo, apart", "checked"))
_BYTES_PER_MIB = 1024 * 1024


def main() -> None:
    args = _arguments()
    print(f"{_PROCESSES} processes of 1 thread, {args.rounds} rounds\n{_machine.describe()}", flush=True)
    print(
        "\n| MiB | "
        + " | ".join(f"{way}: median ms, min ms, GB/s" for way in _WAYS)
        + "".join(f" | {theirs} / {ours}" for theirs, ours in _COMPARED)
        + " |"
    )
    print("| --- " * (1 + len(_WAYS) + len(_COMPARED)) + "|")
    environment = {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "STRATAGEM_TRANSPORT": args.transport}
    with ReplicaPool(replicas=_PROCESSES, cpu_devices=_PROCESSES, env=environment) as pool:
        pool.run(_late.call, "_reductions:prepare", args.sizes)
        for size in args.sizes:
            seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
            for _ in range(args.rounds):
                for way in _WAYS:
                    seconds[way].append(max(pool.run(_late.call, "_reductions:measure", way, size)))
            _print_row(size, seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100], help="of the gradients, in MiB")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--transport", choices=("auto", "process_group"), default="auto")
    return parser.parse_args()


def _print_row(size: int, seconds: dict[str, list[float]]) -> None:
    cells = []
    for times in seconds.values():
        median = statistics.median(times)
        rate = size * _BYTES_PER_MIB / median / 1e9
        cells.append(f"{1e3 * median:.2f}, {1e3 * min(times):.2f}, {rate:.1f}")
    for theirs, ours in _COMPARED:
        ratio = statistics.median(raw / own for raw, own in zip(seconds[theirs], seconds[ours], strict=True))
        cells.append(f"{ratio:.2f}")
    print(f"| {size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
