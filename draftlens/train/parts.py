"""The parts of a vision-language model by the names that transformers gives them: projector,
vision, language."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from draftlens.core.errors import UnsupportedModelError

PROJECTORS = (
    *(
        "multi_modal_projector",
        "multimodal_projector",
        "mm_projector",
        "connector",
        "merger",
        "deepstack_merger_list",
    ),
    *(
        "aligner",
        "projector",
        "image_to_text_projection",
        "embed_vision",
        "vision_projection",
        "vision_adapter",
    ),
    *("vision_resampler", "perceiver_resampler", "resampler_model", "vit_merger", "patch_merger"),
)
"""Modules between vision encoder and language model; Qwen's `merger` is inside its vision
encoder."""

ENCODERS = (
    "vision_tower",
    "visual",
    "vision_model",
    "vision_encoder",
    "image_tower",
    "video_tower",
)
"""Vision encoders."""


@dataclass(frozen=True)
class Parts:
    """Names of the model's parameters by part.

    Args:
        projector: between vision and language.
        vision: the vision encoder without the projector.
        language: all others: the language model, its embeddings and head, and what separates images
            (LLaVA-NeXT's `image_newline`), which LLaVA also leaves as it is while it trains the
            projector.
        encoders: paths of the vision encoders, for `get_submodule`.
    """

    projector: frozenset[str]
    vision: frozenset[str]
    language: frozenset[str]
    encoders: tuple[str, ...]

    def trained(self, stage: str, with_vision: bool) -> frozenset[str]:
        """Names of what a stage trains."""
        if stage == "projector":
            return self.projector
        return self.projector | self.language | (self.vision if with_vision else frozenset())


def find_parts(model: Any) -> Parts:
    """Tell the parts of a model apart.

    Raises:
        UnsupportedModelError: it has no projector or no vision encoder of a known name.
    """
    name, decoder = type(model).__name__, model.get_decoder()
    below = {id(module) for module in decoder.modules()}
    modules = {path: module for path, module in model.named_modules() if id(module) not in below}
    projectors, encoders = (_outermost(modules, known) for known in (PROJECTORS, ENCODERS))
    for what, found, known in (
        ("projector", projectors, PROJECTORS),
        ("vision encoder", encoders, ENCODERS),
    ):
        if not found:
            raise UnsupportedModelError(
                f"{name} shows no {what}: none of its modules is called {', '.join(known)}"
            )
    names = [path for path, _ in model.named_parameters()]
    projector = frozenset(_under(names, projectors))
    vision = frozenset(_under(names, encoders)) - projector
    return Parts(projector, vision, frozenset(names) - projector - vision, tuple(encoders))


def _outermost(modules: Iterable[str], known: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for path in modules:  # parents come first
        if path.rpartition(".")[2] in known and not path.startswith(
            tuple(f"{other}." for other in found)
        ):
            found.append(path)
    return found


def _under(names: Iterable[str], paths: list[str]) -> list[str]:
    return [name for name in names if name.startswith(tuple(f"{path}." for path in paths))]
