"""Models that read pages, with pictures: the tokens of stock `generate`, or a sentence that says
why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from document_models import READERS, Reader
from test_hsd import edited
from torch import Tensor

import draftlens
from draftlens.models.media_features import ENCODED, encode, encoder_arguments
from draftlens.models.pixel_split import MAKERS, pixel_items
from draftlens.passes.quantization import encoded_alone

NEW = 28
IDS = torch.arange(5, 23).view(2, 9)

TEXT: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_pictures_of_two_rows(reader: Reader) -> None:
    """References that are nearly right, and right in pieces; the answers depend on the pictures."""
    model, processor = reader.build()
    given = reader.inputs(processor)
    rows = stock(model, given)
    assert all(len(set(row)) >= 8 for row in rows)
    assert stock(model, reader.inputs(processor, dark=0.5), 8) != [row[:8] for row in rows]
    words = processor.tokenizer
    references = [
        [edited(rows[0], 1), words.decode(rows[0])],
        [rows[1][:14], words.decode(rows[1][14:])],
    ]
    result = draftlens.generate(
        model,
        given,
        method={"method": "hsd", "num_speculative_tokens": 6},
        references=references,
        tokenizer=words,
        max_new_tokens=NEW,
    )
    assert result.tokens == rows
    assert result.lossless
    assert result.stats.accepted > 0
    assert result.stats.passes < sum(map(len, rows)) / 2
    lookup = {"method": "lookup", "num_speculative_tokens": 4}
    assert draftlens.generate(model, given, method=lookup, max_new_tokens=NEW).tokens == rows


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_rounded_targets_encode_each_picture_by_itself(reader: Reader) -> None:
    """With the bits that it has alone, which activations of 8 bits depend on."""
    model, processor = reader.build()
    kind = (model.config.model_type, "image")
    if kind not in MAKERS:
        assert reader.name in ("DeepseekOcr2", "GraniteDocling")  # tiles of all rows in one tensor
        return
    given = reader.inputs(processor)
    features = flat(encoded_alone(model, given).inputs[ENCODED]["image"])
    rows = [reader.inputs(processor, rows=(row,)) for row in (0, 1)]
    each = [flat(encoded_alone(model, row).inputs[ENCODED]["image"]) for row in rows]
    assert torch.equal(features, torch.cat(each))
    shares = pixel_items(*kind, encoder_arguments(model, "image", given))
    assert shares is not None
    if shares.units == len(rows):  # a prompt cache knows a picture again, whatever its batch is
        for number, row in enumerate(rows):
            part = shares.arguments(number, number + 1)["pixel_values"]
            assert torch.equal(part, row["pixel_values"])
    together = flat(encode(model, "image", encoder_arguments(model, "image", given)))
    assert (features - together).abs().max() < 1e-4


def flat(output: Any) -> Tensor:
    """The features of all pictures."""
    return torch.cat([piece.flatten() for piece in output.pooler_output])


def stock(model: Any, given: dict[str, Any], most: int = NEW) -> list[list[int]]:
    """The new tokens of stock `generate`."""
    output = model.generate(**given, max_new_tokens=most, do_sample=False)
    rows: list[list[int]] = output[:, given["input_ids"].shape[1] :].tolist()
    return rows


def kosmos() -> Any:
    """Its language model is hidden by a class without hidden states."""
    config = hf.Kosmos2_5Config(
        text_config={
            "vocab_size": 120,
            "embed_dim": 32,
            "layers": 2,
            "ffn_dim": 48,
            "attention_heads": 4,
        },
        vision_config={
            "hidden_size": 32,
            "patch_embed_hidden_size": 32,
            "intermediate_size": 48,
            "head_dim": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "max_num_patches": 16,
        },
        latent_query_num=4,
    )
    return hf.Kosmos2_5ForConditionalGeneration(config)


def minicpm() -> Any:
    """Its language model has layers of linear attention."""
    config = hf.MiniCPMOcrConfig(
        text_config={**TEXT, "head_dim": 8, "model_type": "qwen3_5_text"},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
            "insert_layer_id": 1,
        },
        image_token_id=110,
        insert_layer_id=1,
    )
    return hf.MiniCPMOcrForConditionalGeneration(config)


def florence() -> Any:
    """An encoder and a decoder."""
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    one = {"num_heads": [2], "num_groups": [2], "patch_size": [7], "patch_stride": [4]}
    config = hf.Florence2Config(
        text_config={
            **heads,
            "model_type": "bart",
            "vocab_size": 120,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
        },
        vision_config={
            **one,
            "depths": [1],
            "patch_padding": [3],
            "patch_prenorm": [False],
            "embed_dim": [16],
            "projection_dim": 32,
        },
        image_token_id=110,
    )
    return hf.Florence2ForConditionalGeneration(config)


REFUSED = {
    kosmos: "shows no language model without an output head",
    minicpm: "none of its layers keeps keys and values",
    florence: "is no decoder-only model",
}


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: str(build.__name__))
def test_others_are_refused_in_one_sentence(build: Callable[[], Any]) -> None:
    with pytest.raises(draftlens.UnsupportedModelError, match=REFUSED[build]) as caught:
        draftlens.generate(build().eval(), {"input_ids": IDS}, method="hsd", max_new_tokens=3)
    assert "\n" not in str(caught.value)
