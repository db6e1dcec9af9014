"""Candidates merged into one tree (HSD, equation 6 and figure 2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from draftlens.core.tree import EMPTY, ROOT, Topology
from draftlens.methods.lookup.ngram_index import Reference, TokenIndex, TokenSource
from draftlens.methods.lookup.text import AnswerTail, PieceDecoder, joined_text


@dataclass(frozen=True)
class PrefixTree:
    """Token sequences merged by their common prefixes."""

    topology: Topology
    tokens: tuple[int, ...]  # the id of each node
    origins: tuple[int, ...]  # index of the first candidate through each node

    def __len__(self) -> int:
        return len(self.tokens)

    def path(self, tokens: Iterable[int]) -> list[int]:
        """The nodes along tokens from the root on, as far as they are in the tree.

        Example:

            >>> merge([[5, 6, 7], [5, 8]], max_nodes=10).path([5, 8, 9])
            [0, 2]
        """
        node = ROOT
        nodes: list[int] = []
        for token in tokens:
            children = self.topology.children.get(node, ())
            right = [child for child in children if self.tokens[child] == token]
            if not right:
                break
            node = right[0]
            nodes.append(node)
        return nodes

    def kept(self, nodes: Collection[int]) -> PrefixTree:
        """The tree of some of the nodes; the parent of each is among them."""
        if len(nodes) == len(self):
            return self
        order = sorted(nodes)
        new_index = {node: index for index, node in enumerate(order)}
        new_index[ROOT] = ROOT
        parents = tuple(new_index[self.topology.parents[node]] for node in order)
        tokens = tuple(self.tokens[node] for node in order)
        return PrefixTree(Topology(parents), tokens, tuple(self.origins[node] for node in order))


NO_CANDIDATES = PrefixTree(EMPTY, (), ())


def merge(
    candidates: Iterable[Sequence[int]], max_nodes: int, max_depth: int | None = None
) -> PrefixTree:
    """Merge candidates into a prefix tree.

    Nodes are in level order, siblings in the order of the candidates in which they first occur. If
    there are more than `max_nodes`, earlier candidates come first and the last one is cut.

    Example:

        >>> tree = merge([[5, 6, 7], [5, 8], [9]], max_nodes=10)
        >>> tree.tokens, tree.topology.parents
        ((5, 9, 6, 8, 7), (-1, -1, 0, 0, 2))
    """
    trie = _Trie(max_nodes)
    for index, candidate in enumerate(candidates):
        trie.insert(candidate[:max_depth], index)
    return trie.in_level_order()


class _Trie:
    """A tree that grows candidate by candidate; its nodes are in the order of insertion."""

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.tokens: list[int] = []
        self.origins: list[int] = []
        self.children: dict[int, dict[int, int]] = {ROOT: {}}

    def insert(self, candidate: Sequence[int], origin: int) -> None:
        node = ROOT
        for token in candidate:
            child = self.children[node].get(token)
            if child is None:
                if len(self.tokens) >= self.max_nodes:
                    return
                child = len(self.tokens)
                self.children[node][token] = child
                self.children[child] = {}
                self.tokens.append(token)
                self.origins.append(origin)
            node = child

    def in_level_order(self) -> PrefixTree:
        order = list(self.children[ROOT].values())
        parents = [ROOT] * len(order)
        for index, node in enumerate(order):  # grows while it is read
            below = list(self.children[node].values())
            order += below
            parents += [index] * len(below)
        if not order:
            return NO_CANDIDATES
        tokens = tuple(self.tokens[node] for node in order)
        return PrefixTree(
            Topology(tuple(parents)), tokens, tuple(self.origins[node] for node in order)
        )


LONGEST_WINDOW = 16  # Tokens up to which a window grows to distinguish several matches.
NO_REFERENCE = -1  # Index of the texts that the caller did not give: the prompt and the answer.


class Kind(Enum):
    """Why a candidate is proposed."""

    MATCH = "match"  # the last tokens of the answer occur before it
    RECOVERY = "recovery"  # a place at which a reference may continue after a rejected draft token
    HEAD = "head"  # the beginning of a reference, or the end of the answer
    FORCED = "forced"  # the form of the answer allows nothing else


@dataclass(frozen=True)
class Candidate:
    """A proposed continuation."""

    tokens: tuple[int, ...]  # at least one
    agreement: int  # number of tokens before it that equal the last tokens of the answer
    reference: TokenSource | None = field(repr=False)  # None for forced tokens
    # index in `reference` at which it begins; negative if a separator of that length comes first
    end: int
    kind: Kind = Kind.MATCH
    reaches_end: bool = False  # whether `reference` ends with it
    # what follows the end of `reference`; its tokens are the last of `tokens`
    head: Candidate | None = None

    @property
    def boundary(self) -> int:
        """Number of tokens before those of `head`."""
        return len(self.tokens) - (0 if self.head is None else len(self.head.tokens))

    def evidence_at(self, depth: int) -> tuple[Kind, int]:
        """Kind and agreement of the token after `depth` tokens."""
        if self.head is not None and depth >= self.boundary:
            return Kind.HEAD, depth - self.boundary
        return self.kind, self.agreement + depth

    def reference_at(self, depth: int) -> TokenSource | None:
        if self.head is None or depth < self.boundary:
            return self.reference
        return self.head.reference_at(depth - self.boundary)

    def advance(self, pieces: Sequence[str], accepted: int) -> Advance | None:
        """The stretch of a reference that `accepted` tokens follow; None if none of them is from
        one. `pieces` are the texts that they added to the answer."""
        if self.head is not None:
            step = self.head.advance(pieces[self.boundary :], accepted - self.boundary)
            if step is not None:
                return step
            accepted = min(accepted, self.boundary)
        if self.reference is None:
            return None
        text = joined_text(pieces[: max(accepted, 0)])
        place = self.reference.place_after(self.end, self.tokens[: max(accepted, 0)], text)
        if accepted <= 0 or place <= 0:
            return None
        return Advance(self.reference, max(self.end, 0), place, text[: max(-self.end, 0)])


@dataclass(frozen=True)
class Advance:
    """A stretch of a reference that the answer has followed."""

    source: TokenSource
    start: int  # first index
    place: int  # index after the last
    between: str = ""  # separator that the answer has before it


class Matcher:
    """Finds the last tokens of one growing answer in texts and in the answer itself.

    Windows of `window` tokens are tried first, then shorter ones down to one token. Matches are
    ordered by agreement (the longest first, counted up to `longest_window`), then by whether they
    continue at the cursor of their text, then by the order of the references.

    Args:
        context: tokens before the answer, such as the prompt.
        decoder: decodes the answer, for references that compare texts.
        given: further references, those of the caller.
    """

    def __init__(
        self,
        references: Iterable[TokenSource] = (),
        window: int = 3,
        context: Sequence[int] = (),
        longest_window: int = LONGEST_WINDOW,
        decoder: PieceDecoder | None = None,
        given: Sequence[TokenSource] = (),
    ) -> None:
        self.window = window
        self.answer = TokenIndex(window)
        # the answer itself comes first
        own = Reference(self.answer, repeats=True)
        self.references: list[TokenSource] = [own, *references, *given]
        self._given = given
        self.tail = AnswerTail(max(longest_window, window), decoder)
        self.tail.extend(context[-self.tail.size :])
        self._candidates: list[Candidate] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Append emitted tokens to the answer, with `BREAK` for those that may not be proposed."""
        tokens = list(tokens)
        pieces = self.tail.extend(tokens)
        self._follow(tokens, pieces)
        self.answer.extend(tokens)
        self._candidates = []

    def number_of(self, source: TokenSource | None) -> int:
        """Index of the caller's reference that a text is a variant of, or `NO_REFERENCE`."""
        numbers = (number for number, given in enumerate(self._given) if given is source)
        return next(numbers, NO_REFERENCE)

    def candidates(self, most: int, length: int) -> list[Candidate]:
        """At most `most` candidates, best first; none is a prefix of an earlier one."""
        self._candidates = distinct(self._continuations(self._matches(), length), most)
        return list(self._candidates)

    def candidate_after(
        self, tokens: Iterable[int], length: int, forced: Sequence[int] = ()
    ) -> Candidate | None:
        """The forced tokens, or else the best match of the answer, after further tokens that it
        does not have yet."""
        if forced:
            return forced_candidate(forced[:length])
        tail = self.tail
        self.tail = tail.followed_by(tokens)
        try:
            return next(self._continuations(self._matches(), length), None)
        finally:
            self.tail = tail

    def tree(
        self, most: int, length: int, max_nodes: int, forced: Sequence[int] = ()
    ) -> tuple[PrefixTree, list[Candidate]]:
        """The candidates merged into one tree, the forced tokens first, and the candidates that its
        `origins` index."""
        candidates = self.candidates(most, length)
        if forced:
            candidates = distinct([forced_candidate(forced[:length]), *candidates], most)
        return merge([candidate.tokens for candidate in candidates], max_nodes), candidates

    def _continuations(
        self, matches: Iterable[tuple[int, TokenSource, int]], length: int
    ) -> Iterator[Candidate]:
        for agreement, reference, place in matches:
            continuation = reference.continuation(place, length, self.tail)
            if continuation.tokens:
                yield Candidate(
                    continuation.tokens,
                    agreement,
                    reference,
                    place,
                    reaches_end=continuation.reaches_end,
                )

    def _matches(self) -> list[tuple[int, TokenSource, int]]:
        """Agreement, text and place of each match, the preferred one first."""
        for length in range(min(self.window, len(self.tail)), 0, -1):
            matches = [
                (agreement, reference, place)
                for reference in self.references
                for agreement, place in reference.matches(self.tail, length)
            ]
            if matches:
                return sorted(matches, key=_preference)  # stable
        return []

    def _follow(self, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        """Set the cursor of the reference with the longest accepted candidate."""
        candidate, accepted = longest_correct(self._candidates, tokens)
        if candidate is not None:
            step = candidate.advance(pieces, accepted)
            if step is not None:
                step.source.set_cursor(step.place)


def forced_candidate(tokens: Sequence[int]) -> Candidate:
    return Candidate(tuple(tokens), 0, None, 0, Kind.FORCED)


def distinct(candidates: Iterable[Candidate], most: int) -> list[Candidate]:
    """The first `most` candidates, without those that are a prefix of an earlier one."""
    result: list[Candidate] = []
    for candidate in candidates:
        if len(result) >= most:
            break
        count = len(candidate.tokens)
        if not any(earlier.tokens[:count] == candidate.tokens for earlier in result):
            result.append(candidate)
    return result


def longest_correct(
    candidates: Iterable[Candidate], tokens: Sequence[int]
) -> tuple[Candidate | None, int]:
    """The candidate with the longest common prefix with `tokens`, and its length."""
    best = None
    longest = 0
    for candidate in candidates:
        accepted = _common(candidate.tokens, tokens)
        if accepted > longest:
            best = candidate
            longest = accepted
    return best, longest


def _preference(match: tuple[int, TokenSource, int]) -> tuple[int, bool]:
    agreement, reference, place = match
    return -agreement, place != reference.cursor


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
