"""The pair's one tokenizer: byte-level BPE trained on what is said in the world."""

from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from draftlens.world import Turn
from draftlens.world.samples import KINDS, draw

VOCABULARY = 768
START, END, PAD, IMAGE, VIDEO = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>", "<video>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% elif part['type'] == 'video' %}<video>\n"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def world_text(num_samples: int) -> Iterator[str]:
    """Every question and answer of the first ``num_samples`` training samples of each kind."""
    for seed in range(num_samples):
        for kind in KINDS:
            for turn in draw(kind, seed).turns:
                yield turn.question
                yield turn.answer
    yield from ("user\n", "assistant\n", "system\n")


def build_tokenizer(num_samples: int = 800) -> Any:
    """A ``PreTrainedTokenizerFast`` with the Qwen-style chat tokens; the same one every time."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END, IMAGE, VIDEO],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(world_text(num_samples), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START, IMAGE, VIDEO],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=8192,
    )


def chat(media: tuple[str, ...], turns: list[Turn]) -> list[tuple[str, bool]]:
    """The chat as pieces of text, each with whether it is an answer (and so trained on).

    Joined, the pieces are what the chat template makes of the same conversation; ``media`` has an
    IMAGE or VIDEO for each thing shown, all before the first question.
    """
    pieces: list[tuple[str, bool]] = []
    for i, turn in enumerate(turns):
        shown = "".join(f"{holder}\n" for holder in media) if i == 0 else ""
        pieces.append((f"{START}user\n{shown}{turn.question}{END}\n{START}assistant\n", False))
        pieces.append((f"{turn.answer}{END}", True))
        pieces.append(("\n", False))
    return pieces
