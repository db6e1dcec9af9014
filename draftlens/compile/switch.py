"""Implements the `compile` option."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

import torch

from draftlens.compile.compiler import Compiler
from draftlens.compile.library import Library
from draftlens.compile.openvino_passes import OpenVinoPasses, openvino_refusal
from draftlens.compile.passes import CompiledPasses
from draftlens.compile.skeleton import Skeleton
from draftlens.compile.store import folder_of
from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.model_state import Slot
from draftlens.models.rope import changing_frequencies

_LIBRARY = Slot[Library]("compiled passes")

_OPENVINO = Slot[Passes]("passes by OpenVINO")

ENGINES = ("inductor", "openvino")

_log = logging.getLogger("draftlens")


Compile = bool | Literal["inductor", "openvino"]
"""The option `compile`: what computes decode forwards. False: the model's modules; `"inductor"`,
which True stands for: code that torch compiles; `"openvino"`: OpenVINO, on the CPU in float32."""


def check_compile(value: Any) -> None:
    """Refuse what is no value of the option `compile`.

    Raises:
        ConfigError: names the values, or what is to be installed for one.
    """
    if not isinstance(value, bool) and value not in ENGINES:
        raise ConfigError(
            'compile must be True (the same as "inductor"), "openvino" or False, '
            f"not {shown(value)}"
        )
    if value == "openvino" and find_spec("openvino") is None:
        raise ConfigError('compile="openvino" needs OpenVINO: pip install "draftlens[openvino]"')


def attach(backbones: Sequence[Backbone], compile: Compile) -> None:
    """Let models compute their decode forwards by compiled code, or by their modules again.

    Args:
        backbones: the models.
        compile: what computes their passes, which are compiled before they first run. The modules
            of a model that an engine cannot run stay in use, with a warning that says why.

    Raises:
        ConfigError: `compile` has another value.
    """
    check_compile(compile)
    for backbone in backbones:
        backbone.passes = EAGER
        if compile == "openvino":
            backbone.passes = _by_openvino(backbone)
        elif compile:
            library = _library_of(backbone)
            if library is not None:
                backbone.passes = CompiledPasses(library)


def compile_usual(backbone: Backbone) -> None:
    """Compile the passes of a request of one row, if `attach` has found that they can be."""
    library = _LIBRARY.get(backbone.model)
    if library is None:
        return
    library.wait(*library.usual_shapes(position_axes(backbone)))


def describe_passes(backbone: Backbone) -> str:
    """Which passes of a model are compiled on this machine, or why none can be."""
    reason = compile_refusal(backbone)
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


def _by_openvino(backbone: Backbone) -> Passes:
    passes = _OPENVINO.get(backbone.model)
    if passes is None:
        passes = _new_openvino_passes(backbone)
        _OPENVINO.set(backbone.model, passes)
    return passes


def _new_openvino_passes(backbone: Backbone) -> Passes:
    reason = compile_refusal(backbone) or openvino_refusal(backbone)
    if not reason:
        try:
            passes = OpenVinoPasses(backbone)
        except Exception as error:  # conversion raises whatever its parts raise
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
        else:
            _log.info("passes of %s run by OpenVINO (%.1f s)", backbone.name, passes.seconds)
            return passes
    _log.warning("passes of %s do not run by OpenVINO: %s", backbone.name, reason)
    return EAGER


def _library_of(backbone: Backbone) -> Library | None:
    library = _LIBRARY.get(backbone.model)
    if library is not None:
        return library
    reason = compile_refusal(backbone)
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


def compile_refusal(backbone: Backbone) -> str:
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
