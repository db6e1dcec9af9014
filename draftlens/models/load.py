"""Loads models by name. No other module reads checkpoints for inference or selects devices."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TEXT_MODELS,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as VISION_MODELS,
)

from draftlens.core.errors import ConfigError, IncompatiblePairError, UnsupportedModelError
from draftlens.core.hub import check_hub, is_cached, is_local, refuse_gguf
from draftlens.core.names import AUTO
from draftlens.models.adapter import Backbone
from draftlens.models.checks import check_tokenizers, check_vocabularies, unseen
from draftlens.models.known_pairs import draft_for, draft_for_config, path_of, remedy
from draftlens.models.loading import LoadOptions, PairOptions, TextProcessor, bars_for_an_audience
from draftlens.models.retokenizer import Retokenizer

CONFIGS = ("config.json", "adapter_config.json")
"""A checkpoint has one of these files."""

_log = logging.getLogger("draftlens")

PLAIN = LoadOptions()
PLAIN_PAIR = PairOptions()


@dataclass(frozen=True)
class Loaded:
    name: str
    backbone: Backbone
    processor: Any


def load_model(
    name: str,
    role: str,
    options: LoadOptions = PLAIN,
    template: Any = None,
) -> Loaded:
    """Load a checkpoint (a folder, a Hub id, or `embedded`) and its processor, from the local cache
    if it is there. A draft may be text-only; its fallback chat template is that of `template`.

    Raises:
        ConfigError: nothing can be loaded from `name`, or the device cannot be used.
        UnsupportedModelError: the model lacks something that draftlens needs.
    """
    _check_device(options.placed_on)
    path = path_of(name, role)
    if _is_in_cache(path, options):
        try:
            return _read(_Source(name, role, path, options, offline=True), template)
        except ConfigError:  # a file is missing in the cache
            check_hub(path, role, options.revision)
    else:
        check_source(name, role, options)
    return _read(_Source(name, role, path, options), template)


def wrap(model: Any, processor: Any, role: str, template: Any = None) -> Loaded:
    """A loaded transformers model with its processor (a tokenizer for a draft of text only). Raises
    `ConfigError` without a processor, or `UnsupportedModelError`."""
    if processor is None:
        raise ConfigError(f"a {role} that is loaded already needs its processor: give both")
    backbone = Backbone.of(model)
    name = str(getattr(backbone.model.config, "_name_or_path", "")) or backbone.name
    if not hasattr(processor, "tokenizer"):
        if role == "target":
            raise UnsupportedModelError(
                f"the processor of the target {name!r} is a tokenizer, which takes no pictures and "
                "clips: give the processor of a vision-language model"
            )
        processor = TextProcessor(processor, template, name)
    return Loaded(name, backbone, processor)


def as_pair(
    target: Any, draft: Any, processor: Any, draft_processor: Any
) -> tuple[Loaded, Loaded | None]:
    """A target and a draft, each `Loaded` or a transformers model with its processor. A draft
    without one uses the target's, or only its tokenizer if the draft takes fewer modalities.

    Raises:
        ConfigError: the target has no processor.
        UnsupportedModelError: as for `wrap`.
        IncompatiblePairError: the two cannot work together.
    """
    if not isinstance(target, Loaded):
        target = wrap(target, processor, "target")
    if draft is None or isinstance(draft, Loaded):
        return target, draft
    if draft_processor is None:
        draft_processor = target.processor
        if unseen(target.backbone, Backbone.of(draft)):
            draft_processor = target.processor.tokenizer
    wrapped = wrap(draft, draft_processor, "draft", target.processor)
    check_pair(target, wrapped)
    return target, wrapped


def load_pair(
    target: str, draft: str | None, options: PairOptions = PLAIN_PAIR
) -> tuple[Loaded, Loaded | None]:
    """Load a target and its draft (`auto` for the known one, None for none); check that they fit.

    Raises:
        ConfigError: as for `load_model`, or no draft is known for the target.
        UnsupportedModelError: as for `load_model`.
        IncompatiblePairError: the two cannot work together.
    """
    if draft == AUTO:
        draft = known_draft(target, options.target)
        if draft is None:
            raise ConfigError(f"no draft is known for {target!r}: {remedy()}")
    if draft is not None:
        check_source(draft, "draft", options.draft)  # before a long load of the target
    loaded = load_model(target, "target", options.target)
    return loaded, None if draft is None else load_draft(draft, loaded, options)


def load_draft(name: str, target: Loaded, options: PairOptions) -> Loaded:
    draft = load_model(name, "draft", options.draft, target.processor)
    check_pair(target, draft)
    return draft


def check_pair(target: Loaded, draft: Loaded) -> None:
    """Compare the tokenizers: a draft with another one gets a `Retokenizer`. Raises
    `IncompatiblePairError` if equal tokenizers come with vocabularies of other sizes, or another
    one has more tokens than the draft, and `UnsupportedModelError` for a draft that cannot be
    rolled back."""
    if draft.backbone.plain_only:
        raise UnsupportedModelError(f"{draft.backbone.plain_only}: it cannot draft")
    tokenizers = target.processor.tokenizer, draft.processor.tokenizer
    draft.backbone.retokenizer = None
    try:
        check_tokenizers(*tokenizers, target.name, draft.name)
    except IncompatiblePairError as difference:
        num_tokens, num_known = len(tokenizers[1]), draft.backbone.vocab_size
        if num_tokens > num_known:
            raise IncompatiblePairError(
                f"the tokenizer of the draft has {num_tokens} tokens, and the draft {draft.name} "
                f"{num_known}: it is that of another model"
            ) from difference
        _log.warning("%s: what the draft writes is tokenized again", difference)
        draft.backbone.retokenizer = Retokenizer(*tokenizers)
        return
    check_vocabularies(target.backbone, draft.backbone)


def known_draft(target: str, options: LoadOptions) -> str | None:
    """The known draft of a target: by its name, else by its configuration, so that local copies and
    quantized variants are recognized."""
    by_name = draft_for(target)
    if by_name is not None:
        return by_name
    path = path_of(target, "target")
    offline = _is_in_cache(path, options)
    if not offline:
        check_source(target, "target", options)
    config = _read_config(path, options, offline)
    return None if config is None else draft_for_config(config)


def check_source(name: str, role: str, options: LoadOptions) -> None:
    """Raise `ConfigError` unless a folder, the Hub or its local cache has the model."""
    path = path_of(name, role)
    refuse_gguf(path, role)
    if not is_local(path):
        if not _is_in_cache(path, options):
            check_hub(path, role, options.revision)
        return
    folder = Path(path)
    if any((folder / config).is_file() for config in CONFIGS):
        return
    reason = "there is no such folder"
    if folder.is_dir():
        inner = sorted(path.parent.name for path in folder.glob(f"*/{CONFIGS[0]}"))
        hint = f"; there is one in {', '.join(inner[:5])}" if inner else ""
        reason = f"it holds no {CONFIGS[0]}{hint}"
    elif folder.exists():
        reason = "it is a file, not a folder"
    raise ConfigError(f"cannot load the {role} {name!r}: {reason}")


def _is_in_cache(path: str, options: LoadOptions) -> bool:
    return not is_local(path) and is_cached(path, options.revision, options.cache_dir)


@dataclass(frozen=True)
class _Source:
    """A checkpoint at a folder or Hub id `path`; `offline`: only the local cache is read."""

    name: str
    role: str
    path: str
    options: LoadOptions
    offline: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        arguments = self.options.source_arguments()
        if self.offline:
            arguments["local_files_only"] = True
        return arguments


def _read(source: _Source, template: Any) -> Loaded:
    kind = _text_only(source)
    if kind and source.role == "target":
        raise UnsupportedModelError(
            f"the target {source.name!r} is a model of text only ({kind}), which cannot see "
            "pictures and clips: name a vision-language model"
        )
    model_arguments = source.options.model_arguments()
    try:
        with bars_for_an_audience():
            if kind:
                model, tokenizer = _read_language_model(source, model_arguments)
                processor = TextProcessor(tokenizer, template, source.name)
            else:
                model, processor = _read_checkpoint(source, model_arguments)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise ConfigError(
            f"cannot load the {source.role} {source.name!r}: {_first_line(error)}"
        ) from error
    if not hasattr(processor, "apply_chat_template"):
        raise UnsupportedModelError(f"{source.name} has no processor with a chat template")
    return Loaded(source.name, Backbone.of(model), processor)


def _text_only(source: _Source) -> str:
    """The architecture of a model of text only; empty for other models."""
    config = _read_config(source.path, source.options, source.offline)
    kind: str = getattr(config, "model_type", "")
    return kind if kind in TEXT_MODELS and kind not in VISION_MODELS else ""


def _read_config(path: str, options: LoadOptions, offline: bool = False) -> Any:
    """The configuration of a checkpoint; None if it has faults, which the loading reports."""
    arguments = options.source_arguments()
    try:
        return AutoConfig.from_pretrained(path, local_files_only=offline, **arguments)
    except (OSError, ValueError):
        return None


def _read_checkpoint(source: _Source, model_arguments: dict[str, Any]) -> tuple[Any, Any]:
    processor = AutoProcessor.from_pretrained(source.path, **source.arguments)
    model = AutoModelForImageTextToText.from_pretrained(
        source.path, **source.arguments, **model_arguments
    )
    return model.eval(), processor


def _read_language_model(source: _Source, model_arguments: dict[str, Any]) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(source.path, **source.arguments)
    model = AutoModelForCausalLM.from_pretrained(source.path, **source.arguments, **model_arguments)
    return model.eval(), tokenizer


def _check_device(device: str) -> None:
    if device == "auto":
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """The first line of an error's message; the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
