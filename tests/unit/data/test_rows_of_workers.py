# SPDX-License-Identifier: Apache-2.0
"""Whatever the data set is: its rows are divided among workers, and each is read once."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from stratagem.data._feeds import Feed, Place, RowFeed, SharedFeed
from stratagem.data._source import RowSource
from stratagem.data._sources import source_of
from tests.unit.data.made_sources import BATCH, BY_ROWS, MADE, NEEDS, NOT_NOTED, ROWS, numbers
from tests.unit.data.threads import Job, run


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Those that are installed, imported before a test could be blamed for the variables that they set."""
    for library in ("grain", "datasets", "tensorflow"):
        if importlib.util.find_spec(library):
            importlib.import_module(library)
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", MADE)
def test_workers_get_disjoint_rows_which_are_all_and_each_is_read_once(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)
    read: list[int] = []
    if "images" in name:
        _note_decoded_images(read, monkeypatch)

    def make(place: Place, job: Job) -> Feed:
        source = source_of(MADE[name](read))  # as in a program that every process runs
        assert isinstance(source, RowSource) == (name in BY_ROWS)
        return RowFeed(source, place, job) if isinstance(source, RowSource) else SharedFeed(source, place, job, 2)

    found, _ = run(make, processes=workers, workers=workers, rows=numbers)
    given = [{row for step in steps for row in step} for steps in found]
    assert set.union(*given) == set(range(ROWS))
    assert sum(len(step) for steps in found for step in steps) == ROWS  # so no two have the same
    assert [sum(len(steps[number]) for steps in found) for number in range(4)] == [BATCH] * 4
    if name not in NOT_NOTED:
        assert sorted(read) == list(range(ROWS))


def _note_decoded_images(read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    decode = datasets.Image.decode_example

    def noted(feature: Any, value: Any, *more: Any, **options: Any) -> Any:
        image = decode(feature, value, *more, **options)
        read.append(image.getpixel((0, 0)))
        return image

    monkeypatch.setattr(datasets.Image, "decode_example", noted)
