"""Media and models of a command.

Media are read before models are loaded, so that a wrong path is reported at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from draftlens.api import Engine, calibration_seconds, load
from draftlens.cli.options import parse_limits
from draftlens.cli.progress import count_bar, spinner
from draftlens.cli.threads import settle_threads
from draftlens.core.errors import ConfigError
from draftlens.distributed import check_hosts, meet, own_device
from draftlens.media.conversation import Conversation, ask, read
from draftlens.methods import resolve, with_prefill
from draftlens.models.load import Loaded, load_model, load_pair
from draftlens.models.zoo import EMBEDDED

NO_DRAFT = "none"
"""Value of `--draft` for no draft, even where the target's name is that of a pair."""


def read_media(
    quiet: bool, limits: str | None, prompt: str, frames: int = 8, **media: Any
) -> Conversation:
    """Return a prompt with its media read.

    Args:
        quiet: whether the progress bar is hidden.
        limits: the value of `--limits`.
        prompt: the text of the prompt.
        frames: number of frames to sample from a clip.
        media: `video` or `images`, as for `draftlens.media.conversation.ask`.

    Raises:
        MediaError: a file cannot be read.
        ConfigError: the limits are not valid.
    """
    with count_bar("reading frames", quiet) as on_frame:
        return read(ask(prompt, **media), frames, parse_limits(limits), on_frame=on_frame)


def read_files(
    quiet: bool, limits: str | None, prompt: str, frames: int, files: list[Path], images: bool
) -> Conversation:
    """Return a prompt with several images, or with one clip, as `read_media` does."""
    if images:
        return read_media(quiet, limits, prompt, images=list(files))
    return read_media(quiet, limits, prompt, frames, video=files[0])


def load_engine(
    target: str,
    draft: str | None,
    method: Any,
    device: str | None,
    dtype: str | None,
    quiet: bool,
    calibrate: bool = True,
    prefill: Any = None,
    hosts: int | None = None,
) -> Engine:
    """Load a target and its draft while a spinner is shown; the draft `none` is no draft.

    Args:
        target, draft, method, device, dtype, prefill, hosts: as for `draftlens.load`.
        quiet: whether the spinner is hidden.
        calibrate: whether to measure what forwards cost (`Engine.calibrate`).

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError, HostError: as `draftlens.load`.
    """
    check_hosts(hosts, prefill)
    if prefill is not None:
        device = own_device(device)
    began = time.perf_counter()
    with _loading(target, quiet):
        if draft == NO_DRAFT:
            # Reports a wrong method before a long load.
            with_prefill(resolve(method, has_draft=False), prefill)
            engine = Engine(load_model(target, "target", device, dtype), None, method, prefill)
        else:
            engine = load(target, draft, method, device, dtype, calibrate=False, prefill=prefill)
        loading_seconds = time.perf_counter() - began
        # The number of threads decides what forwards cost.
        settle_threads(engine.target.backbone.model)
        if prefill is not None and engine.target.backbone.hosts.size == 1:
            meet(engine.target.backbone, hosts)
        if calibrate:
            engine.calibrate(calibration_seconds(loading_seconds))
    return engine


def load_models(
    target: str, draft: str | None, device: str | None, dtype: str | None, quiet: bool
) -> tuple[Loaded, Loaded | None]:
    """Return a target and its draft, loaded while a spinner is shown.

    The draft is None if its name is `none`.

    Raises:
        ConfigError, UnsupportedModelError, IncompatiblePairError: as `draftlens.load`.
    """
    draft_model: Loaded | None = None
    with _loading(target, quiet):
        if draft == NO_DRAFT:
            target_model = load_model(target, "target", device, dtype)
        else:
            target_model, draft_model = load_pair(target, draft, device, dtype)
    settle_threads(target_model.backbone.model)
    return target_model, draft_model


@contextmanager
def _loading(target: str, quiet: bool) -> Iterator[None]:
    if quiet or target == EMBEDDED:
        transformers_logging.disable_progress_bar()
    with spinner(f"loading {target}", quiet):
        yield


def make_folder(folder: Path) -> None:
    """Make the folder that a command writes to, if it does not exist.

    Raises:
        ConfigError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write to the folder {folder}: {reason}") from error
