"""Architectures outside the list: they work because they fit the seam, or are refused with the
reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf

import draftlens

TEXT: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
CLIP = {"model_type": "clip_vision_model"}
QWEN_VISION = {"depth": 2, "num_heads": 2, "out_hidden_size": 32}
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}


def build(
    name: str,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A tiny random VLM of the architecture `name`."""
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")
    settings = config(
        text_config={**TEXT, **(text or {})}, vision_config={**VISION, **(vision or {})}, **options
    )
    model = getattr(hf, f"{name}ForConditionalGeneration")(settings).eval()
    model.generation_config.pad_token_id = 0
    return model


LLAMA, TWO = {"model_type": "llama"}, {"image_token_index": 110, "video_token_index": 111}
WORK: dict[str, dict[str, Any]] = {
    "Idefics3": {"text": LLAMA, "image_token_id": 110, "scale_factor": 2},
    "Glm4v": {
        "text": {"rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}},
        "vision": QWEN_VISION,
        "image_token_id": 110,
        "video_token_id": 111,
    },
    "LlavaNextVideo": {"text": LLAMA, "vision": CLIP, **TWO, "image_grid_pinpoints": [[16, 16]]},
    "VideoLlava": {"text": LLAMA, "vision": CLIP, **TWO},
    "Mistral3": {
        "text": {"model_type": "mistral", "sliding_window": None},
        "image_token_index": 110,
    },
    "AyaVision": {"text": {"model_type": "cohere2"}},  # whose window is longer than this
    "Gemma3": {"mm_tokens_per_image": 4, "image_token_index": 110},
    "PaliGemma": {
        "text": {"model_type": "gemma"},
        "image_token_index": 110,
        "projection_dim": 32,
    },
    "Ovis2": {"text": {"model_type": "qwen2"}, "image_token_id": 110},
    "Qwen3VLMoe": {
        "text": {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "rope_scaling": MROPE,
        },
        "vision": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Qwen3_5": ({"vision": QWEN_VISION}, "none of its layers keeps keys and values"),
}
IDS = torch.arange(5, 23).view(2, 9)


@pytest.mark.parametrize("name", WORK)
def test_it_works(name: str) -> None:
    """Text in two rows, with a draft of the model itself and one with noise on its weights."""
    model = build(name, **WORK[name])
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for weight in noisy.parameters():
            weight += 0.05 * weight.std().nan_to_num() * torch.randn_like(weight)
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    expected = model.generate(**given, max_new_tokens=13, do_sample=False)[:, 9:].tolist()
    for draft, method in ((model, {"num_speculative_tokens": 5}), (noisy, {"tree": "eagle"})):
        result = draftlens.generate(model, given, draft=draft, method=method, max_new_tokens=13)
        assert result.tokens == expected
        assert result.stats.accepted > 0


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_reason(name: str) -> None:
    """Before anything is generated."""
    options, reason = REFUSED[name]
    with pytest.raises(draftlens.UnsupportedModelError, match=reason):
        draftlens.generate(
            build(name, **options), {"input_ids": IDS}, method="lookup", max_new_tokens=3
        )


def test_logits_that_are_scaled_behind_the_head_are_found_out() -> None:
    """Whatever the configuration says: the numbers themselves differ."""
    model = hf.CohereForCausalLM(hf.CohereConfig(**TEXT, logit_scale=0.125)).eval()
    model.logit_scale = 3.0
    with pytest.raises(
        draftlens.UnsupportedModelError, match="CohereForCausalLM computes other logits"
    ):
        draftlens.generate(model, {"input_ids": IDS}, method="lookup", max_new_tokens=3)


def test_granites_divided_logits_are_known() -> None:
    """With sampling, where the divisor changes the distribution."""
    torch.manual_seed(0)
    model = hf.GraniteForCausalLM(hf.GraniteConfig(**TEXT, logits_scaling=8.0)).eval()
    result = draftlens.generate(
        model, {"input_ids": IDS}, method={"method": "lookup"}, max_new_tokens=12
    )
    stock = model.generate(IDS, max_new_tokens=12, do_sample=False)
    assert result.tokens == stock[:, IDS.shape[1] :].tolist()


def test_git_answers_rows_of_one_length_only() -> None:
    """Stock `generate` answers a padded row otherwise than the same row alone."""
    torch.manual_seed(0)
    git = {key: value for key, value in TEXT.items() if "head" not in key or "attention" in key}
    model = hf.GitForCausalLM(hf.GitConfig(vision_config=VISION, **git)).eval()
    model.generation_config.pad_token_id = 0
    ids = torch.arange(5, 23).view(2, 9)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
    method = {"method": "lookup", "num_speculative_tokens": 3}
    expected = model.generate(ids, **options)[:, 9:].tolist()
    assert (
        draftlens.generate(model, {"input_ids": ids}, method=method, **options).tokens == expected
    )
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    padded = {"input_ids": ids, "attention_mask": mask}
    alone = model.generate(ids[:1, 3:], **options)[:, 6:]
    assert not torch.equal(model.generate(**padded, **options)[:1, 9:], alone)
    shown = draftlens.generate(model, {"input_ids": ids[:1, 3:]}, method=method, **options)
    assert shown.tokens == alone.tolist()
    with pytest.raises(draftlens.InputError, match="each prompt in a call of its own"):
        draftlens.generate(model, padded, method=method, **options)
    ids = ids.clone()
    ids[0, :3] = 0  # `generate` takes these for padding
    with pytest.raises(draftlens.InputError, match="each prompt in a call of its own"):
        draftlens.generate(model, {"input_ids": ids}, method=method, **options)


def test_llama_4_is_refused_with_a_remedy() -> None:
    vision = {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    text = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 4}
    model = build("Llama4", text={**text, "intermediate_size_mlp": 48}, vision=vision)
    language = hf.Llama4ForCausalLM(model.config.text_config).eval()
    for refused in (model, language):
        with pytest.raises(
            draftlens.UnsupportedModelError, match="load a model with full"
        ) as error:
            draftlens.generate(refused, {"input_ids": torch.tensor([[5, 6]])}, max_new_tokens=3)
        assert "within chunks of a prompt" in str(error.value)
        assert "reads no text without pictures by Llama 4" in str(error.value)
    with pytest.raises(AttributeError, match="image_outputs"):  # as the sentence has it
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=3)
