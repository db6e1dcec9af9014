"""Draft tokens from texts that a document pipeline has read on the same page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.core.references import NO_REFERENCES, Text
from draftlens.decoding.plan import TargetContext
from draftlens.methods.hsd.matcher import DocumentMatcher
from draftlens.methods.hsd.reference_queue import ReferenceQueue, ReferenceRegion
from draftlens.methods.hsd.reference_text import ReferenceDocument, TextReference, variants_of
from draftlens.methods.lookup.acceptance import DraftBudget
from draftlens.methods.lookup.candidates import Matcher
from draftlens.methods.lookup.drafter import REFERENCES, LookupDrafter
from draftlens.methods.lookup.ngram_index import Reference, TokenIndex, TokenSource, Vocabulary
from draftlens.methods.lookup.text import BREAK, TextCodec, ids_of

MIN_DEPTH = 24  # Tokens of a candidate after a round with few accepted tokens.
MOST_ENDS = 2  # Ids that are proposed as the end of an answer, at most.


@dataclass(frozen=True)
class DocumentOptions:
    """Options of `HSD`; `by_text` compares letters and digits instead of token ids, `chains` lets
    one text at most follow the end of another."""

    window: int = 3
    by_text: bool = True
    variants: bool = True
    recovery: bool = True
    heads: bool = True
    chains: bool = False


class DocumentDrafter(LookupDrafter):
    """Proposes references in any order, besides what `LookupDrafter` finds in prompt and answer."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        length: int,
        branches: int,
        max_nodes: int,
        options: DocumentOptions,
        budget: DraftBudget | None = None,
    ) -> None:
        super().__init__(vocabulary, length, branches, max_nodes, options.window, budget)
        self.options = options
        self._depth_limit = MIN_DEPTH

    def _max_depth(self) -> int:
        """Twice the accepted tokens of the last round: deeper nodes are rarely reached."""
        if self.budget is None:
            return self.length
        return min(self.length, self._depth_limit)

    def _record_depth(self, tokens: int) -> None:
        self._depth_limit = max(MIN_DEPTH, 2 * tokens)

    def _matcher(self, prompt: Sequence[int], context: TargetContext, row: int) -> Matcher:
        references = context.extras.get(REFERENCES, NO_REFERENCES)
        ends = self.vocabulary.with_breaks(sorted(context.eos))
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
    """The matcher of one row. `prompt` has `BREAK` for tokens that may not be proposed; without a
    tokenizer the texts must be token ids."""
    codec = None if tokenizer is None else TextCodec(tokenizer)
    regions = []
    for text in texts:
        variants = variants_of(text) if isinstance(text, str) and options.variants else [text]
        if codec is not None and options.by_text:
            regions.append(ReferenceRegion(_as_texts(variants, codec, vocabulary)))
        else:
            regions.append(
                ReferenceRegion(_as_tokens(variants, tokenizer, vocabulary, options.window))
            )
    return DocumentMatcher(
        queue=ReferenceQueue(regions, eos),
        sources=[Reference(TokenIndex(options.window, prompt))],
        recovery=options.recovery,
        heads=options.heads,
        chains=options.chains,
        window=options.window,
        context=prompt,
        decoder=None if codec is None else codec.decoder(),
    )


def _as_texts(
    variants: Sequence[Text], codec: TextCodec, vocabulary: Vocabulary
) -> list[TokenSource]:
    return [
        TextReference(ReferenceDocument.of(variant, codec, vocabulary), codec)
        for variant in variants
    ]


def _as_tokens(
    variants: Sequence[Text], tokenizer: Any, vocabulary: Vocabulary, window: int
) -> list[TokenSource]:
    sources: list[TokenSource] = []
    for variant in variants:
        tokens = vocabulary.with_breaks(ids_of(variant, tokenizer))
        sources.append(Reference(TokenIndex(window, tokens), cursor=0, is_whole=True))
    return sources
