"""The document model in the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from draftlens.core.errors import ConfigError

READER_FOLDER = "reader"
"""Folder of the reader in `draftlens/embedded`."""


def reader_path() -> str:
    """The folder of the target that parses documents if none is named.

    Raises:
        ConfigError: this installation has none.
    """
    folder = Path(str(files("draftlens") / "embedded" / READER_FOLDER))
    if not (folder / "config.json").exists():
        raise ConfigError(
            "this installation of draftlens holds no document reader: name a document model with "
            "--target (target=... in Python), such as a folder with Qwen2.5-VL"
        )
    return str(folder)
