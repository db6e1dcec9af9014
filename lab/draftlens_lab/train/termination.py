"""SIGTERM while a draft is trained: the step that is running is saved before the run ends."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from transformers import TrainerCallback


class SaveAtTermination(TrainerCallback):  # type: ignore[misc]
    """Saves a checkpoint after the step in which SIGTERM arrives, and then ends the run as SIGTERM
    would have.

    For runs of one process: several would have to agree on the step. Use it from the main thread.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._has_arrived = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._before = signal.signal(signal.SIGTERM, self._note)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask for a checkpoint if the signal has arrived."""
        if self._has_arrived:
            control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is complete: let the signal do what it does elsewhere."""
        if self._has_arrived:
            self._stop_listening()
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stop_listening()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_arrived = True

    def _stop_listening(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None
