"""Windowed alignment against a twin that slides every window over every text. Candidates merged
into one tree, against a twin that lists all prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlens.core.tree import ROOT, Topology
from draftlens.methods.lookup.acceptance import MatchRates
from draftlens.methods.lookup.candidates import (
    NO_CANDIDATES,
    NO_REFERENCE,
    Candidate,
    Kind,
    Matcher,
    PrefixTree,
    merge,
)
from draftlens.methods.lookup.ngram_index import MOST_MATCHES, Reference, TokenIndex, Vocabulary
from draftlens.methods.lookup.text import BREAK

repeatable = settings(derandomize=True, deadline=None, database=None)
texts = st.lists(st.sampled_from([BREAK, 1, 1, 2, 2, 3]), max_size=25)
windows = st.integers(1, 4)


def slow_ends(text: Sequence[int], window: Sequence[int]) -> list[int]:
    """Where a window ends in a text (equation 4)."""
    count = len(window)
    return [
        start + count
        for start in range(len(text) - count + 1)
        if list(text[start : start + count]) == list(window) and BREAK not in window
    ]


def slow_matches(
    references: Sequence[Sequence[int]], answer: Sequence[int], context: Sequence[int], n: int
) -> list[tuple[int, int, int]]:
    """Agreement, text (0 for the answer) and end of all matches of the longest window that
    matches, the preferred one first; no text has a cursor."""
    tail = [*context, *answer][-16:]
    for length in range(min(n, len(tail)), 0, -1):
        found = []
        for number, text in enumerate([answer, *references]):
            for end in reversed(slow_ends(text, tail[-length:])):
                if end < len(text):
                    agreement = length
                    while text[max(end - agreement - 1, 0) : end] == tail[-agreement - 1 :]:
                        if agreement in (end, len(tail)) or tail[-agreement - 1] == BREAK:
                            break
                        agreement += 1
                    found.append((agreement, number, end))
        if found:
            return sorted(found, key=lambda match: -match[0])
    return []


@repeatable
@given(st.lists(texts, max_size=3), texts, texts, windows)
def test_matches_equal_the_slow_twin(
    references: list[list[int]], context: list[int], answer: list[int], n: int
) -> None:
    matcher = Matcher([Reference(TokenIndex(n, text)) for text in references], n, context)
    for start in range(0, len(answer), 3):  # token by token or in runs: the same
        matcher.extend(answer[start : start + 3])
    numbers = {id(reference): place for place, reference in enumerate(matcher.references)}
    found = [(m, numbers[id(reference)], end) for m, reference, end in matcher._matches()]
    assert found == slow_matches(references, answer, context, n)


@repeatable
@given(texts, st.integers(0, 25), st.integers(0, 8))
def test_a_suffix_ends_at_a_break(text: list[int], end: int, length: int) -> None:
    index = TokenIndex(2, text)
    rest = [*text[end:], BREAK]
    assert index.suffix(end, length) == rest[: rest.index(BREAK)][:length]


@repeatable
@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(1, 30))
def test_a_text_that_repeats_itself_goes_on_to_do_so(period: list[int], length: int) -> None:
    matcher = Matcher(window=3)
    matcher.extend(period * 3)
    (candidate, *_) = matcher.candidates(1, length)
    assert list(candidate.tokens) == (period * 40)[:length]


@repeatable
@given(st.lists(texts, max_size=3), texts, st.integers(1, 5), st.integers(1, 6))
def test_no_candidate_holds_a_break_or_is_the_beginning_of_an_earlier_one(
    references: list[list[int]], answer: list[int], most: int, length: int
) -> None:
    matcher = Matcher([Reference(TokenIndex(3, text)) for text in references])
    matcher.extend(answer)
    candidates = matcher.candidates(most, length)
    assert len(candidates) <= most
    for place, candidate in enumerate(candidates):
        assert 1 <= len(candidate.tokens) <= length
        assert BREAK not in candidate.tokens
        for earlier in candidates[:place]:
            assert earlier.tokens[: len(candidate.tokens)] != candidate.tokens


def tokens_of(candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
    return [candidate.tokens for candidate in candidates]


def test_the_next_match_in_order_comes_first() -> None:
    """The lines of a table begin alike; each line that was right moves the cursor."""
    table = [9, 1, 9, 2, 9, 3, 9, 4]
    matcher = Matcher([Reference(TokenIndex(3, table), cursor=0)])
    matcher.extend([9])
    assert tokens_of(matcher.candidates(4, 1)) == [(1,), (2,), (3,), (4,)]
    matcher.extend([1, 7, 9])  # 7 stands nowhere, so nothing but order tells the lines apart
    assert tokens_of(matcher.candidates(4, 1)) == [(1,), (2,), (3,), (4,)]  # the answer's own first
    matcher.extend([2, 8, 9])
    assert matcher.references[1].cursor == 4
    assert tokens_of(matcher.candidates(4, 1))[2:] == [(3,), (4,)]


def test_without_a_cursor_the_latest_match_comes_first() -> None:
    matcher = Matcher([Reference(TokenIndex(3, [9, 1, 9, 2, 9, 3]))])
    matcher.extend([9])
    assert tokens_of(matcher.candidates(4, 1)) == [(3,), (2,), (1,)]
    assert tokens_of(matcher.candidates(1, 1)) == [(3,)]


def test_a_match_that_agrees_over_more_tokens_comes_first() -> None:
    text = [5, 6, 7, 8, 1, 0, 6, 7, 8, 2]
    matcher = Matcher([Reference(TokenIndex(3, text))])
    matcher.extend([5, 6, 7, 8])
    assert tokens_of(matcher.candidates(2, 1)) == [(1,), (2,)]
    fixed = Matcher([Reference(TokenIndex(3, text))], longest_window=3)
    fixed.extend([5, 6, 7, 8])
    assert tokens_of(fixed.candidates(2, 1)) == [(2,), (1,)]


def test_a_window_at_the_beginning_reaches_into_the_prompt() -> None:
    """The first word of a second answer follows what the first answer followed."""
    prompt = [4, 5, 1, 2, 3, 6, 4, 5]
    matcher = Matcher([Reference(TokenIndex(3, prompt))], context=prompt)
    matcher.extend([1])
    (candidate, *_) = matcher.candidates(4, 3)
    assert (candidate.tokens, candidate.agreement) == ((2, 3, 6), 3)


@pytest.mark.parametrize("window", [1, 3])
def test_work_for_each_token_does_not_grow(window: int) -> None:
    """Entries of the dictionary, and matches that are looked at."""
    index = TokenIndex(window)
    index.extend([1, 2] * 500)
    before = sum(map(len, index._ends.values()))
    index.extend([1])
    assert sum(map(len, index._ends.values())) - before == window
    assert len(Reference(index).places((1,))) == MOST_MATCHES


def test_ids_that_must_not_be_drafted() -> None:
    vocabulary = Vocabulary(10, frozenset({3, 4}))
    assert vocabulary.with_breaks([0, 3, 9, 10, -5, 4]) == [0, BREAK, 9, BREAK, BREAK, BREAK]


def test_what_an_answer_repeats_of_itself_has_no_cursor() -> None:
    """The latest place is preferred, also where a draft token from an earlier one was right."""
    matcher = Matcher(window=1)
    matcher.extend([9, 1, 2, 9])
    assert tokens_of(matcher.candidates(1, 1)) == [(1,)]
    matcher.extend([1, 9, 3, 9])
    assert tokens_of(matcher.candidates(4, 1)) == [(3,), (1,)]
    assert matcher.references[0].cursor is None


@repeatable
@given(references=st.lists(texts, max_size=3), context=texts, further=texts, window=windows)
def test_what_follows_further_tokens_is_what_follows_them_in_the_context(
    references: list[list[int]], context: list[int], further: list[int], window: int
) -> None:
    """And the matcher stays as it was."""

    def matcher(before: list[int]) -> Matcher:
        sources = [Reference(TokenIndex(window, text), cursor=0) for text in references]
        return Matcher(sources, window, before)

    looks = matcher(context)
    before = looks.candidates(3, 5)
    found = looks.candidate_after(further, 5)
    best = matcher([*context, *further]).candidates(1, 5)
    assert (found and (found.tokens, found.agreement)) == (
        (best[0].tokens, best[0].agreement) if best else None
    )
    assert looks.candidates(3, 5) == before


Prefix = tuple[int, ...]

candidates = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8)


def slow_merge(sequences: Sequence[Sequence[int]], most: int, depth: int) -> PrefixTree:
    """Each node is the prefix that leads to it."""
    first_in: dict[Prefix, int] = {}
    for index, sequence in enumerate(sequences):
        for length in range(1, min(len(sequence), depth) + 1):
            prefix = tuple(sequence[:length])
            if prefix not in first_in and len(first_in) < most:
                first_in[prefix] = index
    age = {prefix: number for number, prefix in enumerate(first_in)}

    def place(prefix: Prefix) -> tuple[int, list[int]]:
        return len(prefix), [age[prefix[: n + 1]] for n in range(len(prefix))]

    nodes = sorted(first_in, key=place)
    parents = [nodes.index(node[:-1]) if node[:-1] else ROOT for node in nodes]
    return PrefixTree(
        Topology(tuple(parents)),
        tuple(node[-1] for node in nodes),
        tuple(first_in[node] for node in nodes),
    )


@repeatable
@given(candidates, st.integers(0, 12), st.integers(0, 6))
def test_merge_equals_the_slow_twin(
    sequences: list[list[int]], max_nodes: int, max_depth: int
) -> None:
    assert merge(sequences, max_nodes, max_depth) == slow_merge(sequences, max_nodes, max_depth)


@repeatable
@given(candidates)
def test_every_candidate_is_a_path_and_every_node_is_part_of_one(
    sequences: list[list[int]],
) -> None:
    tree = merge(sequences, max_nodes=1000)
    prefixes = {tuple(row[: n + 1]) for row in sequences for n in range(len(row))}
    assert {prefix_of(tree, node) for node in range(len(tree))} == prefixes
    assert len(tree) == len(prefixes)
    assert list(tree.topology.depths) == sorted(tree.topology.depths)


def prefix_of(tree: PrefixTree, node: int) -> Prefix:
    """The tokens that lead to a node."""
    if node == ROOT:
        return ()
    return (*prefix_of(tree, tree.topology.parents[node]), tree.tokens[node])


@repeatable
@given(candidates, st.data())
def test_the_tree_of_some_nodes(sequences: list[list[int]], choices: st.DataObject) -> None:
    tree = merge(sequences, max_nodes=1000)
    kept: set[int] = set()
    for node, parent in enumerate(tree.topology.parents):
        if (parent == ROOT or parent in kept) and choices.draw(st.booleans()):
            kept.add(node)
    smaller = tree.kept(kept)
    assert [prefix_of(smaller, node) for node in range(len(smaller))] == [
        prefix_of(tree, node) for node in sorted(kept)
    ]
    assert smaller.origins == tuple(tree.origins[node] for node in sorted(kept))


def test_forced_tokens_come_first() -> None:
    """They are likelier than a match, belong to no reference, and end where the tree does."""
    matcher = Matcher([Reference(TokenIndex(3, [1, 2, 3, 4, 5]))], context=[1, 2])
    tree, candidates = matcher.tree(2, 3, 9, forced=[7, 8, 9, 6])
    assert tokens_of(candidates) == [(7, 8, 9), (3, 4, 5)]
    assert tree.tokens[:2] == (7, 3)
    assert candidates[0].kind is Kind.FORCED
    assert matcher.number_of(candidates[0].reference) == NO_REFERENCE
    rates = MatchRates()
    forced, matched = (rates.chances(candidate)[0] for candidate in candidates)
    assert forced > 0.9 > matched
    assert tokens_of(matcher.tree(1, 9, 9, forced=[7, 8])[1]) == [(7, 8)]
    after = matcher.candidate_after([4], 2, forced=[7, 8, 9])
    assert after is not None
    assert (after.tokens, after.kind) == ((7, 8), Kind.FORCED)
    matcher.extend([7, 8])  # moves no cursor
    assert tokens_of(matcher.tree(2, 3, 9)[1]) == []


def test_figure_2_of_the_paper() -> None:
    """Three candidates of which two begin alike."""
    tree = merge([[1, 2, 3], [1, 2, 4], [5, 6]], max_nodes=20)
    assert tree.tokens == (1, 5, 2, 6, 3, 4)
    assert tree.topology.parents == (ROOT, ROOT, 0, 1, 2, 2)


def test_nothing_is_the_empty_tree() -> None:
    assert (
        merge([], 10) == merge([[]], 10) == merge([[1]], 0) == merge([[1]], 5, 0) == NO_CANDIDATES
    )
