# SPDX-License-Identifier: Apache-2.0
"""How the command shows a diagnosis."""

from __future__ import annotations

import json

from stratagem.cli import _doctor
from stratagem.doctor import Diagnosis
from stratagem.doctor._check import LOCAL_CODES, NAMES, failed, ok, skipped, warning

CHECKS = (
    ok("D05", "room enough"),
    warning("D13", ["one", "two"], "mend it"),
    failed("D17", "worker:0 can't reach \x1b[31mworker:1\n", "open it"),
    skipped("D19", "nobody came"),
    skipped("D20", "nobody came"),
)
DIAGNOSIS = Diagnosis(task="worker:0", checks=CHECKS)


def test_each_check_is_a_line_and_those_skipped_for_one_reason_share_theirs() -> None:
    lines = [" ".join(line.split()) for line in _doctor.plain_lines(DIAGNOSIS)]
    assert lines == [
        "D05 ok shared memory room enough",
        "D13 warning own host name one; two",
        "fix: mend it",
        "D17 failed ports reachable worker:0 can't reach ?[31mworker:1?",
        "fix: open it",
        "D19-D20 skipped 2 checks nobody came",
        "stratagem doctor, worker:0: 1 failed",
    ]


def test_json_has_every_check() -> None:
    said = json.loads(json.dumps(_doctor.to_json(DIAGNOSIS)))
    assert (said["healthy"], said["task"]) == (False, "worker:0")
    assert [check["code"] for check in said["checks"]] == ["D05", "D13", "D17", "D19", "D20"]
    assert said["checks"][1] == {
        "code": "D13",
        "name": "own host name",
        "verdict": "warning",
        "text": "one; two",
        "fix": "mend it",
    }


def test_warnings_do_not_make_a_host_unhealthy() -> None:
    assert Diagnosis(task=None, checks=CHECKS[:2]).healthy


def test_the_page_of_the_doctor_has_a_section_for_each_code(pytestconfig: object) -> None:
    page = (pytestconfig.rootpath / "docs" / "doctor.md").read_text()  # type: ignore[attr-defined]
    assert [code for code in NAMES if f"| {code} |" not in page] == []
    assert LOCAL_CODES == ("D01", "D02", "D03", "D04", "D05", "D06")
