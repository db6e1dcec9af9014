"""Guesses from what others have read on the same page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.core.references import NO_REFERENCES, Text
from draftlens.decoding.drafter import TargetContext
from draftlens.methods.hsd.matcher import DocumentMatcher
from draftlens.methods.hsd.reference_queue import Region, Regions
from draftlens.methods.hsd.reference_text import Document, TextReference
from draftlens.methods.hsd.variants import forms_of
from draftlens.methods.lookup.acceptance import GuessBudget
from draftlens.methods.lookup.answer_tail import BREAK
from draftlens.methods.lookup.candidates import Matcher
from draftlens.methods.lookup.drafter import REFERENCES, LookupDrafter
from draftlens.methods.lookup.ngram_index import Reference, Source, TokenIndex, Vocabulary
from draftlens.methods.lookup.text_tokens import TextCodec, ids_of

LEAST_REACH = 24
"""Tokens of a candidate behind a round in which little was right."""

MOST_ENDS = 2
"""Most ids that are proposed as the end of an answer."""


@dataclass(frozen=True)
class DocumentOptions:
    """How answers are found in references.

    Args:
        window: n, tokens of the longest window that is looked up.
        by_text: whether letters and digits are compared, in contrast to token ids.
        variants: whether the lines of texts are also joined, and words closed that are broken at
            the end of a line.
        recovery, heads: as for `DocumentMatcher`.
    """

    window: int = 3
    by_text: bool = True
    variants: bool = True
    recovery: bool = True
    heads: bool = True


class DocumentDrafter(LookupDrafter):
    """Guesses that each answer repeats its references, in whatever order and form; also looks it up
    in its prompt and in itself.

    Args:
        vocabulary, length, branches, max_nodes, budget: as for `LookupDrafter`.
        options: how answers are found in references.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        length: int,
        branches: int,
        max_nodes: int,
        options: DocumentOptions,
        budget: GuessBudget | None = None,
    ) -> None:
        super().__init__(vocabulary, length, branches, max_nodes, options.window, budget)
        self.options = options
        self._reach = LEAST_REACH

    def _longest(self) -> int:
        """Longer after success: guesses that are hardly ever reached cost time and nodes."""
        if self.budget is None:
            return self.length
        return min(self.length, self._reach)

    def _reached(self, tokens: int) -> None:
        """See `LookupDrafter`."""
        self._reach = max(LEAST_REACH, 2 * tokens)

    def _matcher(self, prompt: Sequence[int], context: TargetContext, row: int) -> Matcher:
        references = context.extras.get(REFERENCES, NO_REFERENCES)
        ends = self.vocabulary.guessable(sorted(context.eos))
        return document_matcher(
            references.of_row(row),
            references.tokenizer,
            self.vocabulary,
            self.options,
            prompt,
            [token for token in ends if token != BREAK][:MOST_ENDS],
        )


def document_matcher(
    texts: Sequence[Text],
    tokenizer: Any,
    vocabulary: Vocabulary,
    options: DocumentOptions,
    prompt: Sequence[int] = (),
    eos: Sequence[int] = (),
) -> DocumentMatcher:
    """What finds the guesses of one row.

    Args:
        texts: its references.
        tokenizer: of the target; None if it is not known, which needs references that are ids.
        vocabulary: what may be guessed.
        options: how the answer is found in the references.
        prompt: the tokens in front of the answer, with `BREAK` for those that must not be guessed.
        eos: ids that end the answer.
    """
    codec = None if tokenizer is None else TextCodec(tokenizer)
    regions = []
    for text in texts:
        forms = forms_of(text) if isinstance(text, str) and options.variants else [text]
        if codec is not None and options.by_text:
            regions.append(Region(_as_texts(forms, codec, vocabulary)))
        else:
            regions.append(Region(_as_tokens(forms, tokenizer, vocabulary, options.window)))
    return DocumentMatcher(
        regions=Regions(regions, eos),
        sources=[Reference(TokenIndex(options.window, prompt))],
        recovery=options.recovery,
        heads=options.heads,
        window=options.window,
        context=prompt,
        decoder=None if codec is None else codec.decoder(),
    )


def _as_texts(forms: Sequence[Text], codec: TextCodec, vocabulary: Vocabulary) -> list[Source]:
    return [TextReference(Document.of(form, codec, vocabulary), codec) for form in forms]


def _as_tokens(
    forms: Sequence[Text], tokenizer: Any, vocabulary: Vocabulary, window: int
) -> list[Source]:
    sources: list[Source] = []
    for form in forms:
        tokens = vocabulary.guessable(ids_of(form, tokenizer))
        sources.append(Reference(TokenIndex(window, tokens), cursor=0, is_whole=True))
    return sources
