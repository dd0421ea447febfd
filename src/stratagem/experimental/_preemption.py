# SPDX-License-Identifier: Apache-2.0
"""Jobs that are told to stop: all processes save the same step, then exit."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from stratagem.errors import ArgumentError, ArgumentTypeError
from stratagem.experimental._preemption_store import Store, store_of
from stratagem.keras_fit._backup_stop import EXIT_CODE, OnSigterm, stop_agreement

__all__ = ["PreemptionCheckpointHandler", "PreemptionWatcher", "TerminationConfig"]

_WATCH_SECONDS = 1.0


class TerminationConfig:
    """What a preempted job does; the counterpart of `tf.distribute.experimental.TerminationConfig`.

    Args:
        termination_watcher_fn: Says whether this process is about to be stopped. Called at steps, at most once a
            second; without it, SIGTERM says so.
        exit_fn: What to call once all is saved. Without it, the process exits with 143.
        grace_period: Seconds from the notice to the end. With it, training goes on for as long as there is time, after
            a first checkpoint at once; without it, the process saves and exits.
        save_fn: What saves, called on every process with what `save_checkpoint_if_preempted` is given.

    Example:
        >>> import stratagem as distribute
        >>> config = distribute.experimental.TerminationConfig(grace_period=600.0)
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], bool] | None = None,
        exit_fn: Callable[[], Any] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., Any] | None = None,
    ) -> None:
        for name, function in (
            ("termination_watcher_fn", termination_watcher_fn),
            ("exit_fn", exit_fn),
            ("save_fn", save_fn),
        ):
            if function is not None and not callable(function):
                raise ArgumentTypeError(f"TerminationConfig({name}={function!r}) is given no function")
        if grace_period is not None and grace_period < 0:
            raise ArgumentError(f"TerminationConfig(grace_period={grace_period!r}) is negative", fix="give seconds")
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        self.grace_period = grace_period
        self.save_fn = save_fn


class PreemptionCheckpointHandler:
    """Saves the same step on all workers when any of them is told to stop, and restores it at the next start.

    The counterpart of `tf.distribute.experimental.PreemptionCheckpointHandler`, for loops of your own; `fit` has
    `BackupAndRestore`. Making one restores the last checkpoint, if there is one, and begins to watch for the signal.
    A notice takes effect at the next call of `run` or `save_checkpoint_if_preempted`.

    Args:
        cluster_resolver: Accepted as in `tf.distribute`; the strategy knows its processes.
        checkpoint_or_checkpoint_manager: A `Checkpoint`, a `CheckpointManager`, or an object of yours that has
            `save(path)` and `restore(path)`.
        checkpoint_dir: The folder of the files; of a manager it has its own.
        termination_config: What to do, where SIGTERM and exit code 143 are not right.

    Raises:
        ArgumentError: `checkpoint_dir` is missing, or given with a manager.
        ArgumentTypeError: the object can't be saved and restored.

    Example:
        >>> import tempfile, stratagem as distribute
        >>> done = {"steps": 0}
        >>> handler = distribute.experimental.PreemptionCheckpointHandler(
        ...     None, distribute.Checkpoint(done=done), tempfile.mkdtemp())
        >>> while handler.total_run_calls < 3:
        ...     result = handler.run(lambda: done["steps"] + 1)
        ...     done["steps"] = result
        >>> done
        {'steps': 3}
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_checkpoint_manager: Any,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        del cluster_resolver
        self._config = termination_config or TerminationConfig()
        self._store: Store = store_of(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._total_run_calls = self._store.restore()
        self._boundaries = 0
        self._notice_seconds: float | None = None
        self._looked_seconds = float("-inf")
        self._longest_step_seconds = 0.0
        self._left_seconds: float | None = None
        self._agreement = stop_agreement(self._store.num_processes())
        self._in_grace = False
        self._sigterm: OnSigterm | None = None
        if self._config.termination_watcher_fn is None:
            self._sigterm = OnSigterm(self._notice)

    @property
    def total_run_calls(self) -> int:
        """How many calls of `run` there were, those before a restart included."""
        return self._total_run_calls

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Save and exit if it is time to; else call a function that does one step.

        Args:
            distributed_train_function: The step.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        self.save_checkpoint_if_preempted()
        began = time.monotonic()
        result = distributed_train_function(*args, **kwargs)
        self._longest_step_seconds = max(self._longest_step_seconds, time.monotonic() - began)
        self._total_run_calls += 1
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and exit if any worker was told to stop; every worker calls this after every step.

        Args:
            args: For `save_fn`.
            kwargs: For `save_fn`.
        """
        self._boundaries += 1
        if self._in_grace:
            if not self._store.any(self._left_seconds is not None and time.monotonic() >= self._left_seconds):
                return
        else:
            self._look()
            if not self._agreement.stop_here(self._boundaries):
                return
        began = time.monotonic()
        self._save(*args, **kwargs)
        if self._config.grace_period and not self._in_grace:
            self._go_on(self._config.grace_period, time.monotonic() - began)
        else:
            self._exit()

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Around a part of the program without calls of `run`: after it, save and exit if it is time to.

        Returns:
            A context manager.
        """
        yield
        self.save_checkpoint_if_preempted()

    def _save(self, *args: Any, **kwargs: Any) -> None:
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        else:
            self._store.save(self._total_run_calls, *args, **kwargs)

    def _exit(self) -> None:
        if self._sigterm is not None:
            self._sigterm.release(raises=False)
        if self._config.exit_fn is not None:
            self._config.exit_fn()
        else:
            sys.exit(EXIT_CODE)

    def _go_on(self, grace_seconds: float, save_seconds: float) -> None:
        """What is left of the grace period is for training; the step at which it ends is agreed on step by step."""
        self._in_grace = True
        if self._notice_seconds is not None:
            # Twice what a save and a step took, as they may take longer the next time.
            reserve = 2.0 * (save_seconds + self._longest_step_seconds)
            self._left_seconds = self._notice_seconds + grace_seconds - reserve

    def _look(self) -> None:
        """Ask the user's function, where there is one."""
        now = time.monotonic()
        watch = self._config.termination_watcher_fn
        if watch is not None and self._notice_seconds is None and now >= self._looked_seconds + _WATCH_SECONDS:
            self._looked_seconds = now
            if watch():
                self._notice()

    def _notice(self) -> None:
        if self._notice_seconds is None:
            self._notice_seconds = time.monotonic()
            self._agreement.request()


class PreemptionWatcher:
    """Notes that this process was told to stop, by SIGTERM, and lets it go on.

    The counterpart of `tf.distribute.experimental.PreemptionWatcher`. What to do about it is up to the program, which
    asks `preemption_message`; `BackupAndRestore` and `PreemptionCheckpointHandler` need no watcher.

    Example:
        >>> import stratagem as distribute
        >>> watcher = distribute.experimental.PreemptionWatcher()
        >>> watcher.preemption_message is None
        True
    """

    def __init__(self) -> None:
        self._message: str | None = None
        self._sigterm = OnSigterm(self._take)

    @property
    def preemption_message(self) -> str | None:
        """What was said to this process, or None as long as nothing was."""
        return self._message

    def block_until_worker_exit(self) -> None:
        """Nothing to wait for: a worker that is told to stop is this process, as on every platform but Google's own."""

    def _take(self) -> None:
        self._message = self._message or "SIGTERM"
