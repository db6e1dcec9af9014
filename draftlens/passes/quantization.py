"""Weights of passes that an engine keeps in fewer bits: those of a draft, which change no answer,
and those of a target, whose answers become those of the rounded model
([quantization](../../docs/quantization.md))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.core.memory import trim_memory
from draftlens.core.names import AUTO, UNQUANTIZED
from draftlens.core.options import shown
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER, Passes
from draftlens.models.media_features import with_features
from draftlens.models.prompt import Encoded, remembering
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.rounded_weights import is_released
from draftlens.passes.base import PASSES, Compile, PassEngine, made_passes, name_of, preferred


def quantizations_of(compile: Compile) -> tuple[str, ...]:
    """The values of `quantization` and `draft_quantization` that are those of passes."""
    if compile == AUTO:
        return tuple(each for name in preferred() for each in PASSES[name].quantizations)
    return () if isinstance(compile, bool) else tuple(PASSES[compile].quantizations)


def check_quantization(
    quantization: Any, compile: Compile, option: str = "draft_quantization"
) -> None:
    """Refuse weights of passes that no engine has.

    Raises:
        ConfigError: names the engines or what is to be installed.
    """
    if not quantization or quantization == UNQUANTIZED:
        return
    if quantization not in quantizations_of(compile):
        able = {name: PASSES[name].quantizations for name in PASSES if PASSES[name].quantizations}
        names = " or ".join(f'"{name}"' for name in [*able, AUTO])
        values = " or ".join(f'"{each}"' for each in dict.fromkeys(sum(able.values(), ())))
        raise ConfigError(
            f"{option}={shown(quantization)} of passes needs compile={names}, and is {values}"
        )
    for name in preferred() if compile == AUTO else [name_of(compile)]:
        if quantization in PASSES[name].quantizations and (missing := PASSES[name]().missing):
            raise ConfigError(f"{quantization} passes need {missing}")


def encoded_alone(model: Any, inputs: Mapping[str, Any]) -> Encoded:
    """Encode each picture by itself, as it would be if a cache had the others: the last bit of its
    features moves rounded activations."""
    with remembering(""):
        return Encoded(with_features(PromptCache(0), model, inputs))


def check_weights(backbone: Backbone) -> None:
    """Raise `UnsupportedModelError` if rounded passes have the only weights of a model."""
    if is_released(backbone.model):
        raise UnsupportedModelError(f"{backbone.name} has rounded weights alone: load it again")


def rounding_engine(compile: Compile, quantization: str) -> PassEngine:
    """The engine of a target with these weights, which `check_quantization` has let through."""
    names = preferred() if compile == AUTO else [name_of(compile)]
    kind = next(PASSES[name] for name in names if quantization in PASSES[name].quantizations)
    engine: PassEngine = kind(quantization=quantization, is_target=True)
    return engine


def attach_rounded(backbone: Backbone, compile: Compile, quantization: str) -> None:
    """Let an engine compute all passes of a target with rounded weights.

    Raises:
        UnsupportedModelError: it cannot.
    """
    engine = rounding_engine(compile, quantization)
    backbone.passes = EAGER
    trim_memory()  # of reading the checkpoint
    passes = made_passes(backbone, engine)
    trim_memory()
    if not isinstance(passes, Passes):
        of_weights = f"{quantization}-weights"
        other = shown(of_weights) if of_weights in engine.quantizations else "another quantization"
        raise UnsupportedModelError(
            f"{backbone.name} does not run with quantization={shown(quantization)} by "
            f"{engine.label}: {passes}; take {other}, or none"
        )
    backbone.passes = passes
    backbone.encode_pixels = encoded_alone
    backbone.products.num_pixel_weights = 0
