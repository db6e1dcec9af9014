"""Guesses from what others have read on the same page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.core.references import References, Text
from draftlens.draft.base import TargetContext
from draftlens.draft.document import Document, TextReference
from draftlens.draft.document_matcher import DocumentMatcher
from draftlens.draft.forms import forms_of
from draftlens.draft.lookup import LookupDrafter
from draftlens.draft.match_rates import GuessBudget
from draftlens.draft.matching import Matcher, Reference, Source, TokenIndex, Vocabulary
from draftlens.draft.regions import SEPARATORS, Region, Regions
from draftlens.draft.texts import TextCodec, ids_of

MOST_ENDS = 2
"""Most ids that are proposed as the end of an answer."""


@dataclass(frozen=True)
class DocumentOptions:
    """How answers are found in references.

    Args:
        window: n, tokens of the longest window that is looked up.
        longest_window: tokens up to which it grows while matches are ambiguous.
        by_text: whether letters and digits are compared, in contrast to token ids.
        variants: whether the lines of texts are also joined, and words closed that are broken at
            the end of a line.
        recovery, heads: as for `DocumentMatcher`.
    """

    window: int = 3
    longest_window: int = 10
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

    def _matcher(self, prompt: Sequence[int], context: TargetContext, row: int) -> Matcher:
        references = context.references
        codec = None if references.tokenizer is None else TextCodec(references.tokenizer)
        by_text = codec if self.options.by_text else None
        texts = references.of_row(row)
        return DocumentMatcher(
            regions=Regions(
                [Region(self._sources(text, references, by_text)) for text in texts],
                None if codec is None else separators_of(codec),
                sorted(context.eos)[:MOST_ENDS],
            ),
            sources=[Reference(TokenIndex(self.window, prompt))],
            recovery=self.options.recovery,
            heads=self.options.heads,
            window=self.window,
            context=prompt,
            longest_window=self.options.longest_window,
            decoder=None if codec is None else codec.decoder(),
        )

    def _sources(self, text: Text, references: References, codec: TextCodec | None) -> list[Source]:
        """The forms of a reference."""
        forms: list[Text] = [text]
        if isinstance(text, str) and self.options.variants:
            forms = list(forms_of(text))
        if codec is not None:
            documents = [Document.of(form, codec, self.vocabulary) for form in forms]
            return [TextReference(document, codec) for document in documents]
        ids = [self.vocabulary.guessable(ids_of(form, references.tokenizer)) for form in forms]
        indices = [TokenIndex(self.window, tokens) for tokens in ids]
        return [Reference(index, cursor=0, is_whole=True) for index in indices]


def separators_of(codec: TextCodec) -> dict[str, list[int]]:
    """The token ids of what may stand between two regions."""
    return {separator: codec.continuation("a", separator) for separator in SEPARATORS}
