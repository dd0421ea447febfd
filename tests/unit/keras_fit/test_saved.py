# SPDX-License-Identifier: Apache-2.0
"""When a process that does not write may go on without a file of the name that it means."""

from __future__ import annotations

import time

import pytest

from stratagem.keras_fit import _saved
from stratagem.keras_fit._saved import Elsewhere, saved_key


def test_files_are_told_apart_by_their_names_and_not_by_folders() -> None:
    assert saved_key("/home/a/model.keras") == saved_key("/mnt/b/model.keras")
    assert saved_key("/home/a/model.keras") != saved_key("/home/a/other.keras")


def test_only_a_chief_that_has_saved_as_often_and_rests_is_sure_to_have_saved_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_saved, "_SURE_SECONDS", 0.05)
    for saved_this_name, saving, saved_as_often in [(True, False, True), (False, True, True), (False, False, False)]:
        elsewhere = Elsewhere()
        for _ in range(2):
            state = {"saved_this_name": saved_this_name, "saving": saving, "saved_as_often": saved_as_often}
            assert not elsewhere.is_sure(**state)
            time.sleep(0.06)
    elsewhere = Elsewhere()
    assert not elsewhere.is_sure(saved_this_name=False, saving=False, saved_as_often=True)
    time.sleep(0.06)
    assert elsewhere.is_sure(saved_this_name=False, saving=False, saved_as_often=True)
