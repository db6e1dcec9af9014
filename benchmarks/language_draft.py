"""What a language model accepts as the draft of a vision-language model.

    python benchmarks/language_draft.py --prompts 12

The language model is that of the embedded draft, with the same weights and without vision. It
stands beside the draft that sees, and beside the draft that reads the text view of method `tabed`.
With its ids in another order it drafts by text (`drafting.retokenized`). Forwards are counted, and
nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping
from typing import Any

import torch
from shared import Benchmark, Report, grid
from tabed_parts.kinds import prompts, read
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from draftlens import Engine, load

KINDS = ("picture", "16 frames", "second turn, said", "second turn, aside", "text only")
CHAIN = 5
SPECULATIVE = {"method": "speculative", "num_speculative_tokens": CHAIN}
TEXT_VIEW = {"method": "tabed", "views": ["text"], "num_speculative_tokens": CHAIN}


def language_part(model: Any) -> Any:
    """The language model of a LLaVA-OneVision model as a model without vision."""
    config = Qwen2Config(**model.config.text_config.to_dict())
    part = Qwen2ForCausalLM(config)
    part.model.load_state_dict(model.get_decoder().state_dict())
    part.lm_head.load_state_dict(model.get_output_embeddings().state_dict())
    return part.eval()


def shuffled(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """A copy of a language model and its tokenizer with all ids but those of special tokens in
    another order."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {token["id"] for token in content["added_tokens"]}
    plain = [index for index in range(model.config.vocab_size) if index not in special]
    order = dict(zip(plain, random.Random(0).sample(plain, len(plain)), strict=True))
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {text: order.get(index, index) for text, index in vocab.items()}
    copy = Qwen2ForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    ids = [order.get(index, index) for index in range(model.config.vocab_size)]
    with torch.no_grad():
        for weight in (copy.lm_head.weight, copy.get_input_embeddings().weight):
            weight[ids] = weight.clone()
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token=tokenizer.pad_token,
        eos_token=tokenizer.eos_token,
    )
    return copy.eval(), words


def lengths(ways: Mapping[str, Any], kind: str, args: Any) -> dict[str, float]:
    """Tokens per target forward of each way, over the answers to the prompts of a kind."""
    found: dict[str, float] = {}
    expected: list[Any] = []
    for name, (engine, method, from_ids) in ways.items():
        emitted = passes = 0
        answers = []
        for clip in prompts(engine, kind, args.prompts):
            inputs = read(engine, clip)
            if from_ids:
                inputs = type(inputs)(inputs.target)
            with torch.inference_mode():
                result = engine.answer(
                    inputs, method=method, max_new_tokens=args.max_new_tokens
                ).run()
            answers.append(result.tokens)
            emitted += result.stats.emitted - result.stats.first
            passes += result.stats.passes
        expected = expected or answers
        assert answers == expected, f"{name} has other answers"
        found[name] = emitted / passes
    return found


def measure(args: argparse.Namespace) -> Report:
    """Tokens per forward by kind of prompt and way."""
    seeing = load(device="cpu", calibrate=False)
    assert seeing.draft is not None
    words = Engine(
        seeing.target,
        language_part(seeing.draft.backbone.model),
        draft_processor=seeing.draft.processor.tokenizer,
    )
    assert words.draft is not None
    model, tokenizer = shuffled(words.draft.backbone.model, seeing.draft.processor.tokenizer)
    other_ids = Engine(seeing.target, model, draft_processor=tokenizer)
    ways = {
        "draft that sees": (seeing, SPECULATIVE, False),
        "its text view": (seeing, TEXT_VIEW, False),
        "language model": (words, SPECULATIVE, False),
        "language model, token ids": (words, SPECULATIVE, True),
        "language model, another tokenizer": (other_ids, SPECULATIVE, False),
    }
    return {"lengths": {kind: lengths(ways, kind, args) for kind in KINDS}}


def page(report: Report) -> list[str]:
    """Lengths by way and kind."""
    counts = report["lengths"]
    ways = next(iter(counts.values()))
    return [
        f"Tokens per target forward, greedy, chains of {CHAIN}; all answers are equal.",
        grid("", ways, counts, lambda way, kind: f"{counts[kind][way]:.2f}"),
    ]


BENCHMARK = Benchmark(
    "language_draft",
    __doc__,
    "Language models as drafts",
    measure,
    page,
    {
        "--prompts": {"type": int, "default": 12, "help": "prompts of each kind"},
        "--max-new-tokens": 64,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
