"""How many passes an answer takes that is known beforehand.

The tokens of an exact method are those of stock `generate`, whatever is drafted. So the work of
every way of drafting follows from one answer, without the model, and is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftlens.core.tree import ROOT
from draftlens.methods.hsd.drafter import DocumentOptions, document_matcher
from draftlens.methods.lookup.candidates import PrefixTree
from draftlens.methods.lookup.ngram_index import Vocabulary

LENGTH = 64
"""Tokens of a candidate."""


@dataclass(frozen=True)
class Way:
    """How draft tokens are found, all of which are checked.

    Args:
        options: of the matcher.
        branches: most candidates.
        nodes: most draft tokens of a pass.
    """

    options: DocumentOptions = field(default_factory=DocumentOptions)
    branches: int = 4
    nodes: int = 256

    def but(self, **options: Any) -> Way:
        """The same with other options of the matcher."""
        return replace(self, options=replace(self.options, **options))


@dataclass(frozen=True)
class Count:
    """What one answer took.

    Args:
        tokens: that passes emitted.
        passes: of the target, behind the prefill.
        drafted: tokens that they checked.
        emitted: tokens of each pass.
    """

    tokens: int
    passes: int
    drafted: int
    emitted: tuple[int, ...] = ()

    @property
    def per_pass(self) -> float:
        """Tokens of a pass, as `Stats.mean_acceptance_length`."""
        return self.tokens / max(1, self.passes)


def replay(
    answer: Sequence[int],
    references: Sequence[Any],
    tokenizer: Any,
    vocabulary: Vocabulary,
    way: Way,
    prompt: Sequence[int] = (),
    eos: Sequence[int] = (),
) -> Count:
    """Say an answer, pass by pass.

    Args:
        answer: all of its tokens.
        references: texts or ids.
        tokenizer: of the target.
        vocabulary: what may be drafted.
        way: how draft tokens are found.
        prompt: the tokens in front of the answer.
        eos: ids that end an answer.
    """
    prompt_ids = vocabulary.with_breaks(prompt)
    matcher = document_matcher(references, tokenizer, vocabulary, way.options, prompt_ids, eos)
    matcher.extend(answer[:1])  # the token of the prefill
    said = 1
    drafted = 0
    emitted = []
    while said < len(answer):
        tree, _ = matcher.tree(way.branches, LENGTH, way.nodes)
        emitted.append(accepted(tree, answer[said:]) + 1)
        matcher.extend(answer[said : said + emitted[-1]])
        said += emitted[-1]
        drafted += len(tree)
    return Count(len(answer) - 1, len(emitted), drafted, tuple(emitted))


def accepted(tree: PrefixTree, answer: Sequence[int]) -> int:
    """How many draft tokens are accepted; never the last token of the answer."""
    node = ROOT
    for depth, token in enumerate(answer[:-1]):
        children = tree.topology.children.get(node, ())
        right = [child for child in children if tree.tokens[child] == token]
        if not right:
            return depth
        node = right[0]
    return len(answer) - 1


def per_pass(counts: Sequence[Count]) -> float:
    """Tokens of a pass, of several answers together."""
    return sum(count.tokens for count in counts) / max(1, sum(count.passes for count in counts))
