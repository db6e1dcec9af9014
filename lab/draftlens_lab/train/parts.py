"""The parts of a vision-language model, found by the names of its modules in transformers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from draftlens.core.errors import UnsupportedModelError

PROJECTORS = (
    "multi_modal_projector",
    "multimodal_projector",
    "mm_projector",
    "connector",
    "merger",
    "deepstack_merger_list",
    "aligner",
    "projector",
    "image_to_text_projection",
    "embed_vision",
    "vision_projection",
    "vision_adapter",
    "vision_resampler",
    "perceiver_resampler",
    "resampler_model",
    "vit_merger",
    "patch_merger",
)
"""Names of modules between vision encoder and language model. Qwen's `merger` is inside its vision
encoder."""

ENCODERS = (
    "vision_tower",
    "visual",
    "vision_model",
    "vision_encoder",
    "image_tower",
    "video_tower",
)
"""Names of vision encoders."""


@dataclass(frozen=True)
class Parts:
    """Names of the model's parameters by part.

    Args:
        vision: parameters of the vision encoder, without the projector.
    """

    projector: frozenset[str]
    vision: frozenset[str]
    language: frozenset[str]
    encoders: tuple[str, ...]

    def trained(self, stage: str, with_vision: bool) -> frozenset[str]:
        """Names of the parameters that a stage trains."""
        if stage == "projector":
            return self.projector
        names = self.projector | self.language
        return names | self.vision if with_vision else names


def find_parts(model: Any) -> Parts:
    """Sort the parameters of a model into its parts."""
    inside_decoder = {id(module) for module in model.get_decoder().modules()}
    paths = [path for path, module in model.named_modules() if id(module) not in inside_decoder]
    model_name = type(model).__name__
    projectors = _find_modules(paths, PROJECTORS, f"{model_name} has no projector")
    encoders = _find_modules(paths, ENCODERS, f"{model_name} has no vision encoder")
    names = frozenset(name for name, _ in model.named_parameters())
    projector = _under(names, projectors)
    vision = _under(names, encoders) - projector
    return Parts(projector, vision, names - projector - vision, tuple(encoders))


def _find_modules(paths: Iterable[str], names: tuple[str, ...], failure: str) -> list[str]:
    modules: list[str] = []
    for path in paths:  # `named_modules` returns parents before their children
        name = path.rpartition(".")[2]
        if name in names and not _is_under(path, modules):
            modules.append(path)
    if not modules:
        raise UnsupportedModelError(
            f"{failure} of a known name: none of its modules is called {', '.join(names)}"
        )
    return modules


def _under(names: Iterable[str], modules: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if _is_under(name, modules))


def _is_under(name: str, modules: Iterable[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
