"""The tokenizer of both models: byte-level BPE trained on the world's dialogues."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftlens_lab.world import Turn
from draftlens_lab.world.samples import FIRST_KINDS, draw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 768
MAX_LENGTH = 8192
START = "<|im_start|>"
END = "<|im_end|>"
PAD = "<|endoftext|>"
IMAGE = "<image>"
VIDEO = "<video>"

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


@dataclass(frozen=True)
class ChatPiece:
    """A part of the text of a chat.

    Args:
        text: the text.
        is_answer: whether the text is an answer, which is trained on.
    """

    text: str
    is_answer: bool


def world_text(num_samples: int) -> Iterator[str]:
    """The questions and answers of the first ``num_samples`` training samples of each kind."""
    for seed in range(num_samples):
        for kind in FIRST_KINDS:
            for turn in draw(kind, seed).turns:
                yield turn.question
                yield turn.answer
    yield from ("user\n", "assistant\n", "system\n")


def build_tokenizer(num_samples: int = 800) -> Any:
    """A ``PreTrainedTokenizerFast`` with Qwen's chat tokens; the result is deterministic."""
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
        model_max_length=MAX_LENGTH,
    )


def chat(placeholders: tuple[str, ...], turns: list[Turn]) -> list[ChatPiece]:
    """The pieces of a chat; joined, they are the chat template's text of the conversation.

    Args:
        placeholders: `IMAGE` or `VIDEO` for each media item; all precede the first question.
        turns: questions and answers.
    """
    pieces: list[ChatPiece] = []
    media = "".join(f"{placeholder}\n" for placeholder in placeholders)
    for turn in turns:
        prompt = f"{START}user\n{media}{turn.question}{END}\n{START}assistant\n"
        pieces.append(ChatPiece(prompt, is_answer=False))
        pieces.append(ChatPiece(f"{turn.answer}{END}", is_answer=True))
        pieces.append(ChatPiece("\n", is_answer=False))
        media = ""
    return pieces
