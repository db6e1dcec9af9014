"""The entry point of the command line: errors, Ctrl-C and exit statuses.

Importing this module is quick, and everything else is imported inside of `main`, so that Ctrl-C
ends a start as quietly as it ends the work.
"""

from __future__ import annotations

import re
import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

USAGE_STATUS = 2
INTERRUPTED = 130
TERMINATED = 143


def main() -> None:
    """Run the command line.

    An error is printed as one sentence, with exit status 2. Ctrl-C leads to exit status 130, and
    SIGTERM to 143; in both cases what is finished is kept.
    """
    debug = "--debug" in sys.argv
    # --debug is accepted anywhere on the command line, not only before the command.
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    terminations: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        # SIGTERM saves the same as Ctrl-C.
        terminations.append(number)
        raise KeyboardInterrupt

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Names of files may hold bytes that are no characters.
            stream.reconfigure(errors="backslashreplace")
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        _run(debug)
    except KeyboardInterrupt:
        _show_cursor()
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(TERMINATED if terminations else INTERRUPTED) from None
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        # typer has caught the interruption.
        _show_cursor()
        raise SystemExit(TERMINATED if terminations else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(debug: bool) -> None:
    from draftlens.cli.app import app
    from draftlens.cli.options import check_compile_words, with_present_names, with_values

    try:
        sys.argv = with_values(with_present_names(sys.argv))
        check_compile_words(sys.argv)
        app()
    except Exception as error:
        if debug:
            raise
        _exit_with_error(_sentence(error))


def _sentence(error: Exception) -> str:
    from draftlens.core.errors import DraftlensError

    if isinstance(error, DraftlensError):
        return re.sub(r"Limits\((\w+)=\.\.\.\)", r"""--limits '{"\1": ...}'""", str(error))
    if isinstance(error, OSError):
        return _about_file(error)
    cause: BaseException | None = error
    while cause is not None:
        if "torchvision::" in str(cause):
            return (
                "torchvision does not fit torch, as where one is built for CUDA and the other for "
                "CPUs: install both from the same index (docs/quickstart.md)"
            )
        cause = cause.__cause__ or cause.__context__
    name = type(error).__name__
    return f"unexpected {name}: {error} (run with --debug for the traceback)"


def _about_file(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"the system refuses: {reason} (run with --debug for the traceback)"
    return f"cannot use {error.filename}: {reason}"


def _show_cursor() -> None:
    if "draftlens.cli.show" in sys.modules:
        from draftlens.cli.show import error_console

        error_console.show_cursor()


def _exit_with_error(sentence: str) -> NoReturn:
    from draftlens.cli.show import say

    say(f"error: {' '.join(sentence.split())}", style="red")
    raise SystemExit(USAGE_STATUS)
