"""Loading of the draft, its processor and an outline of the target, with checks that they match."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.models.adapter import Backbone
from draftlens.models.checks import check_modalities, check_tokenizers, check_vocabularies
from draftlens.models.known_pairs import path_of
from draftlens_lab.train.errors import loading
from draftlens_lab.train.labels import AnswerProcessor
from draftlens_lab.train.options import DraftTraining
from draftlens_lab.train.parts import Parts, find_parts


@dataclass(frozen=True)
class Draft:
    """The draft to train.

    Args:
        model: float32, on the CPU.
    """

    model: Any
    processor: AnswerProcessor
    parts: Parts


@dataclass(frozen=True)
class _Source:
    path: str
    has_weights: bool


@dataclass(frozen=True)
class _Outline:
    """The properties of a model that a check of a pair needs; they do not require its weights."""

    name: str
    vocab_size: int
    modalities: frozenset[str]


def load_draft(options: DraftTraining) -> Draft:
    """Load the draft, or build it with random weights, and compare it with the targets."""
    name = str(options.draft or options.draft_config)
    source = _find_source(options)
    processor = AnswerProcessor(_find_processor(options, source), name)
    torch.manual_seed(options.seed)
    model = _load_model(source, name)
    _check_ids(model, processor.processor, name)
    # It runs the model on four tokens, so a model that cannot draft is refused before training.
    backbone = Backbone(model.eval())
    if backbone.plain_only:
        raise UnsupportedModelError(f"{backbone.plain_only}: it cannot draft")
    targets = [target for target in (options.target, options.distil) if target]
    for target in dict.fromkeys(targets):
        tokenizer = load_processor(target, "target").tokenizer
        check_tokenizers(tokenizer, processor.processor.tokenizer, target, name)
        outline = _outline(target)
        check_vocabularies(outline, backbone)
        check_modalities(outline, backbone)
    return Draft(model, processor, find_parts(model))


def load_processor(name: str, role: str) -> Any:
    """Load a model's processor.

    Args:
        name: a folder, a Hub id, or ``embedded``.
        role: ``target`` or ``draft``.
    """
    with loading(f"the processor of {name!r}"):
        processor = AutoProcessor.from_pretrained(path_of(name, role))
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise ConfigError(f"{name!r} has no processor of images and text")
    return processor


def _find_source(options: DraftTraining) -> _Source:
    config = options.draft_config
    if config is not None:
        if not config.exists():
            raise ConfigError(f"there is no draft config {str(config)!r}")
        return _Source(str(config), has_weights=False)
    path = path_of(options.draft or "", "draft")
    folder = Path(path)
    if folder.is_dir():
        weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
        return _Source(path, has_weights=bool(weights))
    is_hub_id = not (folder.is_absolute() or path.startswith(".") or path.count("/") > 1)
    if not is_hub_id:
        raise ConfigError(f"cannot load the draft {path!r}: there is no such folder")
    return _Source(path, has_weights=True)


def _find_processor(options: DraftTraining, source: _Source) -> Any:
    if options.processor is not None:
        return load_processor(options.processor, "draft")
    if source.has_weights:
        return load_processor(options.draft or "", "draft")
    # A config alone has no processor, so one that is beside it belongs to it.
    path = Path(source.path)
    folder = path if path.is_dir() else path.parent
    if any(folder.glob("*processor_config.json")):
        return load_processor(str(folder), "draft")
    target = options.target or options.distil
    if target is None:
        raise ConfigError(
            "a draft that starts from a config needs a processor: name a target or a processor"
        )
    return load_processor(target, "target")


def _load_model(source: _Source, name: str) -> Any:
    """The draft in float32, with the source's weights or random ones."""
    model_class = AutoModelForImageTextToText
    with loading(f"the draft {name!r}"):
        if source.has_weights:
            return model_class.from_pretrained(source.path, dtype=torch.float32)
        config = AutoConfig.from_pretrained(source.path)
        return model_class.from_config(config, dtype=torch.float32)


def _check_ids(model: Any, processor: Any, name: str) -> None:
    """Refuse a config with another vocabulary or other placeholder ids than the processor."""
    num_ids = model.get_input_embeddings().weight.shape[0]
    highest = max(processor.tokenizer.get_vocab().values())
    if highest >= num_ids:
        raise ConfigError(
            f"the draft {name!r} has {num_ids} token ids, but its processor makes ids up to "
            f"{highest}"
        )
    for kind in ("image", "video"):
        model_ids = _placeholder_ids(model.config, kind)
        processor_id = getattr(processor, f"{kind}_token_id", None)
        if model_ids and processor_id is not None and processor_id not in model_ids:
            raise ConfigError(
                f"the draft {name!r} takes id {min(model_ids)} as its {kind} token, but its "
                f"processor writes {processor_id}: set {kind}_token_id in the config"
            )


def _placeholder_ids(config: Any, kind: str) -> set[int]:
    ids = set()
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        index = getattr(config, name, None)
        if index is not None:
            ids.add(index)
    return ids


def _outline(target: str) -> Any:
    with loading(f"the target {target!r}"), torch.device("meta"):
        config = AutoConfig.from_pretrained(path_of(target, "target"))
        model = AutoModelForImageTextToText.from_config(config)
    head = model.get_output_embeddings()
    if head is None:
        raise UnsupportedModelError(f"{type(model).__name__} does not expose its output head")
    modalities = model.input_modalities
    if isinstance(modalities, str):
        modalities = (modalities,)
    return _Outline(type(model).__name__, head.weight.shape[0], frozenset(modalities))
