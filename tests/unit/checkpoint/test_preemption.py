# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own that is told to stop saves its step, exits, and goes on from there when it is started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stratagem as distribute
from stratagem.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.timeout(60)

Handler = distribute.experimental.PreemptionCheckpointHandler
Config = distribute.experimental.TerminationConfig


@pytest.fixture(autouse=True)
def sigterm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Loop:
    """Counts its steps; the counterpart of a training."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.done = {"steps": 0}
        self.handler = Handler(None, distribute.Checkpoint(done=self.done), folder, config)

    def run(self, until: int, sigterm_at: int | None = None) -> None:
        while self.handler.total_run_calls < until:
            step = self.handler.total_run_calls + 1
            assert self.handler.run(lambda at: at * 10, step) == 10 * step
            self.done["steps"] = step
            if step == sigterm_at:
                signal.raise_signal(signal.SIGTERM)


def test_sigterm_saves_the_step_and_exits_with_143(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        Loop(tmp_path).run(until=8, sigterm_at=5)
    assert exit_.value.code == 143
    again = Loop(tmp_path)
    assert (again.done, again.handler.total_run_calls) == ({"steps": 5}, 5)
    again.run(until=8)
    assert again.done == {"steps": 8}


def test_after_the_exit_sigterm_is_what_it_was(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        Loop(tmp_path).run(until=8, sigterm_at=1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_notice_nothing_is_written(tmp_path: Path) -> None:
    Loop(tmp_path / "checkpoints").run(until=3)
    assert not (tmp_path / "checkpoints").exists()


def test_a_function_of_the_user_s_says_when_to_stop_and_how_to_exit(tmp_path: Path) -> None:
    said: list[str] = []
    config = Config(lambda: bool(said.append("asked")) or True, exit_fn=lambda: said.append("exit"))
    before = signal.getsignal(signal.SIGTERM)
    loop = Loop(tmp_path, config)
    loop.handler.save_checkpoint_if_preempted()
    assert said == ["asked", "exit"]
    assert len(os.listdir(tmp_path)) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_save_fn_gets_what_the_call_was_given(tmp_path: Path) -> None:
    got: list[Any] = []
    config = Config(lambda: True, exit_fn=lambda: None, save_fn=lambda *args, **kwargs: got.append((args, kwargs)))
    Loop(tmp_path, config).handler.save_checkpoint_if_preempted(4, name="four")
    assert got == [((4,), {"name": "four"})]


def test_in_a_grace_period_training_goes_on_after_a_first_save(tmp_path: Path) -> None:
    said: list[int] = []
    loop = Loop(tmp_path, Config(grace_period=0.5, save_fn=lambda: said.append(loop.done["steps"])))
    with pytest.raises(SystemExit):
        loop.run(until=10**9, sigterm_at=2)
    first, last = said
    assert first == 2
    assert last > 2


def test_a_scope_saves_at_its_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path)

    def program() -> None:
        with loop.handler.watch_preemption_scope():
            loop.done["steps"] = 3
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        program()
    assert Loop(tmp_path).done == {"steps": 3}


class Own:
    """An object of the user's."""

    value = 0

    def save(self, path: str) -> None:
        Path(path).write_text(str(self.value))

    def restore(self, path: str) -> None:
        self.value = int(Path(path).read_text())


def test_an_object_with_save_and_restore_will_do(tmp_path: Path) -> None:
    own = Own()
    handler = Handler(None, own, tmp_path)
    for own.value in (7, 8):
        handler.run(lambda: None)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        handler.run(lambda: None)
    again = Own()
    assert Handler(None, again, tmp_path).total_run_calls == 2
    assert again.value == 8


def test_a_manager_brings_its_folder(tmp_path: Path) -> None:
    manager = distribute.CheckpointManager(distribute.Checkpoint(done={"steps": 0}), tmp_path, max_to_keep=1)
    handler = Handler(None, manager)
    handler.run(lambda: None)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        handler.run(lambda: None)
    assert len(manager.checkpoints) == 1
    assert Handler(None, manager).total_run_calls == 1


@pytest.mark.parametrize("with_folder", [True, False])
def test_a_folder_goes_with_a_checkpoint_and_not_with_a_manager(with_folder: bool, tmp_path: Path) -> None:
    checkpoint = distribute.Checkpoint(done={})
    given: Any = distribute.CheckpointManager(checkpoint, tmp_path, 1) if with_folder else checkpoint
    with pytest.raises(ArgumentError, match="give a Checkpoint with checkpoint_dir"):
        Handler(None, given, tmp_path if with_folder else None)


def test_what_can_not_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="can't save 3"):
        Handler(None, 3, tmp_path)
    with pytest.raises(ArgumentTypeError, match="exit_fn=42"):
        Config(exit_fn=42)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="negative"):
        Config(grace_period=-1.0)


def test_a_watcher_notes_the_signal_and_the_program_goes_on() -> None:
    watcher = distribute.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    signal.raise_signal(signal.SIGTERM)
    watcher.block_until_worker_exit()
    assert watcher.preemption_message == "SIGTERM"
