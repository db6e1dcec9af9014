"""One answer with the weights and proposals of its views by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftlens.core.errors import ConfigError, InputError
from draftlens.core.stats import Clock, Stats, ViewStats
from draftlens.core.text import TextDecoder
from draftlens.core.timeline import Timeline
from draftlens.decoding.observer import Observer, Weighed
from draftlens.engine import Engine
from draftlens.media.conversation import Conversation
from draftlens.methods.base import (
    Method,
    MethodLike,
    has_option,
    name_of,
    resolve,
    to_dict,
    with_option,
)
from draftlens.methods.parts import DEFAULT_LENGTH
from draftlens_lab.explain.tracing import (
    PLAIN,
    SERIAL,
    PlainRun,
    Round,
    Speedup,
    Steps,
    comparison,
    prompt_of,
    run_rounds,
    settings_of,
)

_WARM_UP_TOKENS = 12


@dataclass(frozen=True)
class ViewToken:
    """One token of an answer.

    Args:
        text: what it adds to the text before it; empty if it completes no character, or ends the
            answer.
        round: number of the verification pass, from 1; 0 for the token from prefill.
        weights: of each view when the token was drafted; None where it was not drafted.
        hits: whether each view would have proposed it; None for a view without a proposal.
    """

    text: str
    drafted: bool
    round: int
    weights: tuple[float, ...] | None
    hits: tuple[bool | None, ...]


@dataclass(frozen=True)
class ViewFigures:
    """What one view has shown in an answer.

    Args:
        weight: its mean weight; None if nothing was weighed.
        right: tokens of these that it would have drafted.
        alone: mean acceptance length that it would have had alone, with a chain of
            `ViewTrace.length` draft tokens; None if it proposed nothing for a token that decides.
    """

    name: str
    weight: float | None
    asked: int
    right: int
    alone: float | None


@dataclass(frozen=True)
class ViewTrace:
    """One answer of a draft that reads the prompt in several views, explained."""

    title: str
    prompt: str
    method: dict[str, Any]
    length: int
    names: tuple[str, ...]
    tokens: tuple[ViewToken, ...]
    rounds: tuple[Round, ...]
    stats: Stats
    plain: PlainRun | None
    settings: dict[str, str]
    notes: tuple[str, ...]
    timelines: dict[str, Timeline]

    @property
    def speedup(self) -> Speedup | None:
        """The speedup over plain decoding; None where plain decoding was not measured."""
        return Speedup.of(self.plain, self.stats)

    @property
    def figures(self) -> tuple[ViewFigures, ...]:
        return tuple(self._figures_of(view) for view in range(len(self.names)))

    def _figures_of(self, view: int) -> ViewFigures:
        hits = [token.hits[view] for token in self.tokens]
        name = self.names[view]
        counted = self.stats.views.get(name, ViewStats())
        weight = counted.weight / counted.tokens if counted.tokens else None
        alone = length_alone(hits, self.length)
        return ViewFigures(name, weight, counted.asked, counted.right, alone)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "prompt": self.prompt,
            "method": self.method,
            "length": self.length,
            "views": [asdict(figures) for figures in self.figures],
            "tokens": [asdict(token) for token in self.tokens],
            "rounds": [asdict(entry) for entry in self.rounds],
            "stats": self.stats.to_dict(),
            "plain": None if self.plain is None else asdict(self.plain),
            "settings": self.settings,
            "notes": list(self.notes),
            "timelines": {name: line.to_dict() for name, line in self.timelines.items()},
        }


def length_alone(hits: Sequence[bool | None], length: int) -> float | None:
    """The mean acceptance length of a draft whose draft tokens are known to be right or wrong.

    This is exact where the draft token at a position depends on the tokens before it alone, as with
    greedy decoding and with coupled sampling.

    Args:
        hits: whether it would have drafted each token, the first of which comes from prefill; None
            if that is not known.

    Returns:
        None if a token that decides is not known, or the answer has one token.

    Example:

        >>> length_alone([None, True, False, True, True, True], 2)  # tokens 1 and 2, 3 to 5
        2.5
    """
    last = len(hits) - 1
    place = 1
    passes = 0
    while place <= last:
        passes += 1
        end = min(place + length, last)  # the last token ends the answer, drafted or not
        while place < end and hits[place]:
            place += 1
        if place < end and hits[place] is None:
            return None
        place += 1  # the target's own token
    return last / passes if passes else None


def trace_views(
    engine: Engine,
    chat: Conversation,
    title: str,
    *,
    method: MethodLike = "tabed",
    compare: bool = True,
    **options: Any,
) -> ViewTrace:
    """Answer a prompt about a clip or pictures and return what explains the views of its draft.

    All views are asked about every token: none rests, so that the answer may take longer than it
    would without being explained.
    """
    asking = viewing_method(method)
    inputs = engine.process([chat])
    engine.plan(asking).wait_until_ready()
    seen: list[Weighed] = []
    timelines: dict[str, Timeline] = {}
    plain = None
    if compare:
        short = {**options, "max_new_tokens": _WARM_UP_TOKENS}
        for warmed in (PLAIN, asking):
            engine.answer(inputs, method=warmed, **short).run()
        plain_clock = Clock(Stats(), record=True)
        plain = engine.answer(inputs, method=PLAIN, clock=plain_clock, **options).run()
        timelines[PLAIN] = plain_clock.timeline()
    clock = Clock(Stats(), record=True)
    stream = engine.answer(
        inputs, method=asking, clock=clock, observe=Observer(on_weights=seen.append), **options
    )
    steps = run_rounds(stream, clock.stats, engine)
    if not steps.rounds or not seen:
        raise InputError("the answer ended with its first token, so nothing was drafted")
    timelines[SERIAL] = clock.timeline()
    names = seen[0].views
    result = stream.result
    return ViewTrace(
        title=title,
        prompt=prompt_of(chat),
        method=to_dict(asking),
        length=to_dict(asking)["num_speculative_tokens"] or DEFAULT_LENGTH,
        names=names,
        tokens=_tokens(steps, seen, names, engine.target.processor.tokenizer),
        rounds=steps.rounds,
        stats=result.stats,
        plain=None if plain is None else comparison(plain, result),
        settings=settings_of(engine, stream, chat),
        notes=_notes(result.stats, names, rests=asking != resolve(method)),
        timelines=timelines,
    )


def has_views(method: MethodLike) -> bool:
    """Whether the draft of a method reads its prompt in several views."""
    return has_option(resolve(method), "views")


def viewing_method(method: MethodLike) -> Method:
    """Return the method with all views proposing for every token."""
    resolved = resolve(method)
    if not has_views(resolved):
        raise ConfigError(
            f"the draft of method {name_of(resolved)!r} reads its prompt in one way only: use "
            "method tabed"
        )
    return with_option(resolved, "rest", False)


def _tokens(
    steps: Steps, seen: Sequence[Weighed], names: Sequence[str], tokenizer: Any
) -> tuple[ViewToken, ...]:
    by_index: Mapping[int, Weighed] = {weighed.index: weighed for weighed in seen}
    decoder = TextDecoder(lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    tokens = []
    for index, (token, drafted, number) in enumerate(steps.spans):
        text = decoder.add([token])
        if index == len(steps.spans) - 1:
            text += decoder.flush()
        weighed = by_index.get(index)
        weights = None if weighed is None else weighed.weights
        hits = (None,) * len(names) if weighed is None else weighed.hits
        tokens.append(ViewToken(text, drafted, number, weights, hits))
    return tuple(tokens)


def _notes(stats: Stats, names: Sequence[str], rests: bool) -> tuple[str, ...]:
    """Sentences about what the picture does not show by itself."""
    notes = []
    silent = [name for name in names if not stats.views.get(name, ViewStats()).asked]
    if silent:
        notes.append(
            f"Not asked about any token: {', '.join(silent)}. Such a view cannot be read, or reads "
            "the same prompt as another one."
        )
    if rests:
        notes.append(
            "For this picture every view was asked about every token. Usually a view with a "
            "negligible weight rests, which takes less time."
        )
    return tuple(notes)
