"""Models of real shapes with random weights, whose draft is right as often as a recorded one.

Every forward is a real one of the size of Qwen2.5 1.5B and 0.5B in LLaVA-OneVision's frame, so
times are real. What the draft says is replaced: its logits prefer the token that the target will
choose, wherever the recorded acceptance says so.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from simulation import NEVER, Token, recorded_text
from torch import Tensor
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

import draftlens
from auto_parts.cells import recorded_depths
from draftlens.drafting.adaptive import history as records
from draftlens.drafting.adaptive.cost_store import calibrate_models
from draftlens.models.adapter import Backbone

PROMPTS = ("chat1", "code2", "image2")
PROMPT_TOKENS = 150
NEW_TOKENS = 64
CALIBRATION_SECONDS = 6.0
"""Time for the calibration, as after a minute of loading. In two seconds, the least, one core
measures a single width of these models."""

TARGET = {"hidden_size": 1536, "layers": 28, "heads": 12, "inner": 8960}
DRAFT = {"hidden_size": 896, "layers": 24, "heads": 14, "inner": 4864}
VOCABULARY = 151936


@dataclass(frozen=True)
class ShapeReport:
    """What was measured with models of real shapes.

    Args:
        calibration_seconds: time of the calibration of both models.
        curves: of target and draft, as JSON values.
        runs: seconds of decoding and mean acceptance length by prompt and method.
    """

    calibration_seconds: float
    curves: list[dict[str, Any]]
    runs: dict[str, dict[str, dict[str, float]]]


class ReplayedDraft(Backbone):
    """A draft model whose forwards are real and whose logits are those of a script."""

    answer: Sequence[int] = ()
    text: Sequence[Token] = ()
    prompt_tokens: int = 0

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: Any, mask: Tensor | None
    ) -> Tensor:
        """Forward the tokens and forget what the model says."""
        logits = super().forward(tokens, position_ids, cache, mask)
        return self._scripted(logits, position_ids) if self.text else logits

    def _scripted(self, logits: Tensor, position_ids: Tensor) -> Tensor:
        scripted = torch.zeros_like(logits)
        for index, position in enumerate(position_ids[0].tolist()):
            step = min(position - self.prompt_tokens + 1, len(self.answer) - 1)
            token = self.text[step]
            # As many wrong tokens before the right one as its rank says.
            order = [(self.answer[step] + offset) % VOCABULARY for offset in range(1, 5)]
            if token.rank < NEVER:
                order.insert(token.rank, self.answer[step])
            odds = token.confidence / max(1 - token.confidence, 1e-6)
            top = float(torch.log(torch.tensor(odds * VOCABULARY)))
            for place, candidate in enumerate(order):
                scripted[0, index, candidate] = top - 2.0 * place
        return scripted


def measure_shapes(report: Callable[[str], None]) -> ShapeReport:
    """Measure plain decoding, chains and the automatic tree, cold and warm.

    Args:
        report: receives a line after each run.
    """
    target = Backbone(_random_model(TARGET))
    draft = ReplayedDraft(_random_model(DRAFT))
    inputs = {"input_ids": torch.arange(PROMPT_TOKENS)[None] % 1000 + 5}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    began = time.perf_counter()
    curves = calibrate_models([target, draft], CALIBRATION_SECONDS)
    calibration_seconds = time.perf_counter() - began
    report(f"calibrated in {calibration_seconds:.1f} s: {[c.to_dict() for c in curves]}")
    answer = draftlens.generate(target, inputs, max_new_tokens=NEW_TOKENS).tokens[0]
    draft.answer = answer
    draft.prompt_tokens = PROMPT_TOKENS
    runs: dict[str, dict[str, dict[str, float]]] = {}
    for number, prompt in enumerate(PROMPTS):
        texts = [
            recorded_text(NEW_TOKENS, recorded_depths("float32", prompt), seed)
            for seed in (number, 100 + number)
        ]
        runs[prompt] = _measure_prompt(target, draft, inputs, texts, answer)
        report(f"{prompt}: {runs[prompt]}")
    return ShapeReport(calibration_seconds, [curve.to_dict() for curve in curves], runs)


def _measure_prompt(
    target: Backbone,
    draft: ReplayedDraft,
    inputs: Mapping[str, Tensor],
    texts: Sequence[Sequence[Token]],
    answer: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Every method on the same text; the warm automatic tree has answered another one before."""
    figures: dict[str, dict[str, float]] = {}

    def run(name: str, text: Sequence[Token], method: Mapping[str, Any]) -> None:
        draft.text = text
        result = draftlens.generate(
            target, inputs, draft=draft, method=method, max_new_tokens=NEW_TOKENS
        )
        assert result.tokens == [list(answer)], f"{name} changed the tokens"
        stats = result.stats
        figures[name] = {
            "decode": stats.decode,
            "e2e": stats.e2e,
            "tau": stats.mean_acceptance_length,
            "drafted": stats.drafted,
        }

    run("plain", texts[0], {"method": "plain"})
    run("chain 5", texts[0], {"num_speculative_tokens": 5})
    run("chain 2", texts[0], {"num_speculative_tokens": 2})
    records.forget_answers(target)
    run("auto, first answer", texts[0], {"tree": "auto"})
    records.forget_answers(target)
    run("auto, another text", texts[1], {"tree": "auto"})
    run("auto, second answer", texts[0], {"tree": "auto"})
    gc.collect()
    return figures


def _random_model(shape: Mapping[str, int]) -> Any:
    """A model of a real language model's shape and a tiny vision tower."""
    config = LlavaOnevisionConfig(
        text_config={
            "model_type": "qwen2",
            "hidden_size": shape["hidden_size"],
            "num_hidden_layers": shape["layers"],
            "num_attention_heads": shape["heads"],
            "num_key_value_heads": 2,
            "intermediate_size": shape["inner"],
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
        },
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 28,
            "patch_size": 14,
        },
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlavaOnevisionForConditionalGeneration._from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    )
    model.generation_config.eos_token_id = None
    return model.eval()
