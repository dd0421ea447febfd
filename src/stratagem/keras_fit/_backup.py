# SPDX-License-Identifier: Apache-2.0
"""`stratagem.BackupAndRestore`: a `fit` that was stopped at any step goes on as if it had not been."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import keras

from stratagem import keras_fit
from stratagem.checkpoint import Contents, Folder
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError
from stratagem.keras_fit import _resume
from stratagem.keras_fit._backup_fit import Moment, contents_of, history_of, put_history, restore, restore_metrics
from stratagem.keras_fit._backup_processes import Processes
from stratagem.keras_fit._backup_stop import EXIT_CODE, OnSigterm, StopAgreement, stop_agreement
from stratagem.keras_fit._resume import Progress

__all__ = ["BackupAndRestore"]

_LOG = logging.getLogger("stratagem")


class BackupAndRestore(keras.callbacks.Callback):
    """Saves all that training depends on, and goes on from there when the program is started again.

    The counterpart of `keras.callbacks.BackupAndRestore`, exact to the step: the weights, logs and history of a `fit`
    that was stopped anywhere and started again are those of one that never was. The chief writes, and every process
    restores. At SIGTERM all processes save the same step and exit with 143.

    Args:
        backup_dir: A folder for these files alone. On several hosts the chief's counts.
        save_freq: "epoch", or after how many steps to save.
        delete_checkpoint: Delete the files when training is complete.
        keep: How many files are kept, 1 or more; a damaged one falls back to the one before.

    Raises:
        ArgumentError: an argument can't be used.
        ArgumentTypeError: `backup_dir` is no path.

    Example:
        >>> import keras, numpy, tempfile, stratagem as distribute
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> backup = distribute.BackupAndRestore(tempfile.mkdtemp(), save_freq=2)
        >>> x, y = numpy.ones((8, 2)), numpy.ones((8, 1))
        >>> history = model.fit(x, y, batch_size=2, epochs=2, callbacks=[backup], verbose=0)
        >>> len(history.history["loss"])
        2
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        delete_checkpoint: bool = True,
        keep: int = 2,
    ) -> None:
        super().__init__()
        _check(backup_dir, save_freq, keep)
        # A model without a strategy needs the hooks as well, and before its fit begins.
        keras_fit.install()
        self._folder = Folder(Path(backup_dir), "backup", keep)
        self._every = None if save_freq == "epoch" else int(save_freq)
        self._deletes = delete_checkpoint
        self._progress: Progress | None = None
        self._processes = Processes(())
        self._agreement: StopAgreement | None = None
        self._sigterm: OnSigterm | None = None
        self._restored: tuple[Path, Contents] | None = None
        self._epoch = 0
        self._step = 0
        self._steps = 0
        self._unsaved = 0
        self._due = False
        self._stops = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore what was saved, if anything was."""
        progress = _resume.current()
        if progress is None:
            raise ContextError(
                "BackupAndRestore was made too late for this fit of a model without a strategy, or called by another "
                "loop than fit",
                fix="make it on a line of its own, before model.fit(..., callbacks=[backup])",
            )
        self._progress = progress
        self._processes = Processes([self.model])
        self._restored = None
        self._epoch = self._step = self._steps = self._unsaved = 0
        self._due = self._stops = False
        found = self._processes.latest(self._folder)
        if found is None:
            progress.track(None)
        else:
            self._restored = found
            self._steps = restore(self.model, progress, *found)
        self._agreement = stop_agreement(self._processes.count)
        self._sigterm = OnSigterm(self._agreement.request)
        progress.at_end(self._leave_fit)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch; in the first one, go on with the metrics and the history that were saved."""
        self._epoch, self._step = epoch, 0
        restored, self._restored = self._restored, None
        if restored is None:
            return
        put_history(self.model, restored[1])
        self._step = restored[1].state["step"]
        if self._step:
            restore_metrics(self.model, *restored)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save if it is time to, or if the job is told to stop."""
        done = batch + 1 - self._step
        self._step += done
        self._steps += done
        self._unsaved += done
        assert self._agreement is not None, "made when training began"
        self._stops = self._stops or self._agreement.stop_here(self._steps)
        if self._every is not None and self._unsaved >= self._every:
            self._due = True
        # After the last step only the epoch's end is left, and there is no batch to go on with.
        if (self._due or self._stops) and not self._is_last():
            self._save(self._epoch, history_of(self.model, self._epoch, None))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save if it is time to."""
        if self._every is None or self._due or self._stops:
            self._save(epoch + 1, history_of(self.model, epoch, logs))

    def on_train_end(self, logs: Any = None) -> None:
        """Delete the files, as nothing is left to go on with."""
        if self._restored is not None:
            # It was complete, but for what comes after the last epoch.
            put_history(self.model, self._restored[1])
        if self._deletes:
            self._processes.on_chief(self._folder.delete)

    def _is_last(self) -> bool:
        assert self._progress is not None, "set when training began"
        return self._progress.is_last(self._step)

    def _save(self, epoch: int, history: dict[str, Any]) -> None:
        assert self._progress is not None, "set when training began"
        moment = Moment(epoch, self._step if epoch == self._epoch else 0, self._steps, history)
        contents = contents_of(self.model, self._progress, self._processes, moment)
        self._processes.write(self._folder, self._steps, lambda: contents)
        self._due, self._unsaved = False, 0
        if self._stops:
            if self._processes.is_chief:
                assert self._agreement is not None, "made when training began"
                whom = self._agreement.asked_by()
                _LOG.warning(
                    "SIGTERM%s: saved %s; exiting with %d",
                    f" to {whom}" if whom else "",
                    self._folder.file(self._steps),
                    EXIT_CODE,
                )
            self._release(raises=False)
            sys.exit(EXIT_CODE)

    def _leave_fit(self) -> None:
        # Else the next fit of this model would begin there.
        model: Any = self.model
        model._initial_epoch = None
        self._progress = None
        self._release(raises=True)

    def _release(self, *, raises: bool) -> None:
        if self._sigterm is not None:
            self._sigterm.release(raises=raises)
        self._sigterm = None


def _check(backup_dir: Any, save_freq: Any, keep: Any) -> None:
    if not isinstance(backup_dir, (str, os.PathLike)) or not os.fspath(backup_dir):
        raise ArgumentTypeError(
            f"BackupAndRestore(backup_dir={backup_dir!r}) is given no folder", fix="give the path of a folder"
        )
    is_steps = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq >= 1
    if save_freq != "epoch" and not is_steps:
        raise ArgumentError(
            f'BackupAndRestore(save_freq={save_freq!r}) takes "epoch" or a number of steps', fix="save_freq=100"
        )
    if not isinstance(keep, int) or keep < 1:
        raise ArgumentError(f"BackupAndRestore(keep={keep!r}) takes a number of files, 1 or more", fix="keep=2")
