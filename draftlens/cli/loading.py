"""What commands read and load before they begin: media first, so that a wrong path is told at
once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from draftlens.api import Engine, load
from draftlens.cli import options as opt
from draftlens.cli.progress import count_bar, working
from draftlens.cli.threads import settle_threads
from draftlens.core.errors import ConfigError
from draftlens.media.conversation import Conversation, ask, read
from draftlens.methods import resolve
from draftlens.models.load import Loaded, load_model, load_pair
from draftlens.models.zoo import EMBEDDED

NO_DRAFT = "none"
"""What `--draft` calls having none, even where the target's name stands for a pair."""


def read_media(
    quiet: bool, limits: str | None, prompt: str, frames: int = 8, **media: Any
) -> Conversation:
    """A prompt with its media.

    Raises:
        MediaError: a file cannot be read.
        ConfigError: the limits make no sense.
    """
    with count_bar("reading frames", quiet) as bar:
        return read(ask(prompt, **media), frames, opt.limits_of(limits), on_frame=bar)


def load_engine(
    target: str, draft: str | None, method: Any, device: str | None, dtype: str | None, quiet: bool
) -> Engine:
    """`draftlens.models.load`, with a spinner; a draft called `none` is none.

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError: as `draftlens.models.load`.
    """
    with _loading(target, quiet):
        if draft == NO_DRAFT:
            resolve(method, has_draft=False)  # a bad method is told before minutes of loading
            engine = Engine(load_model(target, "target", device, dtype), None, method)
        else:
            engine = load(target, draft, method, device, dtype)
    settle_threads(engine.target.backbone.model)
    return engine


def load_models(
    target: str, draft: str | None, device: str | None, dtype: str | None, quiet: bool
) -> tuple[Loaded, Loaded | None]:
    """Target and draft, with a spinner; a draft called `none` is none.

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError: as `draftlens.models.load`.
    """
    with _loading(target, quiet):
        if draft == NO_DRAFT:
            pair: tuple[Loaded, Loaded | None] = load_model(target, "target", device, dtype), None
        else:
            pair = load_pair(target, draft, device, dtype)
    settle_threads(pair[0].backbone.model)
    return pair


@contextmanager
def _loading(target: str, quiet: bool) -> Iterator[None]:
    if quiet or target == EMBEDDED:
        transformers_logging.disable_progress_bar()
    with working(f"loading {target}", quiet):
        yield


def make_folder(out: Path) -> None:
    """Make the folder for what a command writes.

    Raises:
        ConfigError: that is not possible.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {out}: {error.strerror or error}") from error
