"""Who compiles: from the option `compile` to passes behind the seam of a model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from draftlens.compile.compiler import Compiler
from draftlens.compile.library import Library
from draftlens.compile.passes import CompiledPasses
from draftlens.compile.skeleton import Skeleton
from draftlens.compile.store import folder_of
from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER
from draftlens.models.model_state import Slot
from draftlens.models.rope import changing_frequencies

_LIBRARY = Slot[Library]("compiled passes")

_log = logging.getLogger("draftlens")


def check_compile(value: Any) -> None:
    """Refuse what is no value of the option `compile`.

    Raises:
        ConfigError: names the values.
    """
    if not isinstance(value, bool):
        raise ConfigError(
            f"compile must be True (passes are compiled before they first run) or False, "
            f"not {shown(value)}"
        )


def attach(backbones: Sequence[Backbone], compile: bool) -> None:
    """Let models compute their decode forwards by compiled code, or by their modules again.

    Args:
        backbones: the models.
        compile: whether their passes are compiled, each before it first runs.

    Raises:
        ConfigError: `compile` has another value.
    """
    check_compile(compile)
    for backbone in backbones:
        backbone.passes = EAGER
        library = _library_of(backbone) if compile else None
        if library is not None:
            backbone.passes = CompiledPasses(library)


def compile_usual(backbone: Backbone) -> None:
    """Compile the passes of a request of one row, if `attach` has found that they can be."""
    library = _LIBRARY.get(backbone.model)
    if library is None:
        return
    library.wait(*library.usual_shapes(position_axes(backbone)))


def describe(backbone: Backbone) -> str:
    """Which passes of a model are compiled on this machine, or why none can be."""
    reason = refusal(backbone)
    if reason:
        return f"never: {reason}"
    missing = Compiler().missing
    if missing:
        return f"never: {missing}"
    try:
        folder = folder_of(backbone, Skeleton.of(backbone))
    except OSError as error:
        return f"never: {error}"
    names = sorted(path.stem for path in folder.glob("*.pt2"))
    return ", ".join(names) or "none yet"


def library_of(backbone: Backbone) -> Library | None:
    """The compiled passes of a model; None if they were never requested or are refused."""
    return _LIBRARY.get(backbone.model)


def _library_of(backbone: Backbone) -> Library | None:
    library = _LIBRARY.get(backbone.model)
    if library is not None:
        return library
    reason = refusal(backbone)
    if reason:
        _log.warning("passes of %s are not compiled: %s", backbone.name, reason)
        return None
    skeleton = Skeleton.of(backbone)
    try:
        folder = folder_of(backbone, skeleton)
    except OSError as error:
        _log.warning("passes of %s are not compiled: %s", backbone.name, error)
        return None
    library = Library(backbone, skeleton, folder, Compiler())
    _LIBRARY.set(backbone.model, library)
    return library


def refusal(backbone: Backbone) -> str:
    """Why passes of a model cannot be compiled, as far as this is known beforehand; else empty."""
    if backbone.attention != "sdpa":
        return f"it runs {backbone.attention} attention; load it with sdpa"
    if backbone.is_spread:
        return "accelerate moves its weights or inputs between devices"
    if getattr(backbone.model.config, "quantization_config", None) is not None:
        return "its weights are quantized"
    kind = changing_frequencies(backbone.text_config)
    if kind:
        return f"the frequencies of its {kind} rotary positions change with the length"
    if any(_has_hooks(module) for module in backbone.decoder.modules()):
        return "its modules have hooks, which compiled code would not call"
    return ""


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def position_axes(backbone: Backbone) -> tuple[int, ...]:
    """Leading dimensions of the model's positions: empty, or the axes of M-RoPE."""
    ids = torch.ones(1, 2, dtype=torch.long, device=backbone.device)
    return tuple(backbone.text_prompt(ids).position_ids.shape[:-2])
