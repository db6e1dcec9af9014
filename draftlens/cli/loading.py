"""Media and models of a command.

Media are read before models are loaded, so that a wrong path is reported at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from draftlens.cli.options import NO_DRAFT, PLAIN, Loading
from draftlens.cli.progress import count_bar, is_hidden, spinner
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO, EMBEDDED, UNQUANTIZED
from draftlens.engine import Engine
from draftlens.load_engine import PREPARING, LoadProgress, load, pop_pass_quantization
from draftlens.media import Limits
from draftlens.media.conversation import Conversation, ask, read
from draftlens.models.load import Loaded, known_draft, load_pair
from draftlens.models.loading import pair_options

MAX_SINGLE_THREADED = 50_000_000
"""Number of parameters below which one thread is faster than several.

In smaller models, threads wait for each other longer than they compute.
"""

PREPARING_SECONDS = 2.0
"""Time from which the preparation of passes is shown."""

_log = logging.getLogger("draftlens")


def read_media(
    quiet: bool, limits: Limits, prompt: str, frames: int = 8, **media: Any
) -> Conversation:
    """Return a prompt with its media read."""
    with count_bar("reading frames", quiet) as on_frame:
        return read(ask(prompt, **media), frames, limits, on_frame=on_frame)


def read_files(
    quiet: bool,
    limits: Limits,
    prompt: str,
    frames: int,
    files: Sequence[str | Path],
    images: bool,
) -> Conversation:
    """Return a prompt with several images, or with one clip, as `read_media` does."""
    if images:
        return read_media(quiet, limits, prompt, images=list(files))
    return read_media(quiet, limits, prompt, frames, video=files[0])


def engine_of(decoding: Mapping[str, Any], loading: Loading, quiet: bool = False) -> Engine:
    """`draftlens.load`, with a spinner for each stage; the draft `none` is no draft.

    The number of threads, which decides what forwards cost, is settled before they are measured.
    """
    _hide_bars(decoding["target"], quiet)

    def stage(description: str) -> AbstractContextManager[None]:
        return spinner(description, quiet, PREPARING_SECONDS if description == PREPARING else 0.0)

    progress = LoadProgress(stage, settle_threads)
    draft = _draft_name(decoding["draft"])
    return load(**{**decoding, "draft": draft}, progress=progress, **loading)


def engine_in_full(decoding: Mapping[str, Any], loading: Loading, quiet: bool = False) -> Engine:
    """As `engine_of`, with a target whose modules keep their weights where its passes round them,
    so that the two can be compared."""
    words = dict(loading)
    compile = decoding["compile"]
    quantization = pop_pass_quantization(words, compile, "quantization")
    if quantization in (None, UNQUANTIZED):
        return engine_of(decoding, loading, quiet)
    del words["quantization"]
    of_draft = pop_pass_quantization(words, compile, "draft_quantization")
    engine = engine_of({**decoding, "compile": False, "calibrate": False}, words, quiet)
    with spinner(PREPARING, quiet, PREPARING_SECONDS):
        engine.compile(compile, of_draft, quantization)
    engine.calibrate()
    return engine


def load_models(
    target: str, draft: str, loading: Loading = PLAIN, quiet: bool = False
) -> tuple[Loaded, Loaded | None]:
    """Return a target and its draft, loaded while a spinner is shown.

    The draft is None for the name `none`, and with a warning for `auto` if none is known.
    """
    options = pair_options(loading)
    name = _draft_name(draft)
    _hide_bars(target, quiet)
    with spinner(f"loading {target}", quiet):
        if name == AUTO:
            name = known_draft(target, options.target)
            if name is None:
                _log.warning("no draft is known for %r: the target alone is loaded", target)
        target_model, draft_model = load_pair(target, name, options)
    settle_threads(target_model.backbone.model)
    return target_model, draft_model


def _draft_name(draft: str) -> str | None:
    return None if draft == NO_DRAFT else draft


def _hide_bars(target: str, quiet: bool) -> None:
    """Hide the progress bars of transformers for the models in the package, or on request."""
    transformers_logging.set_verbosity_error()
    if target == EMBEDDED or is_hidden(quiet):
        transformers_logging.disable_progress_bar()


def make_folder(folder: Path) -> None:
    """Make the folder that a command writes to, if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot write to the folder {folder}: {reason}") from error


def settle_threads(model: Any) -> None:
    """Set torch to one thread if a model is small and on the CPU.

    Does nothing if the user has set OMP_NUM_THREADS. On a busy machine several threads are five or
    more times slower, because each thread without a core delays all others.
    """
    if "OMP_NUM_THREADS" in os.environ or model.device.type != "cpu":
        return
    tensors = (*model.parameters(), *model.buffers())  # rounded weights are buffers
    if sum(tensor.numel() for tensor in tensors) < MAX_SINGLE_THREADED:
        torch.set_num_threads(1)
