# SPDX-License-Identifier: Apache-2.0
"""`GCEClusterResolver` on a service that answers as Google Compute Engine does."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stratagem.cluster_resolver import ClusterSpec, GCEClusterResolver
from stratagem.errors import ContextError, LaunchError

URL = "https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/"


class Request:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self.execute = answer


class Service:
    """What is called of the API, which refuses other arguments; the group's machines come in pages."""

    def __init__(self, *pages: dict[str, str]) -> None:
        self._pages = pages
        self._ips = {name: ip for page in pages for name, ip in page.items()}

    def instanceGroups(self) -> Any:
        return self

    def listInstances(self, *, project: str, zone: str, instanceGroup: str, body: Any, orderBy: str) -> Request:
        assert (project, zone, instanceGroup, orderBy) == ("p", "z", "g", "name")
        assert body == {"instanceState": "RUNNING"}
        return self._page(0)

    def listInstances_next(self, *, previous_request: Any, previous_response: Any) -> Request | None:
        following = previous_response["nextPageToken"]
        return self._page(following) if following < len(self._pages) else None

    def instances(self) -> Any:
        return SimpleNamespace(get=self._get)

    def _page(self, number: int) -> Request:
        page: dict[str, Any] = {"nextPageToken": number + 1}
        if self._pages[number]:  # an empty page has no "items"
            page["items"] = [{"instance": URL + name} for name in self._pages[number]]
        return Request(lambda: page)

    def _get(self, *, project: str, zone: str, instance: str) -> Request:
        return Request(lambda: {"networkInterfaces": [{"networkIP": self._ips[instance]}]})


def test_the_machines_of_all_pages_are_tasks_in_the_order_of_their_addresses() -> None:
    service = Service({"m-2": "10.0.0.3", "m-0": "10.0.0.1"}, {"m-1": "10.0.0.2"})
    resolver = GCEClusterResolver("p", "z", "g", 8470, task_id=1, service=service)
    assert resolver.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"]})
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert (resolver.environment, resolver.local_tasks()) == ("", (0, 1))
    assert (resolver.master(), resolver.master("worker", 2, "http")) == ("grpc://10.0.0.2:8470", "http://10.0.0.3:8470")


def test_an_empty_group_has_no_tasks() -> None:
    assert GCEClusterResolver("p", "z", "g", 1, service=Service({})).cluster_spec().num_tasks("worker") == 0


def test_the_task_may_be_set_later_but_not_its_job() -> None:
    resolver = GCEClusterResolver("p", "z", "g", 1, "trainer", service=Service({"m": "10.0.0.1", "n": "10.0.0.2"}))
    resolver.task_id, resolver.rpc_layer = 1, None
    assert resolver.master() == "10.0.0.2:1"
    with pytest.raises(ContextError, match=r"can't become 'ps'.*\n  fix: GCEClusterResolver"):
        resolver.task_type = "ps"
    assert resolver.task_type == "trainer"


@pytest.mark.parametrize(("given", "passed"), [("default", None), ("mine", "mine")])
def test_the_service_is_built_with_the_credentials(
    monkeypatch: pytest.MonkeyPatch, given: str, passed: str | None
) -> None:
    built: list[Any] = []

    def build(api: str, version: str, credentials: Any) -> Service:
        built.append((api, version, credentials))
        return Service({"m": "10.0.0.1"})

    package = types.ModuleType("googleapiclient")
    package.discovery = SimpleNamespace(build=build)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "googleapiclient", package)
    resolver = GCEClusterResolver("p", "z", "g", 1, credentials=given)
    assert built == [("compute", "v1", passed)]
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:1"]}


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    with pytest.raises(
        LaunchError, match=r"without the package google-api-python-client .*\n  fix: pip install google-api"
    ):
        GCEClusterResolver("p", "z", "g", 8470)
