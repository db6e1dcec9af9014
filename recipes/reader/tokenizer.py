"""The reader's tokenizer: byte-level BPE with single digits, and Qwen2.5-VL's special tokens."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.reader.words import Split, Wording

VOCABULARY = 512
MAX_LENGTH = 8192
START = "<|im_start|>"
END = "<|im_end|>"
PAD = "<|endoftext|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE = "<|image_pad|>"
VIDEO = "<|video_pad|>"
QUESTION = "Read."  # what is asked about every picture
TOKENIZER_SEED = 17
SAMPLES = 2000  # sentences that the merges are learned from

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT_BEFORE = f"{START}user\n{VISION_START}"
PROMPT_AFTER = f"{VISION_END}{QUESTION}{END}\n{START}assistant\n"


def sample_texts() -> Iterator[str]:
    """Texts like those of the pages, from which the merges are learned."""
    wording = Wording(np.random.default_rng(TOKENIZER_SEED), Split())
    for index in range(SAMPLES):
        text = " ".join(wording.sentence())
        if index % 10 == 0:
            text = f"## {text}\n\n- {text}\n- {text}"
        if index % 10 == 1:
            text = f"| {text} |\n|---|---|---|\n| {text} |\n\n"
        yield text
    yield from ("user\n", "assistant\n", "system\n", QUESTION)


def build_tokenizer() -> Any:
    """A ``PreTrainedTokenizerFast`` with Qwen's special tokens; the result is deterministic."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END, VISION_START, VISION_END, IMAGE, VIDEO],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sample_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START, VISION_START, VISION_END, IMAGE, VIDEO],
        extra_special_tokens={"image_token": IMAGE, "video_token": VIDEO},
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=MAX_LENGTH,
    )
