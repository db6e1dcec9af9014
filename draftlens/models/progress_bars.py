"""Shows transformers' progress bars only in terminals and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def bars_for_an_audience() -> Iterator[None]:
    """Hide the bars of transformers and of the Hub inside the block, except in a terminal or a
    notebook: in a file each step of a bar would be a line."""
    has_audience = sys.stderr.isatty() or "ipykernel" in sys.modules
    if has_audience or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
