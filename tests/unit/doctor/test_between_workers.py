# SPDX-License-Identifier: Apache-2.0
"""D10 to D21: what the doctor makes of the reports of all workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stratagem.doctor import Verdict, _agreement, _all_reduce, _own_task, _reachability, _shared_folder
from stratagem.doctor._report import REACHED, Call, Report, View

TASKS = (("worker:0", "a:1"), ("worker:1", "b:2"), ("worker:2", "c:3"))


def report(index: int, **changes: Any) -> Report:
    """The report of a worker with which all is well."""
    task = f"worker:{index}"
    calls = {name: Call(how=REACHED, answered_by=name[-1], clock_offset_seconds=0.0) for name, _ in TASKS}
    made = Report(
        task=task,
        host=f"host-{index}",
        ip=f"10.0.0.{index}",
        tasks=TASKS,
        backend="torch",
        versions={"python": "3.12.1", "keras": "3.15.1", "numpy": "2.1.0"},
        calls=calls,
        settled=True,
        nonce=str(index),
    )
    return dataclasses.replace(made, **changes)


def view(*reports: Report) -> View:
    """What the first of `reports` knows."""
    return View(me=reports[0], others=reports[1:])


SOUND = view(report(0), report(1), report(2))


def unreached(index: int, **how: str) -> dict[str, Call]:
    """The calls of a worker of which some failed: unreached(0, worker_1="timed out")."""
    return {**report(index).calls, **{task.replace("_", ":"): Call(how=why) for task, why in how.items()}}


def test_sound_workers_pass_every_check() -> None:
    checks = [
        _own_task.names_check(SOUND),
        _own_task.port_check(SOUND),
        _reachability.presence_check(SOUND, 30),
        _agreement.distinct_check(SOUND),
        _agreement.cluster_agreement(SOUND),
        _reachability.ports_check(SOUND),
        _agreement.versions_agreement(SOUND),
        _agreement.clock_check(SOUND),
    ]
    assert [check.verdict for check in checks] == [Verdict.OK] * 8
    assert _all_reduce.obstacle(SOUND, {check.code: check for check in checks}) is None
    assert checks[5].text == "all 6 directions between 3 workers"


def test_those_who_can_not_reach_one_worker_share_a_sentence() -> None:
    lost = "timed out"
    seen = view(report(2), report(0, calls=unreached(0, worker_1=lost)), report(1))
    check = _reachability.ports_check(seen)
    assert check.text.startswith("worker:0 can't reach worker:1 (b:2), port 2: timed out")
    both = view(*seen.reports[1:], dataclasses.replace(seen.reports[0]))
    assert _reachability.ports_check(both).text == check.text
    two = view(report(0, calls=unreached(0, worker_1=lost)), report(1), report(2, calls=unreached(2, worker_1=lost)))
    check = _reachability.ports_check(two)
    assert check.text.startswith("worker:0, worker:2 can't reach worker:1 (b:2), port 2: timed out")
    assert check.fix == "on worker:1: sudo ufw allow proto tcp from any to any port 2"


def test_ways_to_fail_are_told_apart() -> None:
    calls = unreached(0, worker_1="refused", worker_2="stranger")
    check = _reachability.ports_check(view(report(0, calls=calls), report(1), report(2)))
    refused, stranger = check.text.split("; ")
    assert "port 2: refused: a firewall rejects" in refused
    assert "port 3: something answers that is no doctor" in stranger
    assert "on worker:2: end what listens at port 3" in str(check.fix)


def test_one_who_does_not_listen_is_no_matter_of_the_network() -> None:
    taken = report(1, port_problem="process 7 (nginx) has it")
    seen = view(report(0, calls=unreached(0, worker_1="stranger")), taken, report(2))
    assert _reachability.ports_check(seen).verdict is Verdict.OK
    check = _own_task.port_check(seen)
    assert check.text == "worker:1 can't listen at its port 2: process 7 (nginx) has it"
    assert "sport = :2'" in str(check.fix)


def test_absent_workers_are_named() -> None:
    check = _reachability.presence_check(view(report(0, calls=unreached(0, worker_1="refused"))), 30)
    first, why, second, answered = check.text.split("; ")
    assert first == "worker:1 (b:2) did not come within 30 seconds"
    assert why == "worker:0 calls it: refused: nothing listens there, or a firewall rejects"
    assert second.startswith("worker:2 (c:3) did not come")
    assert answered == "at its address answers one that says to be another task"
    assert "to any port 2; sudo ufw" in str(check.fix)


def test_two_that_say_to_be_one_task_are_named_with_their_hosts() -> None:
    seen = view(report(0), report(0, nonce="9", host="host-9", ip="10.0.0.9"), report(2))
    check = _agreement.distinct_check(seen)
    assert check.text == ("worker:0 is what 2 workers say to be: host host-0 (10.0.0.0), host host-9 (10.0.0.9)")
    assert _all_reduce.obstacle(seen, {"D15": check}) == "not all workers are there"


def test_the_difference_between_clusters_is_named() -> None:
    other = report(1, tasks=(("worker:0", "a:1"), ("worker:1", "b:9")))
    check = _agreement.cluster_agreement(view(report(0), other))
    assert check.text == "worker:1 was given another cluster than worker:0: worker:1 is b:9 there, b:2 here"
    turned = report(1, tasks=(TASKS[1], TASKS[0], TASKS[2]))
    assert "its order differs" in _agreement.cluster_agreement(view(report(0), turned)).text


@pytest.mark.parametrize(
    ("changed", "verdict", "text"),
    [
        (
            {"versions": {"numpy": "2.2.0"}},
            Verdict.FAILED,
            "numpy is 2.2.0 on worker:1, but 2.1.0 on worker:0, worker:2",
        ),
        ({"versions": {"numpy": ""}}, Verdict.FAILED, "numpy is none on worker:1, but 2.1.0"),
        ({"versions": {"python": "3.11.1"}}, Verdict.FAILED, "python is 3.11.1 on worker:1, but 3.12.1"),
        ({"versions": {"python": "3.12.9"}}, Verdict.WARNING, "python is 3.12.9 on worker:1"),
        ({"backend": "jax"}, Verdict.FAILED, "backend is jax on worker:1, but torch on worker:0, worker:2"),
    ],
)
def test_the_worker_that_differs_is_named(changed: dict[str, Any], verdict: Verdict, text: str) -> None:
    changes = dict(changed)
    if "versions" in changes:
        changes["versions"] = {**report(1).versions, **changes["versions"]}
    check = _agreement.versions_agreement(view(report(0), report(1, **changes), report(2)))
    assert (check.verdict, text in check.text) == (verdict, True), check


@pytest.mark.parametrize(
    ("offset", "text"),
    [(0.4, "at most 0.400 seconds apart"), (2.5, "2.5 seconds ahead of"), (-90.0, "90.0 seconds behind")],
)
def test_a_clock_that_is_off_is_named(offset: float, text: str) -> None:
    asked = {**report(0).calls, "worker:1": Call(how=REACHED, answered_by="1", clock_offset_seconds=offset)}
    check = _agreement.clock_check(view(report(0, calls=asked), report(1), report(2)))
    assert (check.verdict is Verdict.WARNING, text in check.text) == (abs(offset) > 1, True), check


def test_a_clock_is_known_from_the_other_side_too() -> None:
    calls = {"worker:0": Call(how=REACHED, answered_by="0", clock_offset_seconds=3.0)}
    seen = view(report(0, calls=unreached(0, worker_1="timed out")), report(1, calls=calls))
    assert _agreement.clock_check(seen).text == "the clock of worker:1 is 3.0 seconds behind worker:0's"


def test_a_name_is_reported_with_all_who_do_not_know_it() -> None:
    calls = unreached(0, worker_2="unresolved")
    check = _own_task.names_check(view(report(0, calls=calls), report(1, calls=calls), report(2)))
    assert check.text == "'c', in the address of worker:2, does not resolve on worker:0, worker:1"


def test_an_address_reached_through_translation_is_this_host() -> None:
    assert _own_task.address_check(SOUND, ["203.0.113.1"]).verdict is Verdict.OK
    elsewhere = {**report(0).calls, "worker:0": Call(how=REACHED, answered_by="9")}
    check = _own_task.address_check(view(report(0, calls=elsewhere)), ["203.0.113.1"])
    assert check.verdict is Verdict.FAILED
    assert check.text == "the address of worker:0 (a:1) is none of this host, host-0"


@pytest.mark.parametrize(
    ("ips", "ip", "backend", "variables", "verdict", "text"),
    [
        (["127.0.1.1"], "203.0.113.1", "torch", {}, Verdict.WARNING, "own name me stands for 127.0.1.1"),
        ([], "203.0.113.1", "jax", {}, Verdict.WARNING, "own name me does not resolve"),
        (["127.0.1.1"], "127.0.0.1", "torch", {}, Verdict.OK, "stands for 127.0.1.1"),
        (["127.0.1.1"], "203.0.113.1", "torch", {"GLOO_SOCKET_IFNAME": "eth7"}, Verdict.OK, "GLOO_SOCKET_IFNAME=eth7"),
        (["127.0.1.1"], "203.0.113.1", "jax", {"GLOO_SOCKET_IFNAME": "eth7"}, Verdict.WARNING, "127.0.1.1"),
        (["127.0.1.1"], "", "jax", {}, Verdict.WARNING, "127.0.1.1"),
    ],
)
def test_a_host_name_that_leads_others_astray_is_a_warning(
    ips: list[str], ip: str, backend: str, variables: dict[str, str], verdict: Verdict, text: str
) -> None:
    check = _own_task.host_name_check("me", ips, ip, backend, variables)
    assert (check.verdict, text in check.text) == (verdict, True), check


def test_who_does_not_see_whose_file_is_named(tmp_path: Any) -> None:
    seen = view(report(0, word="x", sees=("0", "1")), report(1, word="y", sees=("1",)))
    check = _shared_folder.shared_check(seen, tmp_path, None)
    assert check.text == f"worker:1 does not see in {tmp_path} what worker:0 wrote"
    lonely = view(report(0, word="x", sees=("0",)), report(1))
    assert "worker:1 has no --shared" in _shared_folder.shared_check(lonely, tmp_path, None).text
    assert "Read-only" in _shared_folder.shared_check(seen, tmp_path, "Read-only file system").text


def test_a_failed_sum_names_whose_error_it_was() -> None:
    problem = {"problem": "RuntimeError: connection refused"}
    waited = {"problem": "it waited for worker:1"}
    seen = view(report(0, reduction=waited), report(1, reduction=problem))
    check = _all_reduce.reduction_check(seen, None)
    assert check.text == "the workers can't sum tensors together; worker:1: RuntimeError: connection refused"
    took = {"small_seconds": 0.0005, "large_seconds": 0.02, "by": "gloo"}
    good = _all_reduce.reduction_check(view(report(0, reduction=took), report(1, reduction=took)), None)
    assert good.text == "10 MB over 2 workers in 20.0 ms (500 MB/s), 4 bytes in 0.50 ms; gloo"
    assert _all_reduce.reduction_check(seen, "D17 failed").verdict is Verdict.SKIPPED
