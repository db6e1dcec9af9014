"""Checks names of models on the Hugging Face Hub before they are loaded.

The local cache comes first, then a single request with a time limit: transformers requests each
file, with several retries. torch is not imported, so a wrong name is refused at once.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from draftlens.core.errors import ConfigError

HUB_SECONDS = 6.0
"""Time limit, in seconds, for the Hub to confirm that a model exists."""

CONFIG = "config.json"


def is_folder(path: str) -> bool:
    """Whether a path can only be a folder: a Hub id has one slash at most."""
    return Path(path).is_absolute() or path.startswith(".") or path.count("/") > 1


def is_local(path: str) -> bool:
    return is_folder(path) or Path(path).is_dir()


def is_cached(path: str, revision: str | None = None, cache_dir: str | Path | None = None) -> bool:
    try:
        config_path = try_to_load_from_cache(path, CONFIG, cache_dir=cache_dir, revision=revision)
    except HFValidationError:
        return False
    return isinstance(config_path, str)


def refuse_gguf(path: str, role: str) -> None:
    """Raise ConfigError for a file in GGUF, or a folder or repository of such files."""
    folder = Path(path)
    files = () if (folder / CONFIG).is_file() else folder.glob("*.gguf")
    if path.lower().endswith((".gguf", "-gguf")) or any(files):
        raise ConfigError(
            f"cannot load the {role} {path!r}: it is in GGUF, the form of llama.cpp, which has the "
            "vision encoder in another file: name the checkpoint that it was made of, and take "
            "quantization='int4' (--quantization int4) for weights of 4 bits"
        )


def check_hub(path: str, role: str, revision: str | None = None) -> None:
    """Raise ConfigError, after `HUB_SECONDS` at most, unless the Hub confirms the model."""
    question = _Question(path, revision)
    question.start()
    question.join(HUB_SECONDS)
    if question.is_alive():
        cause = f"the Hub did not answer within {HUB_SECONDS:.0f} seconds"
    elif question.error is None:
        return
    else:
        cause = _cause(question.error, revision)
    raise ConfigError(f"cannot load the {role} {path!r}: {cause}") from question.error


class _Question(Thread):
    """A request in a thread, because resolving the Hub's address has no time limit."""

    def __init__(self, name: str, revision: str | None) -> None:
        super().__init__(daemon=True)
        self.model = name
        self.revision = revision
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            HfApi().model_info(self.model, revision=self.revision, timeout=HUB_SECONDS)
        except Exception as error:  # the network library raises exceptions of its own
            self.error = error


def _cause(error: Exception, revision: str | None) -> str:
    if isinstance(error, GatedRepoError):
        return "access to it is granted on its page of the Hub: ask there, then `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {revision!r}"
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        return "there is no such folder, and no such model on the Hub (or it is private)"
    nowhere = "there is no such folder, no copy in the local cache"
    if isinstance(error, OfflineModeIsEnabled):
        return f"{nowhere}, and HF_HUB_OFFLINE keeps it from being downloaded"
    return f"{nowhere}, and the Hub cannot be reached ({_first_line(error)})"


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
