# SPDX-License-Identifier: Apache-2.0
"""Reports travel unchanged, newer ones win, and what is none is refused."""

from __future__ import annotations

import json

import pytest

from stratagem.doctor._report import REACHED, Call, Report, Table

ME = Report(task="worker:0", host="a", tasks=(("worker:0", "a:1"), ("worker:1", "b:1")))


def test_a_report_travels_unchanged() -> None:
    sent = Report(
        task="worker:1",
        host="b",
        tasks=ME.tasks,
        versions={"keras": "3.15.1"},
        calls={"worker:0": Call(how=REACHED, answered_by="x", clock_offset_seconds=0.1)},
        sees=("x",),
        reduction={"problem": "no"},
    )
    assert Report.of_json(json.loads(json.dumps(sent.to_json()))) == sent


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": 1},
        {"calls": {"worker:0": 1}},
        {"tasks": ["a"]},
        {"versions": []},
        {"nonce": 5},
        {"number": "9"},
        {"reduction": "all"},
        {"more": 1},
        {"task": None},
    ],
)
def test_what_is_no_report_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Report.of_json({**ME.to_json(), **changes})
    with pytest.raises(ValueError):
        Report.of_json(["a list"])


def test_the_newer_report_wins_and_nobody_speaks_for_this_worker() -> None:
    table = Table(ME)
    newer = Report(task="worker:1", host="b", nonce="n", number=3)
    older = Report(task="worker:1", host="old", nonce="n", number=2)
    impostor = Report(task="worker:9", host="z", nonce=ME.nonce, number=99)
    table.merge([newer, older, impostor])
    assert [report.host for report in table.view().others] == ["b"]
    assert table.view().me == ME
    assert table.newer_than({"n": 3, ME.nonce: 0}) == []
    assert table.newer_than({"n": 2, ME.nonce: 0}) == [newer]


def test_a_call_that_got_through_stays_and_silence_does_not_hide_a_refusal() -> None:
    table = Table(ME)

    def after(how: str) -> str:
        table.note_call("worker:1", Call(how=how))
        return table.view().me.calls["worker:1"].how

    assert [after(how) for how in ("timed out", "refused", "timed out", "no route")] == [
        "timed out",
        "refused",
        "refused",
        "no route",
    ]
    assert [after(how) for how in (REACHED, "refused")] == [REACHED, REACHED]


def test_a_worker_knows_when_all_have_its_newest_report() -> None:
    table = Table(ME)
    table.update(done=True)
    assert table.told_all()
    table.note_knowledge("n", {ME.nonce: 0})
    assert not table.told_all()
    table.note_knowledge("n", {ME.nonce: 1})
    assert table.told_all()
