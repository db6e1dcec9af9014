"""Every multimodal type of the installed transformers as a tiny random model, made from the default
of its configuration class, and whether draftlens answers as stock `generate` does.

`python tests/census.py --write` writes `tests/census.json`, which `tests/exact/test_census.py`
compares with what it sees.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import draftlens
from draftlens.models.adapter import Backbone

WIDTH, HEADS, HEAD_DIM = 64, 4, 16
VOCAB = 256
WINDOW = 16
SIDE, PATCH = 16, 4
LAYERS = 4

MEDIA = {"image": 201, "video": 202, "audio": 203}
"""Ids of the tokens of media; no answer holds them."""

NEW = 16
"""Tokens of an answer."""

NOISE = 0.03
"""Of the weights of a draft."""

COUNTS = ("num_hidden_layers", "n_layers", "depth", "num_layers", "encoder_layers", "layers")
"""Names of the number of layers."""

MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 2, 2],
    "partial_rotary_factor": 1.0,
}

RULES: tuple[tuple[str, Any], ...] = (
    (r"head_dim|.*_head_dim|d_kv", HEAD_DIM),
    (r".*(num|n)_key_value_heads|linear_num_key_heads|.*_kv_heads", 2),
    (r".*heads", HEADS),
    (r".*_rank|index_topk|ssm_state_size", 16),
    (r"(num|moe_num|n)_?(routed_|local_)?experts|index_block_size", 4),
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


@dataclass(frozen=True)
class Exempt:
    """What the rules do not make of a type.

    Args:
        reason: of it all.
        given: arguments of the configuration class, before it is made small.
        changes: fields of the small configuration; those of its parts as a mapping.
        language: the class of the language model that stands for the whole one.
        seed: of the weights.
    """

    reason: str
    given: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    language: str = ""
    seed: int = 0
    noise: float = NOISE


TIMM = "its vision tower needs timm, which is not installed: its language model stands for it"
SECTIONS = "its positions have three axes, which share the dimensions of a head"
CODEC = "its codec of sound is large whatever its width"
AXES = Exempt(SECTIONS, changes={"text_config": {"rope_parameters": MROPE}})
ROW = [0, 1, 2, 3]

EXEMPT: Mapping[str, Exempt] = {
    **dict.fromkeys(
        (
            *("cosmos3_edge", "cosmos3_omni", "glm46v", "glm4v", "glm4v_moe"),
            *("glm_ocr", "glmga", "minicpm_ocr", "paddleocr_vl"),
            *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe"),
            *("qwen3_vl", "qwen3_vl_moe", "minicpmv4_6", "minicpmv4_7"),
        ),
        AXES,
    ),
    "apertus1p5": Exempt(
        "its ranges of ids of media must fit the vocabulary",
        changes={
            "text_config": {"vocab_size": 768},
            "vision_config": {"codebook_size": 256, "channel_multiplier": [1, 1], "num_res_blocks": 1},
            "audio_config": {"codebook_size": 256, "num_filters": 4},
            "image_token_offset": 256,
            "audio_token_offset": 512,
        },
    ),
    "aria": Exempt(
        "its projector has a number of queries for each number of patches",
        changes={
            "projector_patch_to_query_dict": {16: 4},
            "max_value_projector_patch_to_query_dict": 4,
        },
    ),
    "chameleon": Exempt(
        "its vocabulary names the tokens of pictures",
        changes={
            "vocabulary_map": {"<image>": 201, "IMGIMGBSZ": 200, "IMGIMGCSZ": 199},
            "image_token_id": 201,
            "vq_config": {"channel_multiplier": [1, 1], "num_res_blocks": 1},
        },
    ),
    "emu3": Exempt(
        "its vocabulary names the tokens of pictures",
        changes={
            "vocabulary_map": {
                "<image>": 201,
                **{f"<|visual token {number:06d}|>": 180 + number for number in range(16)},
            },
            "image_token_id": 201,
            "vq_config": {"codebook_size": 16, "channel_multiplier": [1, 1], "num_res_blocks": 1},
        },
    ),
    "cohere_compass": Exempt(
        "released models have layers with windows; " + SECTIONS,
        changes={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {"full_attention": MROPE, "sliding_attention": MROPE},
            }
        },
    ),
    "deepseek_ocr2": Exempt(
        "the default names no layers of experts",
        changes={
            "text_config": {
                "mlp_layer_types": ["dense", "sparse"],
                "num_experts_per_tok": 2,
                "n_group": 1,
                "topk_group": 1,
            }
        },
    ),
    "diffusion_gemma": Exempt(
        "the default has no number of experts",
        changes={
            "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": WIDTH}
        },
    ),
    "dots3_note": Exempt(
        "layers with windows have heads as wide as both parts of them",
        changes={"text_config": {"head_dim": 2 * HEAD_DIM}},
    ),
    "ernie4_5_vl_moe": Exempt(
        SECTIONS,
        changes={"text_config": {"rope_parameters": {**MROPE, "mrope_section": [3, 3, 2]}}},
    ),
    **dict.fromkeys(
        ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"),
        Exempt(
            SECTIONS + "; the default names no marks around media",
            changes={
                "text_config": {"rope_parameters": MROPE},
                "vision_start_token_id": 210,
                "vision_end_token_id": 211,
                "audio_start_token_id": 212,
                "audio_end_token_id": 213,
            },
        ),
    ),
    "step3p7": Exempt(
        "released models have layers with windows",
        changes={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
                "sliding_window": WINDOW,
            }
        },
    ),
    "fast_vlm": Exempt(TIMM, language="Qwen2ForCausalLM"),
    "gemma3n": Exempt(TIMM, language="Gemma3nForCausalLM"),
    "perception_lm": Exempt(TIMM, language="LlamaForCausalLM"),
    "fun_asr_nano": Exempt(
        "the width of its adaptor follows that of its text",
        changes={"adaptor_config": {"intermediate_size": 16}},
    ),
    "gemma4": Exempt(
        "the default has no vision tower",
        given={"vision_config": {}},
        changes={"vision_config": {"pooling_kernel_size": 2}},
    ),
    "granite4_vision": Exempt(
        "the default has no features between layers",
        changes={
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1],
            "image_grid_pinpoints": [[SIDE, SIDE]],
        },
    ),
    "hunyuan_vl": Exempt(
        "the default has no width of heads",
        changes={
            "text_config": {
                "head_dim": HEAD_DIM,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 2, 2, 2],
                },
            }
        },
    ),
    "hy_v4_vl": Exempt(SECTIONS, changes={"text_config": {"rope_parameters": MROPE}}),
    "janus": Exempt(
        "its tokenizer of pictures is large whatever its width",
        changes={"vq_config": {"channel_multiplier": [1, 1], "num_res_blocks": 1}},
    ),
    "kyutai_speech_to_text": Exempt(CODEC, changes={"codec_config": {"upsample_groups": 64}}),
    "lfm2_vl": Exempt(
        "released models have layers of convolution",
        changes={
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["conv", "conv", "full_attention", "conv"],
            }
        },
    ),
    "minimax_m3_vl": Exempt(
        "released models have sparse layers",
        changes={
            "text_config": {
                "num_hidden_layers": 2,
                "layer_types": ["full_attention", "minimax_m3_sparse"],
                "mlp_layer_types": ["dense", "sparse"],
            }
        },
    ),
    "molmo2": Exempt(
        "its layers of features are numbered",
        changes={"adapter_config": {"vision_feature_layer": [1, 0]}},
    ),
    "muse_spark": Exempt(
        CODEC,
        changes={"audio_config": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}},
    ),
    "qwen4_exp": Exempt(
        "the default has no size of its indexer",
        changes={
            "text_config": {
                "rope_parameters": MROPE,
                "indexer_n_heads": 2,
                "indexer_kv_heads": 1,
                "indexer_head_dim": HEAD_DIM,
                "indexer_budget": 8,
                "indexer_compress_ratio": 2,
            }
        },
    ),
    "vibevoice_asr": Exempt(
        CODEC,
        changes={
            part: {"num_filters": 2, "hidden_size": 16, "depths": [1] * 7}
            for part in ("acoustic_tokenizer_encoder_config", "semantic_tokenizer_encoder_config")
        },
    ),
}


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
    if name in COUNTS:
        return len(kept) if value == count else 2
    if re.fullmatch(r".*_token_(id|index|ids)|image_patch_id|im_.*_id", name):
        ids = [_token_id(name, number) for number, _ in enumerate(value)] if (
            isinstance(value, (list, tuple))
        ) else _token_id(name)
        return ids
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
            if isinstance(value, dict) and isinstance(settings.get(name), dict)
            and name != "rope_parameters"
            else value
            for name, value in changes.items()
        },
    }


def configuration(name: str) -> Any:
    own, kind = EXEMPT.get(name, Exempt("")), CONFIG_MAPPING[name]
    config = kind(**_changed(shrunk(kind(**own.given).to_dict()), own.changes))
    return config.get_text_config(decoder=True) if own.language else config


def build(name: str) -> Any:
    """The model of a type with random weights, of which padding and media are never the answer."""
    own = EXEMPT.get(name, Exempt(""))
    torch.manual_seed(own.seed)
    model: Any = getattr(hf, own.language or types()[name])(configuration(name)).eval()
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
            head.weight[[0, *MEDIA.values()]] = 0
    if hasattr(model, "generation_config"):
        model.generation_config.update(pad_token_id=0, eos_token_id=None)
    return model


LENGTHS = (21, 13)
"""Tokens of the words of two rows."""


def prompts(model: Any, pictures: Mapping[str, Any] | None = None, tokens: int = 0) -> dict[str, Any]:
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
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inspect.signature(model.forward).parameters:
            given[name] = (ids == MEDIA["image"]).long()
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
        if value.shape == given["input_ids"].shape:
            own[name] = own[name][:, -length:]
    return own


@torch.no_grad()
def stock(model: Any, given: Mapping[str, Any]) -> list[list[int]]:
    """What stock `generate` answers."""
    output = model.generate(**given, max_new_tokens=NEW, do_sample=False)
    rows: list[list[int]] = output[:, given["input_ids"].shape[1] :].tolist()
    return rows


def noisy(model: Any, amount: float) -> Any:
    """A draft that agrees in part."""
    draft, made = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.ndim > 1:
                weight += torch.randn(weight.shape, generator=made) * weight.std() * amount
    return draft


def sentence(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass
class Verdict:
    """What was seen of a type.

    Args:
        answers: `equal` to those of stock `generate`, or why none was compared: `refused` by
            draftlens, `stock raises`, `not built`; `differs` and `foreign error` are faults.
        drafts: whether `trees`, `chains` or `nothing` is drafted.
        inputs: what was equal, text and pictures.
        batches: whether rows of several lengths are read together.
        cause: the sentence that says why not.
    """

    answers: str
    drafts: str = "nothing"
    inputs: tuple[str, ...] = ()
    batches: bool = True
    cause: str = ""
    accepted: int = 0
    drafted: int = 0


SHAPES = {
    "a square": (1, 3, SIDE, SIDE),
    "tiles": (1, 1, 3, SIDE, SIDE),
    "patches over two frames": (16, 3 * 2 * PATCH * PATCH),
    "patches": (16, 3 * PATCH * PATCH),
    "square patches": (16, 3, PATCH, PATCH),
    "a row of patches": (1, 16, 3 * PATCH * PATCH),
    "large patches": (4, 2 * PATCH, 2 * PATCH, 3),
}
"""Pixels of one picture of 4 x 4 patches, in the order in which they are tried."""

GRID = torch.cartesian_prod(torch.arange(4), torch.arange(4))
COMPANIONS: Mapping[str, Tensor] = {
    "image_grid_thw": torch.tensor([[1, 4, 4]]),
    "image_grid_hw": torch.tensor([[4, 4]]),
    "image_sizes": torch.tensor([[SIDE, SIDE]]),
    "spatial_shapes": torch.tensor([[4, 4]]),
    "target_sizes": torch.tensor([[4, 4]]),
    "image_position_ids": GRID[None],
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


def pictured(model: Any) -> tuple[dict[str, Any], list[list[int]], str] | None:
    """Prompts with the first of these pictures that the model answers, its answers and the name of
    the picture."""
    takes = inspect.signature(model.forward).parameters
    if "pixel_values" not in takes:
        return None
    companions = {name: value for name, value in COMPANIONS.items() if name in takes}
    fewer = {name: value for name, value in companions.items() if name != "image_sizes"}
    for name, shape in SHAPES.items():
        pixels = torch.rand(shape, generator=torch.Generator().manual_seed(5)) * 2 - 1
        for others in [companions, fewer] if len(fewer) < len(companions) else [companions]:
            pictures = {"pixel_values": pixels, **others}
            with contextlib.suppress(Exception):
                given = prompts(model, pictures, num_tokens(model, pictures))
                return given, stock(model, given), name
    return None


@torch.no_grad()
def num_tokens(model: Any, pictures: Mapping[str, Any]) -> int:
    """How many tokens stand for a picture; none where a model has no features of pictures."""
    encode = getattr(model, "get_image_features", None)
    encode = encode or getattr(getattr(model, "model", None), "get_image_features", None)
    if encode is None:
        return 0
    takes = inspect.signature(encode).parameters
    is_open = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    made = encode(**{name: value for name, value in pictures.items() if name in takes or is_open})
    made = getattr(made, "pooler_output", made)
    parts = made if isinstance(made, (list, tuple)) else [made]
    return sum(part.numel() // part.shape[-1] for part in parts)


@dataclass
class Verdict:
    """What was seen of a type.

    Args:
        answers: `equal` to those of stock `generate`, or why none was compared: `refused` by
            draftlens, `stock raises`, `not built`; `differs` and `foreign error` are faults.
        drafts: whether `trees`, `chains` or `nothing` is drafted.
        inputs: what was equal, `text` and `picture`.
        batches: whether a padded batch of texts is `equal`, is answered as its rows are `alone`
            where stock's is not, or is `refused`.
        cause: the sentence that says why not.
        accepted, drafted: tokens.
    """

    answers: str
    drafts: str = "nothing"
    inputs: tuple[str, ...] = ()
    batches: str = ""
    cause: str = ""
    accepted: int = 0
    drafted: int = 0


class Fault(Exception):
    """Another answer than that of stock, or a foreign error."""


def tried(name: str) -> Verdict:
    """Compare draftlens's answers of a type with those of stock `generate`."""
    try:
        model = build(name)
    except Exception as error:
        return Verdict("not built", cause=sentence(error))
    try:
        backbone = Backbone(model)
    except draftlens.DraftlensError as error:
        return Verdict("refused", cause=str(error))
    except Exception as error:
        return Verdict("foreign error", cause=f"{type(error).__name__}: {error}")
    drafts = "chains" if getattr(backbone, "chains_only", "") else "trees"
    drafts = "nothing" if backbone.plain_only else drafts
    verdict = Verdict("equal", drafts, cause=str(backbone.plain_only))
    raised = ""
    given = prompts(model)
    try:
        expected = stock(model, given)
    except Exception as error:
        raised = f"{type(error).__name__}: {sentence(error)}"
    try:
        if not raised:
            compare_texts(name, backbone, given, expected, verdict)
            verdict.inputs += ("text",)
        seen = pictured(model)
        if seen is not None:
            compare(name, backbone, *seen[:2], verdict)
            verdict.inputs += ("picture",)
    except draftlens.DraftlensError as error:
        verdict.cause = str(error)
    except Fault as error:
        verdict.answers, verdict.cause = str(error).split(": ", 1)
    if not verdict.inputs and verdict.answers == "equal":
        return Verdict("stock raises" if raised else "refused", cause=raised or verdict.cause)
    return verdict


def compare_texts(
    name: str, backbone: Backbone, given: dict[str, Any], expected: list[list[int]], verdict: Verdict
) -> None:
    verdict.batches = "equal"
    try:
        compare(name, backbone, given, expected, verdict)
    except (draftlens.DraftlensError, Fault) as error:
        own = [of_row(given, row) for row in range(len(LENGTHS))]
        alone = [stock(backbone.model, each)[0] for each in own]
        if isinstance(error, Fault):
            if alone == expected:
                raise
            compare(name, backbone, given, alone, verdict)
            verdict.batches = "alone"
            return
        verdict.batches, verdict.cause = "refused", str(error)
        for each, answer in zip(own, alone, strict=True):
            compare(name, backbone, each, [answer], verdict)


def compare(
    name: str, backbone: Backbone, given: dict[str, Any], expected: list[list[int]], verdict: Verdict
) -> None:
    """Raises `Fault`."""
    for options in methods(name, backbone, verdict):
        try:
            result = draftlens.generate(backbone.model, given, max_new_tokens=NEW, **options)
        except draftlens.DraftlensError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error} ({options['method']})"
            raise Fault(f"foreign error: {text}") from error
        if result.tokens != expected:
            text = f"{result.tokens} instead of {expected} ({options['method']})"
            raise Fault(f"differs: {text}")
        verdict.accepted += result.stats.accepted
        verdict.drafted += result.stats.drafted


def methods(name: str, backbone: Backbone, verdict: Verdict) -> list[dict[str, Any]]:
    if verdict.drafts == "nothing":
        return [{"method": "plain"}]
    draft = noisy(backbone.model, EXEMPT.get(name, Exempt("")).noise)
    chains = {"draft": draft, "method": {"num_speculative_tokens": 4}}
    trees = [{"draft": draft, "method": {"tree": "eagle"}}] if verdict.drafts == "trees" else []
    return [{"method": "lookup"}, chains, *trees]


if __name__ == "__main__":
    import sys
    import time
    import warnings

    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    for name in sys.argv[1:] or types():
        began = time.time()
        verdict = tried(name)
        print(f"{name:28} {time.time() - began:.1f}s {verdict}", flush=True)
