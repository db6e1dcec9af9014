"""Implements the `compile` option."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import torch

from draftlens.compile.choice import MODULES, Choice, measured_choice, memory_refusal
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

INT8 = "int8"
"""8-bit weights of a draft's passes."""

QUANTIZING = ("openvino", "auto")
"""Values of `compile` with which `INT8` is OpenVINO's."""

_LIBRARY = Slot[Library]("compiled passes")

_OPENVINO = {
    "": Slot[Passes]("passes by OpenVINO"),
    INT8: Slot[Passes]("passes by OpenVINO with 8-bit weights"),
}

_CHOSEN = {
    "": Slot[tuple[Choice, Passes]]("measured choice of passes"),
    INT8: Slot[tuple[Choice, Passes]]("measured choice of passes with 8-bit weights"),
}

ENGINES = ("inductor", "openvino", "auto")

_log = logging.getLogger("draftlens")


Compile = bool | Literal["inductor", "openvino", "auto"]
"""The option `compile`: what computes decode forwards. False: the model's modules; `"inductor"`,
which True stands for: code that torch compiles; `"openvino"`: OpenVINO, on the CPU in float32;
`"auto"`: the fastest of them as measured, without compiling for inductor."""


def check_compile(value: Any) -> None:
    """Refuse what is no value of the option `compile`.

    Raises:
        ConfigError: names the values, or what is to be installed for one.
    """
    if not isinstance(value, bool) and not (isinstance(value, str) and value in ENGINES):
        raise ConfigError(
            'compile must be True (the same as "inductor"), "openvino", "auto" or False, '
            f"not {shown(value)}"
        )
    if value == "openvino" and find_spec("openvino") is None:
        raise ConfigError('compile="openvino" needs OpenVINO: pip install "draftlens[openvino]"')


def check_quantization(quantization: Any, compile: Any) -> None:
    """Refuse 8-bit weights of a draft's passes where no engine has them.

    Raises:
        ConfigError: names the engine or what is to be installed.
    """
    if not quantization:
        return
    if quantization != INT8 or compile not in QUANTIZING:
        raise ConfigError(
            f'draft_quantization={shown(quantization)} of passes needs compile="openvino" or '
            f'"auto", and is "{INT8}"'
        )
    if find_spec("openvino") is None:
        raise ConfigError('8-bit passes need OpenVINO: pip install "draftlens[openvino]"')


def attach(
    backbones: Sequence[Backbone], compile: Compile, draft_quantization: str | None = None
) -> None:
    """Let models compute their decode forwards by compiled code, or by their modules again.

    Args:
        backbones: the target and, if there is one, the draft.
        compile: what computes their passes, which are compiled before they first run. The modules
            of a model that an engine cannot run stay in use, with a warning that says why.
        draft_quantization: `int8`: OpenVINO's passes of the draft have 8-bit weights.

    Raises:
        ConfigError: a value is unknown or cannot be used.
    """
    check_compile(compile)
    check_quantization(draft_quantization, compile)
    for backbone, quantization in zip(backbones, ("", draft_quantization or ""), strict=False):
        if backbone.plain_only:
            if compile:
                _log.warning(
                    "passes of %s are not compiled: %s", backbone.name, backbone.plain_only
                )
        elif compile == "auto":
            backbone.passes = EAGER
            _, backbone.passes = _CHOSEN[quantization].get_or_make(
                backbone.model, partial(_measured, backbone, quantization)
            )
        else:
            PassEngine(compile, quantization).attach(backbone, compiles=True)


@dataclass(frozen=True)
class PassEngine:
    """What computes the passes of a model, for another process that runs the same model.

    Args:
        compile: as for `attach`, but for `"auto"`.
        quantization: `int8` for 8-bit weights, else empty.
    """

    compile: Compile = False
    quantization: str = ""

    @classmethod
    def of(cls, backbone: Backbone) -> PassEngine:
        passes = backbone.passes
        if isinstance(passes, OpenVinoPasses):
            return cls("openvino", passes.quantization)
        return cls(isinstance(passes, CompiledPasses))

    def attach(self, backbone: Backbone, compiles: bool = False) -> None:
        """Let it compute the passes of a model.

        Args:
            backbone: the model.
            compiles: whether code that is not on disk is compiled; else the modules compute those
                passes.
        """
        backbone.passes = EAGER
        if self.compile == "openvino":
            backbone.passes = _by_openvino(backbone, self.quantization)
        elif self.compile:
            library = _library_of(backbone)
            if library is not None:
                backbone.passes = CompiledPasses(library, compiles)


BY_MODULES = PassEngine()


def compile_usual(backbone: Backbone) -> None:
    """Compile the passes of a request of one row where inductor computes them."""
    passes = backbone.passes
    if isinstance(passes, CompiledPasses) and passes.compiles:
        passes.library.wait(*passes.library.usual_shapes(position_axes(backbone)))


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


def choice_of(backbone: Backbone) -> Choice | None:
    """What `compile="auto"` has measured for a model; None if it was not asked for."""
    for slot in _CHOSEN.values():
        chosen = slot.get(backbone.model)
        if chosen is not None:
            return chosen[0]
    return None


def _by_openvino(backbone: Backbone, quantization: str) -> Passes:
    passes = _OPENVINO[quantization].get(backbone.model)
    if passes is None:
        passes = _new_openvino_passes(backbone, quantization)
        _OPENVINO[quantization].set(backbone.model, passes)
    return passes


def _new_openvino_passes(backbone: Backbone, quantization: str) -> Passes:
    reason = compile_refusal(backbone) or openvino_refusal(backbone)
    if not reason:
        _log.info("preparing passes of %s by OpenVINO", backbone.name)
        try:
            passes = OpenVinoPasses(backbone, position_axes(backbone), quantization)
        except Exception as error:  # conversion raises whatever its parts raise
            last_line = "".join(str(error).strip().splitlines()[-1:])
            reason = f"{type(error).__name__}: {last_line}"
        else:
            _log.info(
                "passes of %s run by OpenVINO%s (%s, compiled and checked in %.1f s)",
                backbone.name,
                f" with {quantization} weights" if quantization else "",
                "graph read from disk" if passes.is_stored else "traced",
                passes.seconds,
            )
            return passes
    _log.warning("passes of %s do not run by OpenVINO: %s", backbone.name, reason)
    return EAGER


def _measured(backbone: Backbone, quantization: str) -> tuple[Choice, Passes]:
    """The fastest passes of a model among those that are ready within seconds."""
    candidates: dict[str, Passes] = {MODULES: EAGER}
    skipped: dict[str, str] = {}
    reason = compile_refusal(backbone)
    library = None if reason else _library_of(backbone)
    if library is None:
        skipped["inductor"] = reason or "no private folder for its code"
    elif library.load(*library.usual_shapes(position_axes(backbone))):
        candidates["inductor"] = CompiledPasses(library, compiles=False)
    else:
        skipped["inductor"] = "no code on disk"
    reason = reason or openvino_refusal(backbone) or memory_refusal(backbone)
    if reason:
        skipped["openvino"] = reason
    else:
        passes = _by_openvino(backbone, quantization)
        if passes is not EAGER:
            candidates[passes.label] = passes
        else:
            skipped["openvino"] = "it cannot run this model"
    choice = measured_choice(backbone, candidates, skipped)
    _log.info("passes of %s run by %s", backbone.name, choice)
    if not choice.name.startswith("openvino"):
        _OPENVINO[quantization].drop(backbone.model)  # frees its copy of the weights
    return choice, candidates[choice.name]


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
    if backbone.plain_only:
        return backbone.plain_only
    if backbone.attention != "sdpa":
        return f"it runs {backbone.attention} attention; load it with sdpa"
    if backbone.is_spread:
        return "accelerate moves its weights or inputs between devices"
    if _has_quantized_weights(backbone):
        return "its weights are quantized"
    kind = changing_frequencies(backbone.text_config)
    if kind:
        return f"the frequencies of its {kind} rotary positions change with the length"
    if any(_has_hooks(module) for module in backbone.decoder.modules()):
        return "its modules have hooks, which compiled code would not call"
    return ""


def _has_quantized_weights(backbone: Backbone) -> bool:
    """False also for weights that were quantized on disk only, such as those of a GGUF file."""
    if getattr(backbone.model.config, "quantization_config", None) is None:
        return False
    modules = (backbone.decoder, backbone.head)
    tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    return any(
        type(each.data) is not torch.Tensor
        or not each.is_floating_point()
        or each.element_size() == 1
        for each in tensors
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def position_axes(backbone: Backbone) -> tuple[int, ...]:
    """Leading dimensions of the model's positions: empty, or the axes of M-RoPE."""
    ids = torch.ones(1, 2, dtype=torch.long, device=backbone.device)
    return tuple(backbone.text_prompt(ids).position_ids.shape[:-2])
