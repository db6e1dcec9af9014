"""Small tokenizers of several kinds, for references that are texts."""

from __future__ import annotations

from functools import cache
from typing import Any

from language_models import embedded_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

BYTES = [(f"<0x{value:02X}>", -20.0) for value in range(256)]
WORDS = ("▁hello", "▁world", "hello", "wor", "ld", "▁the", "▁foot", "ball", "foot", "fo", "ot")
LETTERS = "abcdefghijklmnopqrstuvwxyz-."


class Slow:
    """A tokenizer of which nothing is known but that it encodes and decodes.

    Args:
        tokenizer: does the work.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.all_special_ids = tokenizer.all_special_ids

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids."""
        text: str = self._tokenizer.decode(ids)
        return text


def sentencepiece() -> Any:
    """Puts a space in front of every text, and has bytes for what it does not know."""
    scores = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *BYTES, ("▁", -4.0)]
    scores += [(word, -2.0) for word in WORDS] + [(letter, -6.0) for letter in LETTERS]
    tokenizer = Tokenizer(models.Unigram(scores, 0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@cache
def all_tokenizers() -> dict[str, Any]:
    """Byte-level BPE, SentencePiece, and both without anything but `encode` and `decode`."""
    bpe = embedded_tokenizer()
    pieces = sentencepiece()
    return {"bpe": bpe, "sentencepiece": pieces, "slow bpe": Slow(bpe), "slow": Slow(pieces)}
