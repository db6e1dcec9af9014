"""The draft to train, the processors, and the target: loaded, and refused where they cannot work
together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from draftlens.core.errors import ConfigError, DraftlensError, UnsupportedModelError
from draftlens.models.backbone import Backbone
from draftlens.models.pair import check_models, check_tokenizers
from draftlens.models.zoo import path_of
from draftlens.train.labels import AnswerProcessor
from draftlens.train.options import DraftTraining
from draftlens.train.parts import Parts, find_parts


@dataclass(frozen=True)
class Draft:
    """What is trained.

    Args:
        model: float32, on the CPU.
        processor: its own.
        parts: its parameters by part.
    """

    model: Any
    processor: AnswerProcessor
    parts: Parts


def load_draft(options: DraftTraining) -> Draft:
    """Load the draft or make it with random weights, find its processor and compare its tokenizer
    with the targets'.

    Raises:
        ConfigError: a model or processor cannot be loaded, or the config does not go with the
            processor.
        UnsupportedModelError: the draft cannot be driven by draftlens, or its parts cannot be told
            apart.
        IncompatiblePairError: its tokenizer is not the target's, or it cannot see what the target
            can.
    """
    name = str(options.draft or options.draft_config)
    source, random = _source(options)
    processor = AnswerProcessor(_find_processor(options, source, random), name)
    torch.manual_seed(options.seed)
    kind = AutoModelForImageTextToText
    with explained(f"the draft {name!r}"):
        if random:
            model = kind.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)
        else:
            model = kind.from_pretrained(source, dtype=torch.float32)
    _check_ids(model, processor.processor, name)
    backbone = Backbone(
        model.eval()
    )  # drives the model for four tokens: refused now, not after days
    for target in dict.fromkeys(filter(None, (options.target, options.distil))):
        other = load_processor(target, "target")
        check_tokenizers(other.tokenizer, processor.processor.tokenizer, target, name)
        check_models(_outline(target), backbone)
    return Draft(model, processor, find_parts(model))


def load_processor(name: str, role: str) -> Any:
    """A model's processor.

    Args:
        name: a folder, a Hub id, or `embedded`.
        role: `target` or `draft`.

    Raises:
        ConfigError: it cannot be loaded, or is no processor of images and text.
    """
    with explained(f"the processor of {name!r}"):
        processor = AutoProcessor.from_pretrained(path_of(name, role))
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise ConfigError(f"{name!r} has no processor of images and text")
    return processor


class explained:  # noqa: N801 - reads as a statement
    """Turns what transformers raises on loading into one sentence."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        known = OSError | ValueError | KeyError | SafetensorError
        if isinstance(error, known) and not isinstance(error, DraftlensError):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(f"cannot load {self.what}: {lines[0]}") from error


def _source(options: DraftTraining) -> tuple[str, bool]:
    """(what `from_pretrained` is given, whether the weights are to be random)."""
    if options.draft_config is not None:
        if not options.draft_config.exists():
            raise ConfigError(f"there is no draft config {str(options.draft_config)!r}")
        return str(options.draft_config), True
    path = path_of(options.draft or "", "draft")
    folder = Path(path)
    if folder.is_dir():
        return path, not any([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ConfigError(f"cannot load the draft {path!r}: there is no such folder")
    return path, False


def _find_processor(options: DraftTraining, source: str, random: bool) -> Any:
    if options.processor is not None:
        return load_processor(options.processor, "draft")
    if not random:
        return load_processor(options.draft or "", "draft")
    # A config comes without a processor; where it has one beside it, that was put there on purpose.
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    if any(folder.glob("*processor_config.json")):
        return load_processor(str(folder), "draft")
    target = options.target or options.distil
    if target is None:
        raise ConfigError(
            "a draft that starts from a config needs a processor: name a target or a processor"
        )
    return load_processor(target, "target")


def _check_ids(model: Any, processor: Any, name: str) -> None:
    """Refuse a config whose vocabulary or placeholder ids are not the processor's."""
    rows, highest = (
        model.get_input_embeddings().weight.shape[0],
        max(processor.tokenizer.get_vocab().values()),
    )
    if highest >= rows:
        raise ConfigError(
            f"the draft {name!r} has {rows} token ids, but its processor makes ids up to {highest}"
        )
    for kind in ("image", "video"):
        named = (
            getattr(model.config, f"{kind}_token_{suffix}", None) for suffix in ("id", "index")
        )
        ours = {index for index in named if index is not None}
        theirs = getattr(processor, f"{kind}_token_id", None)
        if ours and theirs is not None and theirs not in ours:
            raise ConfigError(
                f"the draft {name!r} takes id {min(ours)} as its {kind} token, but its "
                f"processor writes {theirs}: "
                f"set {kind}_token_id in the config"
            )


@dataclass(frozen=True)
class _Outline:
    """What a pair check asks of a model, known without its weights."""

    name: str
    vocab_size: int
    modalities: frozenset[str]


def _outline(target: str) -> Any:
    with explained(f"the target {target!r}"), torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(path_of(target, "target"))
        )
    head = model.get_output_embeddings()
    if head is None:
        raise UnsupportedModelError(f"{type(model).__name__} does not show its output head")
    seen = model.input_modalities
    return _Outline(
        type(model).__name__,
        head.weight.shape[0],
        frozenset((seen,) if isinstance(seen, str) else seen),
    )
