# SPDX-License-Identifier: Apache-2.0
"""The stack of scopes and replica contexts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import stratagem as distribute
from stratagem.engines import select
from stratagem.errors import ArgumentTypeError, ContextError, MixedStrategyError
from stratagem.testing.fake_engine import FakeEngine


@pytest.fixture(autouse=True)
def fake_engine() -> Iterator[FakeEngine]:
    with select.use(FakeEngine(2)) as engine:
        yield engine


def _is_default() -> bool:
    context = distribute.get_replica_context()
    return (
        not distribute.has_strategy()
        and not distribute.in_cross_replica_context()
        and context is not None
        and context.replica_id_in_sync_group == 0
    )


def test_outside_every_scope_there_is_the_default_strategy() -> None:
    assert _is_default()
    assert distribute.get_strategy() is distribute.get_strategy()
    assert repr(distribute.get_strategy()) == "DefaultStrategy(replicas=1)"


def test_a_scope_makes_its_strategy_current_until_it_ends() -> None:
    strategy = distribute.MirroredStrategy()
    with strategy.scope() as entered:
        assert entered is strategy is distribute.get_strategy()
        assert distribute.has_strategy()
        assert distribute.in_cross_replica_context()
        assert distribute.get_replica_context() is None
    assert _is_default()


def test_a_scope_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError), distribute.MirroredStrategy().scope():
        raise KeyError
    assert _is_default()


def test_a_scope_can_be_entered_again_and_inside_itself() -> None:
    strategy = distribute.MirroredStrategy()
    scope = strategy.scope()
    for _ in range(2):
        with scope, scope, strategy.scope():
            assert distribute.get_strategy() is strategy
    assert _is_default()


def test_scopes_of_other_threads_are_not_seen() -> None:
    seen: list[bool] = []
    with distribute.MirroredStrategy().scope():
        thread = threading.Thread(target=lambda: seen.append(_is_default()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_two_strategies_are_not_mixed() -> None:
    first, second = distribute.MirroredStrategy(), distribute.OneDeviceStrategy("CPU:0")
    for other in (second, distribute.get_strategy()):
        with first.scope():
            with pytest.raises(
                MixedStrategyError, match=r"scope\(\) of .* while another strategy is current"
            ) as caught:
                other.scope().__enter__()
            assert repr(first) in str(caught.value)
            assert repr(other) in str(caught.value)


def test_a_scope_inside_a_replica_function_is_refused() -> None:
    strategy = distribute.MirroredStrategy()
    with pytest.raises(ContextError, match=r"scope\(\) was called inside a function that strategy.run\(\)") as caught:
        strategy.run(lambda: strategy.scope().__enter__())
    assert "open the scope around strategy.run()" in str(caught.value)
    assert _is_default()


def test_leaving_a_scope_that_is_not_the_innermost_is_refused() -> None:
    strategy = distribute.MirroredStrategy()
    with pytest.raises(ContextError, match="that is not the innermost one open in this thread"):
        strategy.scope().__exit__(None, None, None)
    replaced = strategy.run(distribute.get_replica_context)
    with pytest.raises(ContextError, match=r"was called outside the replica function that the context belongs to"):
        replaced.values[0].merge_call(lambda _: None)
    assert _is_default()


def test_setting_a_strategy_lasts_until_it_is_unset() -> None:
    strategy = distribute.MirroredStrategy()
    try:
        distribute.experimental_set_strategy(strategy)
        assert distribute.get_strategy() is strategy
        assert distribute.in_cross_replica_context()
        with strategy.scope():
            assert distribute.get_strategy() is strategy
        distribute.experimental_set_strategy(distribute.get_strategy())
        assert distribute.has_strategy()
    finally:
        distribute.experimental_set_strategy(None)
    assert _is_default()


def test_setting_a_strategy_inside_a_scope_is_refused() -> None:
    strategy = distribute.MirroredStrategy()
    with strategy.scope(), pytest.raises(ContextError, match=r"experimental_set_strategy\(\) was called inside"):
        distribute.experimental_set_strategy(strategy)
    with pytest.raises(ArgumentTypeError, match="experimental_set_strategy was given 'CPU:0'"):
        distribute.experimental_set_strategy("CPU:0")  # type: ignore[arg-type]
    assert _is_default()


def test_a_set_strategy_is_not_kept_if_it_cannot_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = distribute.MirroredStrategy()

    def fail() -> None:
        raise OSError("no network")

    monkeypatch.setattr(strategy.extended, "connect", fail)
    for enter in (strategy.scope().__enter__, lambda: distribute.experimental_set_strategy(strategy)):
        with pytest.raises(OSError, match="no network"):
            enter()
        assert _is_default()
