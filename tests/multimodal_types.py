"""Every multimodal type of the installed transformers as a tiny random float32 model, made from the
default of its configuration class, with prompts that stock `generate` answers."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from type_exceptions import EXEMPT, HEAD_DIM, SIDE, WIDTH, WINDOW, Exempt

HEADS, LAYERS, PATCH, VOCAB = 4, 4, 4, 256

MEDIA = {"image": 201, "video": 202, "audio": 203}
"""Ids of the tokens of media; no answer holds them."""

NEW = 16
"""Tokens of an answer."""

COUNTS = ("num_hidden_layers", "n_layers", "depth", "num_layers", "encoder_layers", "layers")
"""Names of the number of layers."""

RULES: tuple[tuple[str, Any], ...] = (
    (r"head_dim|.*_head_dim|d_kv", HEAD_DIM),
    (r"index(er)?_(n_|num_)?heads", 16),  # with few of them tokens tie, and ties break by shape
    (r".*(num|n)_key_value_heads|linear_num_key_heads|.*_kv_heads", 2),
    (r".*heads", HEADS),
    (r".*_rank|index_topk|ssm_state_size", 16),
    (r"(num|moe_num|n)_?(routed_|local_)?experts|index_block_size", 4),
    (r"mm_tokens_per_image", 4),
    (r"num_experts_per_tok|moe_topk|moe_k|top_k_experts|index_topk_blocks|index_kpool", 2),
    (r"n_group|topk_group|num_global_layers", 1),
    (r"n_groups|num_kv_shared_layers", 2),
    (r"sliding_window|sliding_window_size|attention_chunk_size|chunk_size", WINDOW),
    (r"image_size|crop_size|resolution", SIDE),
    (r"patch_size", PATCH),
    (r"num_position_embeddings|rel_extent|max_source_positions|max_ima?ge?_size", WIDTH),
    (r"position_embedding_size", WIDTH),
    (r".*vocab_size.*|.*codebook_size|num_embeddings", VOCAB),
    (r"d_model|d_ff|.*(hidden_size|intermediate_size|_dim|hidden_dim|_channels)", WIDTH),
)
"""The most that a number may be, by the name of its field; the first that fits counts."""


def types() -> dict[str, str]:
    """The name of the class of each type."""
    found = {
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
    return dict(sorted(found.items()))


def shrunk(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """A configuration of a tiny model of the same kind."""
    count, kept = _layers(settings)
    small = {name: _shrunk_field(name, value, count, kept) for name, value in settings.items()}
    if "per_layer_config" in settings:
        layers = {int(layer): own for layer, own in settings["per_layer_config"].items()}
        small["per_layer_config"] = {
            new: shrunk(layers[old]) for new, old in enumerate(kept) if old in layers
        }
    if settings.get("num_attention_heads", 0) == settings.get("num_key_value_heads"):
        small["num_key_value_heads"] = HEADS
    parts = ("qk_nope_head_dim", "qk_rope_head_dim")
    for name in ("qk_head_dim", "head_dim"):
        if settings.get(name, 0) == sum(settings.get(part, 0) for part in parts) > 0:
            small[name] = sum(small[part] for part in parts)
    return small


def _layers(settings: Mapping[Any, Any]) -> tuple[int, list[int]]:
    """How many layers a configuration has, and those that are kept: the first of each run of equal
    ones, `LAYERS` of them and one of each kind, or two where all are equal."""
    count = next((settings[name] for name in COUNTS if isinstance(settings.get(name), int)), 0)
    count = count or len(settings.get("layers_block_type") or ())
    lists = [each for each in settings.values() if isinstance(each, list) and len(each) == count]
    lists = [each for each in lists if each != list(range(count))]
    kinds = [tuple(map(repr, kind)) for kind in zip(*lists, strict=True)]
    starts = [i for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    if len(starts) < 2:
        return count, list(range(min(count, 2)))
    firsts = {kinds.index(kind) for kind in kinds}
    return count, sorted({*starts[:LAYERS], *firsts})


def _shrunk_field(name: Any, value: Any, count: int, kept: list[int]) -> Any:
    if isinstance(value, bool):
        return value and name != "tie_word_embeddings"
    if value in (None, 0) or name == "rope_parameters" or not isinstance(name, str):
        return value
    if isinstance(value, dict):
        return shrunk(value)
    if name == "image_grid_pinpoints":
        return [[SIDE, SIDE]]
    if name in COUNTS:
        return len(kept) if value == count else 2
    if re.fullmatch(r".*_token_(id|index|ids)|image_patch_id|im_.*_id", name):
        if isinstance(value, (list, tuple)):
            return [_token_id(name, number) for number, _ in enumerate(value)]
        return _token_id(name)
    if isinstance(value, list) and count:
        if value == list(range(count)):
            return list(range(len(kept)))
        if len(value) == count:
            return [_shrunk_field(name, value[layer], 0, []) for layer in kept]
        if re.fullmatch(r".*(layers|indexes|indices|idxs)", name):
            return [len(kept) - 1]
    if isinstance(value, list):
        return [_shrunk_field(name, each, 0, []) for each in value]
    if type(value) is int:
        limit = next((most for pattern, most in RULES if re.fullmatch(pattern, name)), value)
        return min(value, limit)
    return value


def _token_id(name: str, number: int | None = None) -> int | None:
    for medium, index in MEDIA.items():
        if re.fullmatch(f"{medium}_(token|patch)_(id|index)", name):
            return index
    if name in ("pad_token_id", "bos_token_id"):
        return int(name == "bos_token_id")
    if name == "eos_token_id":
        return None if number is None else 254
    return 205 + sum(map(ord, name)) % 45 + (number or 0)


def _changed(settings: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **settings,
        **{
            name: _changed(settings[name], value)
            if isinstance(value, dict)
            and isinstance(settings.get(name), dict)
            and name != "rope_parameters"
            else value
            for name, value in changes.items()
        },
    }


def configuration(name: str, changes: Mapping[str, Any] | None = None) -> Any:
    own, kind = EXEMPT.get(name, Exempt("")), CONFIG_MAPPING[name]
    small = _changed(shrunk(kind(**own.given).to_dict()), own.changes)
    config = kind(**_changed(small, changes or {}))
    return config.get_text_config(decoder=True) if own.language else config


def build(name: str, changes: Mapping[str, Any] | None = None, silent: Sequence[int] = ()) -> Any:
    """The model of a type with random weights.

    Args:
        changes: fields of its configuration.
        silent: ids that no answer holds; those of padding and media by default.
    """
    own = EXEMPT.get(name, Exempt(""))
    torch.manual_seed(own.seed)
    model: Any = getattr(hf, own.language or types()[name])(configuration(name, changes)).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    head = embed = None
    with contextlib.suppress(NotImplementedError):
        head, embed = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None:
        if head.weight is getattr(embed, "weight", None):
            head.weight = torch.nn.Parameter(head.weight.detach().clone())
        with torch.no_grad():
            head.weight[list(silent) or [0, *MEDIA.values()]] = 0
    if hasattr(model, "generation_config"):
        model.generation_config.update(pad_token_id=0, eos_token_id=None)
    return model


LENGTHS = (21, 13)
"""Tokens of the words of two rows."""


def prompts(
    model: Any, pictures: Mapping[str, Any] | None = None, tokens: int = 0
) -> dict[str, Any]:
    """Two left-padded rows of random words, with a picture after the second word of each.

    Args:
        pictures: tensors of one picture.
        tokens: how many stand for it.
    """
    made, rows = torch.Generator().manual_seed(3), []
    for length in LENGTHS:
        words = torch.randint(5, 150, (length,), generator=made)
        picture = torch.full((tokens,), MEDIA["image"])
        padding = torch.zeros(max(LENGTHS) - length, dtype=torch.long)
        rows.append(torch.cat([padding, words[:2], picture, words[2:]]))
    ids = torch.stack(rows)
    given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    takes = inspect.signature(model.forward).parameters
    for name in ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"):
        if name in takes:
            given[name] = (ids == MEDIA["image"]).long()
    if pictures and "image_embeds_position_mask" in takes:
        given["image_embeds_position_mask"] = (ids == MEDIA["image"]).long()
    if pictures and "image_attention_mask" in takes:
        given["image_attention_mask"] = torch.ones(*ids.shape, 1, dtype=torch.long)
    for name, value in (pictures or {}).items():
        given[name] = torch.cat([value, value.flip(-1) if value.is_floating_point() else value])
    return given


def of_row(given: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One row without its padding."""
    length = int(given["attention_mask"][row].sum())
    own = {}
    for name, value in given.items():
        size = len(value) // len(LENGTHS)
        own[name] = value[row * size : (row + 1) * size]
        if value.shape[:2] == given["input_ids"].shape:
            own[name] = own[name][:, -length:]
    return own


def followed(given: Mapping[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
    """A row of text with further tokens after it."""
    more = torch.tensor([list(tokens)])
    fill = {"input_ids": more, "attention_mask": torch.ones_like(more)}
    return {
        name: torch.cat([value, fill.get(name, torch.zeros_like(more))], 1)
        for name, value in given.items()
    }


@torch.no_grad()
def stock(model: Any, given: Mapping[str, Any]) -> list[list[int]]:
    """What stock `generate` answers."""
    output = model.generate(**given, max_new_tokens=NEW, do_sample=False)
    rows: list[list[int]] = output[:, -NEW:].tolist()  # no row ends before
    return rows


def noisy(model: Any, amount: float) -> Any:
    """A draft that agrees in part."""
    draft, made = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.ndim > 1:
                weight += torch.randn(weight.shape, generator=made) * weight.std() * amount
    return draft


SHAPES = {
    "a square": (1, 3, SIDE, SIDE),
    "a tile": (1, 1, 3, SIDE, SIDE),
    "tiles": (1, 2, 3, SIDE, SIDE),
    "patches over two frames": (16, 3 * 2 * PATCH * PATCH),
    "patches": (16, 3 * PATCH * PATCH),
    "square patches": (16, 3, PATCH, PATCH),
    "a row of patches": (1, 16, 3 * PATCH * PATCH),
    "large patches": (16, 2 * PATCH, 2 * PATCH, 3),
}
"""Pixels of one picture of 4 x 4 patches, in the order in which they are tried."""

COMPANIONS: Mapping[str, Tensor] = {
    "image_grid_thw": torch.tensor([[1, 4, 4]]),
    "image_grid_hw": torch.tensor([[4, 4]]),
    "image_sizes": torch.tensor([[SIDE, SIDE]]),
    "spatial_shapes": torch.tensor([[4, 4]]),
    "target_sizes": torch.tensor([[4, 4]]),
    "image_position_ids": torch.cartesian_prod(torch.arange(4), torch.arange(4))[None],
    "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
    "image_merge_sizes": torch.tensor([2]),
    "image_token_pooling": torch.arange(16).view(4, 4),
    "image_grids": torch.tensor([[2, 2, 0, 0]]),
    "image_num_crops": torch.tensor([1]),
    "high_res_pixel_values": torch.ones(1, 3, SIDE, SIDE),
    "qformer_input_ids": torch.tensor([[5, 6, 7]]),
    "qformer_attention_mask": torch.ones(1, 3, dtype=torch.long),
}
"""What goes with pixels, by the name of the argument."""


def pictured(name: str, model: Any) -> tuple[dict[str, Any], list[list[int]]] | None:
    """Prompts with the first of these pictures that changes the model's answers, and they."""
    own = EXEMPT.get(name, Exempt(""))
    for pictures in guesses(model, own):
        with contextlib.suppress(Exception):
            given = prompts(model, pictures, own.tokens or num_tokens(model, pictures))
            answers, pixels = stock(model, given), given["pixel_values"]
            if stock(model, {**given, "pixel_values": pixels.flip(-1).roll(1, -1)}) != answers:
                return given, answers
    return None


def guesses(model: Any, own: Exempt) -> Iterator[Mapping[str, Tensor]]:
    """Tensors of a picture, of all shapes with and without what few models need."""
    takes = inspect.signature(model.forward).parameters
    if own.pictures:
        yield own.pictures
    elif "pixel_values" in takes:
        companions = {name: value for name, value in COMPANIONS.items() if name in takes}
        rare = ("image_sizes", "pixel_attention_mask")
        fewer = {name: value for name, value in companions.items() if name not in rare}
        for shape in SHAPES.values():
            pixels = torch.rand(shape, generator=torch.Generator().manual_seed(5)) * 2 - 1
            yield {"pixel_values": pixels, **fewer}
            if len(fewer) < len(companions):
                yield {"pixel_values": pixels, **companions}


@torch.no_grad()
def num_tokens(model: Any, pictures: Mapping[str, Any]) -> int:
    """How many tokens stand for a picture; none where a model has no features of pictures."""
    encode = getattr(model, "get_image_features", None)
    encode = encode or getattr(getattr(model, "model", None), "get_image_features", None)
    if encode is None:
        return 0
    takes = inspect.signature(encode).parameters
    is_open = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    seen = encode(**{name: value for name, value in pictures.items() if name in takes or is_open})
    made = getattr(seen, "pooler_output", seen)
    made = seen.last_hidden_state if made is None else made
    parts = made if isinstance(made, (list, tuple)) else [made]
    return sum(part.numel() // part.shape[-1] for part in parts)
