"""What cannot be exact is refused before any token, with a sentence that names the cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from families import FAMILIES, TEXT, VOCAB, Family, inputs, settings
from stock import draft, target

import draftlens
from draftlens import ConfigError, IncompatiblePairError, InputError, UnsupportedModelError

FAMILY: Family = next(family for family in FAMILIES if family.name == "llava_onevision")
QWEN: Family = next(family for family in FAMILIES if family.name == "qwen2_5_vl")


def ask(model: Any = None, **options: Any) -> draftlens.Result:
    """One short question."""
    given = inputs(FAMILY, "image")
    return draftlens.generate(model or target(FAMILY), given, **{"max_new_tokens": 3, **options})


def test_layers_with_attention_and_states_in_one() -> None:
    """As a target and as a draft."""
    sizes = settings(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8)
    config = hf.FalconH1Config(**{**TEXT, "num_hidden_layers": 2, **sizes})
    hybrid = hf.FalconH1ForCausalLM(config).eval()
    cause = "FalconH1.* keeps a LinearAttentionAndFullAttentionLayer, which cannot be rolled"
    given = {"input_ids": torch.arange(5, 14)[None]}
    with pytest.raises(UnsupportedModelError, match=cause):
        draftlens.generate(hybrid, given, method="lookup", max_new_tokens=3)
    with pytest.raises(UnsupportedModelError, match=cause):
        ask(draft=hybrid)


def test_layers_of_cross_attention() -> None:
    """Mllama looks at pictures apart from its text, and our cache holds text."""
    text = {
        **TEXT,
        "num_hidden_layers": 3,
        "cross_attention_layers": [1],
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "image_size": 8,
    }
    config = hf.MllamaConfig(
        text_config=text, vision_config={**vision, "patch_size": 4, "vision_output_dim": 48}
    )
    with pytest.raises(
        UnsupportedModelError,
        match=r"Mllama.* attends to pictures through layers of cross-attention",
    ):
        ask(hf.MllamaForConditionalGeneration(config).eval(), method="lookup")


def test_an_encoder_with_a_decoder() -> None:
    """T5 is no decoder-only model."""
    config = hf.T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(
        UnsupportedModelError, match="T5ForConditionalGeneration is no decoder-only model"
    ):
        ask(hf.T5ForConditionalGeneration(config))


def test_a_decoder_with_a_head_of_its_own() -> None:
    """Kosmos-2.5 shows its language model with the output head only."""
    text = settings(
        vocab_size=VOCAB, embed_dim=32, layers=1, ffn_dim=16, attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    vision = settings(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, d_ff=16,
        d_kv=16, head_dim=16, patch_embed_hidden_size=48,
    )  # fmt: skip
    config = hf.Kosmos2_5Config(text_config=text, vision_config=vision)
    model = hf.Kosmos2_5ForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModelError, match="no language model without an output head"):
        ask(model, method="lookup")


def test_logits_that_are_divided_behind_the_head() -> None:
    """As GraniteDocling's are: the seam knows it, and compares the logits when it is made."""
    vision = settings(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        image_size=16, patch_size=4, out_hidden_size=64, deepstack_visual_indexes=[0, 1],
    )  # fmt: skip
    config = hf.GraniteDoclingConfig(
        text_config={**TEXT, "logits_scaling": 4.0}, vision_config=vision
    )
    torch.manual_seed(0)
    model = hf.GraniteDoclingForConditionalGeneration(config).eval()
    given = {"input_ids": torch.arange(20, 40)[None], "attention_mask": torch.ones(1, 20).long()}
    stock = model.generate(**given, do_sample=False, max_new_tokens=20, pad_token_id=0)
    result = draftlens.generate(
        model, given, method="lookup", do_sample=False, max_new_tokens=20, pad_token_id=0
    )
    assert result.tokens == stock[:, 20:].tolist()


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "mine"])
def test_attention_without_a_tree_mask(name: str) -> None:
    """Named, with what to do about it."""
    model = FAMILY.build()
    model.get_decoder().config._attn_implementation = name
    with pytest.raises(
        UnsupportedModelError, match=f"'{name}' attention, which takes no tree mask.*sdpa"
    ):
        ask(model)


def test_a_draft_that_cannot_see() -> None:
    """It has no visual tokens that could be pruned."""
    blind = hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT)).eval()
    with pytest.raises(
        IncompatiblePairError,
        match=r"'specvlm' prunes visual tokens, and the draft LlamaForCausalLM takes none",
    ):
        ask(draft=blind, method="specvlm")


def test_a_draft_that_cannot_see_video() -> None:
    """Pictures alone are not enough."""
    with pytest.raises(IncompatiblePairError, match=r"Llava\w* cannot see .* can: video"):
        ask(draft=target(FAMILIES[0]))


def test_a_draft_of_another_tokenizer() -> None:
    """A thousand ids are no padding."""
    large = FAMILY.build(vocab_size=VOCAB + 2000)
    for pair in ({"model": large, "draft": draft(FAMILY)}, {"draft": large}):
        with pytest.raises(
            IncompatiblePairError, match=r"2208.* 208|208.* 2208.*cannot share a tokenizer"
        ):
            ask(**pair)


def test_stock_drafting() -> None:
    """It would be left out without a word."""
    with pytest.raises(
        ConfigError, match="assistant_model is for stock generate: give it as draft"
    ):
        ask(assistant_model=draft(FAMILY))
    with pytest.raises(ConfigError, match="prompt_lookup_num_tokens would draft too"):
        ask(draft=draft(FAMILY), prompt_lookup_num_tokens=3)


@pytest.mark.parametrize(
    "options", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}], ids=str
)
def test_more_than_one_answer(options: dict[str, Any]) -> None:
    """Beams and several answers."""
    with pytest.raises(ConfigError, match="num_beams and num_return_sequences must be 1"):
        ask(draft=draft(FAMILY), **options)
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), inputs(FAMILY, "image"))
    with pytest.raises(ConfigError, match="num_beams and num_return_sequences must be 1"):
        target(FAMILY).generate(
            **inputs(FAMILY, "image"), max_new_tokens=3, custom_generate=ours, **options
        )


def test_processors_that_cannot_be_asked_about_drafts() -> None:
    """They keep state."""
    with pytest.raises(ConfigError, match="keeps state"):
        ask(guidance_scale=1.5)


def test_inputs() -> None:
    """None at all, and a draft with another number of rows."""
    with pytest.raises(InputError, match="input_ids"):
        draftlens.generate(target(FAMILY), {}, max_new_tokens=3)
    with pytest.raises(InputError, match="input_ids for 3 rows, not 2"):
        ask(draft=draft(FAMILY), draft_inputs=inputs(FAMILY, "image", rows=(0, 1)))
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), inputs(FAMILY, "image", rows=(0, 1)))
    with pytest.raises(InputError, match="input_ids for 3 rows, not 2"):
        target(FAMILY).generate(**inputs(FAMILY, "image"), max_new_tokens=3, custom_generate=ours)


def test_stop_strings_without_a_tokenizer() -> None:
    """Nobody could read them."""
    with pytest.raises(ConfigError, match="stop_strings need the model's tokenizer"):
        ask(stop_strings="ab")


def test_a_seam_that_lies() -> None:
    """A model that scales its logits after the head would get other answers: found out by
    trying."""

    class Louder(hf.Qwen2_5_VLForConditionalGeneration):
        """Doubles its logits where our seam cannot see it."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """The forward of its parent, louder."""
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 2
            return output

    louder = Louder(QWEN.build().config).eval()
    with pytest.raises(UnsupportedModelError, match="Louder computes other logits"):
        draftlens.generate(louder, inputs(QWEN, "image"), method="lookup", max_new_tokens=3)


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        ({"num_speculative_tokens": 0}, "at least 1"),
        ({"tree": [[1]]}, "missing"),
        ({"tree": "oak"}, "known: auto, eagle"),
        ({"sampling_rule": "hope"}, "known: coupled, rejection"),
        ({"method": "magic"}, "known: auto, hsd, lookup, mixed, parallelvlm, plain"),
        ({"method": "tabed", "views": []}, "at least one"),
        ({"method": "tabed", "views": "text"}, "views is a list of views"),
        ({"method": "tabed", "views": ["text", "text"]}, "'text' is named twice"),
        ({"method": "tabed", "views": ["ears"]}, "unknown view 'ears'; known: caption, multimodal"),
        ({"method": "tabed", "views": [{"name": "pooled", "size": 1}]}, "size is a whole number"),
        ({"method": "tabed", "views": [{"pruner": "uniform", "ratio": 2}]}, "ratio is a share"),
        (
            {"method": "tabed", "views": [{"name": "caption", "captioner": "someone"}]},
            "a captioner is 'draft', 'target'",
        ),
        (
            {"method": "tabed", "views": [{"name": "caption", "beside": True}]},
            "view 'caption' has no option 'beside'; known: captioner",
        ),
        ({"method": "tabed", "late": False}, "method 'tabed' has no option 'late'; known: views"),
        ({"method": "tabed", "memory": None}, "method 'tabed' has no option 'memory'"),
        ({"method": "tabed", "weights": "hedge"}, "unknown weighting 'hedge'; known: bayes"),
        ({"method": "tabed", "weights": "bayes-grid"}, "unknown weighting 'bayes-grid'"),
        ({"method": "tabed", "weights": [1, 2, 3]}, "3 weights are given for 2 views"),
        ({"method": "tabed", "weights": "luck"}, "unknown weighting 'luck'; known: bayes"),
        ({"method": "tabed", "rest": 1}, "rest must be true or false"),
        ({"method": "tabed", "schedule": "parallel"}, "schedule must be 'serial'"),
        ({"gamma": 3}, "known: num_speculative_tokens"),
    ],
    ids=str,
)
def test_methods(method: dict[str, Any], cause: str) -> None:
    """Each names what is known."""
    with pytest.raises(ConfigError, match=cause):
        ask(draft=draft(FAMILY), method=method)


def test_speculation_without_a_draft() -> None:
    """It needs one."""
    with pytest.raises(ConfigError, match="needs a draft model"):
        ask(method="speculative")


def test_a_name_in_place_of_a_model() -> None:
    """And a number in place of a method, before anything is loaded."""
    with pytest.raises(
        UnsupportedModelError, match=r"not 'some/model'; draftlens\.load takes names"
    ):
        draftlens.generate("some/model", inputs(FAMILY, "image"), max_new_tokens=3)
    with pytest.raises(ConfigError, match="a method is a name, a mapping of options or a method"):
        draftlens.load("/no/such/model", method=5)  # type: ignore[arg-type]
