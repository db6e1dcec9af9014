"""The logger `draftlens` on the error stream of the command line."""

from __future__ import annotations

import logging


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from draftlens.cli.show import error_console  # a wrong option is refused without it

        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        error_console.print(record.getMessage(), style=style, markup=False, soft_wrap=True)


def is_quiet() -> bool:
    """Whether nothing but errors is printed beside the results (`draftlens --quiet`)."""
    return not logging.getLogger("draftlens").isEnabledFor(logging.WARNING)


def show_logs(quiet: bool, verbose: bool) -> None:
    """Print warnings of the library; with `verbose` all messages, with `quiet` only errors."""
    level = logging.WARNING
    if verbose:
        level = logging.DEBUG
    if quiet:
        level = logging.ERROR
    logger = logging.getLogger("draftlens")
    logger.handlers = [_Lines()]
    logger.propagate = False
    logger.setLevel(level)
