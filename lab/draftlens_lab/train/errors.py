"""Conversion of the errors of other libraries into one-sentence errors of draftlens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from safetensors import SafetensorError

from draftlens.core.errors import ConfigError, DraftlensError

LOAD_ERRORS = (OSError, ValueError, KeyError, SafetensorError)
"""Errors of transformers when a model, a config or a processor cannot be loaded."""


@contextmanager
def config_errors(message: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Convert `errors` into `ConfigError`; errors of draftlens pass unchanged."""
    try:
        yield
    except DraftlensError:
        raise
    except errors as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{message}: {lines[0]}") from error


def loading(name: str) -> AbstractContextManager[None]:
    """`config_errors` for loading what `name` describes, such as ``the draft 'folder'``."""
    return config_errors(f"cannot load {name}", LOAD_ERRORS)
