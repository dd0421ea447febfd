# SPDX-License-Identifier: Apache-2.0
"""Checks that all workers are set up alike: tasks, cluster, versions, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stratagem.doctor._check import Check, failed, ok, warning
from stratagem.doctor._report import Report, View

__all__ = ["clock_check", "cluster_agreement", "distinct_check", "versions_agreement"]

_CLOCK_LIMIT_SECONDS = 1.0


def distinct_check(view: View) -> Check:
    """D15: no two workers say to be the same task."""
    counts = Counter(report.task for report in view.reports)
    twice = [task for task, count in counts.items() if count > 1]
    if not twice:
        return ok("D15", "each worker has a task of its own")
    return failed(
        "D15",
        [
            f"{task} is what {counts[task]} workers say to be: {', '.join(_where(one) for one in view.of(task))}"
            for task in twice
        ],
        "give each worker its own index in TF_CONFIG, or --task-index",
    )


def cluster_agreement(view: View) -> Check:
    """D16: all were given the same tasks at the same addresses."""
    differing = [report for report in view.others if report.tasks != view.me.tasks]
    if not differing:
        return ok("D16", "all workers were given the same cluster")
    return failed(
        "D16",
        [
            f"{_who(view, one)} was given another cluster than {view.me.task}: {_difference(view.me, one)}"
            for one in differing
        ],
        "give all workers the same cluster, in the same order; only the task differs",
    )


def versions_agreement(view: View) -> Check:
    """D18: all run the same versions."""
    texts: list[str] = []
    patches_only = True
    for name in dict.fromkeys(name for report in view.reports for name in _facts(report)):
        of = {_who(view, report): _facts(report).get(name, "") for report in view.reports}
        usual = Counter(of.values()).most_common(1)[0][0]
        others = [f"{version or 'none'} on {who}" for who, version in of.items() if version != usual]
        if others:
            most = [who for who, version in of.items() if version == usual]
            texts.append(f"{name} is {', '.join(others)}, but {usual or 'none'} on {', '.join(most)}")
            minors = {version.rpartition(".")[0] for version in of.values()}
            patches_only = patches_only and name == "python" and len(minors) == 1
    if not texts:
        return ok("D18", "all workers have the same versions and backend")
    fix = "install the same versions on all workers, from one requirements file or image"
    return warning("D18", texts, fix) if patches_only else failed("D18", texts, fix)


def clock_check(view: View) -> Check:
    """D19: the clocks agree to within a second, as those who could be asked directly say."""
    apart = dict(_offsets(view))
    if not apart:
        return ok("D19", "no other worker's clock could be asked")
    worst = max(abs(seconds) for seconds in apart.values())
    if worst <= _CLOCK_LIMIT_SECONDS:
        return ok("D19", f"the clocks are at most {max(worst, 0.001):.3f} seconds apart")
    return warning(
        "D19",
        [
            f"the clock of {task} is {abs(seconds):.1f} seconds {'ahead of' if seconds > 0 else 'behind'} "
            f"{view.me.task}'s"
            for task, seconds in apart.items()
            if abs(seconds) > _CLOCK_LIMIT_SECONDS
        ],
        "let a time service set it: sudo timedatectl set-ntp true",
    )


def _offsets(view: View) -> Iterator[tuple[str, float]]:
    """How far each other worker's clock is ahead of this one's, from whichever of the two has asked the other."""
    for other in view.others:
        calls = view.me.calls.get(other.task), other.calls.get(view.me.task)
        for call, asked, sign in zip(calls, (other, view.me), (1, -1), strict=True):
            if call is not None and call.clock_offset_seconds is not None and call.answered_by == asked.nonce:
                yield other.task, sign * call.clock_offset_seconds
                break


def _facts(report: Report) -> dict[str, str]:
    return {"backend": report.backend, **report.versions}


def _difference(mine: Report, theirs: Report) -> str:
    here, there = dict(mine.tasks), dict(theirs.tasks)
    for task in (*here, *there):
        if here.get(task) != there.get(task):
            return f"{task} is {there.get(task) or 'missing'} there, {here.get(task) or 'missing'} here"
    return "its order differs"


def _who(view: View, report: Report) -> str:
    """The worker's task, with its host where two say the same."""
    return report.task if len(view.of(report.task)) == 1 else f"{report.task} on {_where(report)}"


def _where(report: Report) -> str:
    return f"host {report.host}" + (f" ({report.ip})" if report.ip else "")
