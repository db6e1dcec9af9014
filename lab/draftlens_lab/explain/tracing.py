"""One answer with what explains it: the tokens drafted and accepted, the visual tokens kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import transformers

from draftlens.core.errors import ConfigError, InputError
from draftlens.core.names import AUTO
from draftlens.core.prefill_readings import ATTENTION, NO_FEATURES, FeatureSpec
from draftlens.core.result import Result
from draftlens.core.stats import Clock, Stats
from draftlens.core.text import TextDecoder
from draftlens.core.timeline import Timeline
from draftlens.core.version import __version__
from draftlens.drafting.pruning import Pruning
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.media.conversation import Conversation
from draftlens.methods.automatic import Automatic
from draftlens.methods.base import (
    Method,
    MethodLike,
    has_option,
    name_of,
    resolve,
    to_dict,
    with_option,
)
from draftlens.pruning import PRUNERS, Choice
from draftlens.streaming import Stream
from draftlens_lab.explain.pictures import locate_pictures
from draftlens_lab.explain.views import (
    MAX_ASPECT,
    VisualTokens,
    build_views,
    token_runs,
    whole_pictures,
)

PLAIN = "plain"
"""The method that all others are compared with, and the name of its timeline."""
SERIAL = "serial"
"""The schedule that others are compared with."""
_WARM_UP_TOKENS = 12


@dataclass(frozen=True)
class Round:
    """One verification pass of the target.

    Args:
        emitted: number of tokens that the answer gained: the accepted ones and the target's bonus
            token, unless the answer ended before it.
    """

    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class Piece:
    """The text of one token, or of several tokens that share a character.

    Args:
        text: never empty.
        round: number of the verification pass, from 1; 0 for the token from prefill.
    """

    text: str
    drafted: bool
    round: int


@dataclass(frozen=True)
class PlainRun:
    """Plain decoding of the same prompt by the same target.

    Args:
        e2e: seconds from the call to the last token.
        decode: seconds from the first token to the last.
    """

    e2e: float
    decode: float
    identical: bool


@dataclass(frozen=True)
class Speedup:
    """Seconds of plain decoding / seconds of the traced answer."""

    end_to_end: float
    decoding: float

    @classmethod
    def of(cls, plain: PlainRun | None, stats: Stats) -> Speedup | None:
        """The speedup of an answer; None where plain decoding was not measured."""
        if plain is None or not stats.decode:
            return None
        return cls(end_to_end=plain.e2e / stats.e2e, decoding=plain.decode / stats.decode)


class Answered(Protocol):
    """What every explained answer has; see `Trace`."""

    @property
    def title(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def method(self) -> dict[str, Any]: ...
    @property
    def rounds(self) -> tuple[Round, ...]: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def plain(self) -> PlainRun | None: ...
    @property
    def speedup(self) -> Speedup | None: ...
    @property
    def settings(self) -> dict[str, str]: ...
    @property
    def timelines(self) -> dict[str, Timeline]: ...


@dataclass(frozen=True)
class AnswerTrace:
    """One answer of any method, explained by its rounds."""

    title: str
    prompt: str
    method: dict[str, Any]
    pieces: tuple[Piece, ...]
    rounds: tuple[Round, ...]
    stats: Stats
    plain: PlainRun | None
    settings: dict[str, str]
    notes: tuple[str, ...]
    timelines: dict[str, Timeline] = field(default_factory=dict)

    @property
    def speedup(self) -> Speedup | None:
        return Speedup.of(self.plain, self.stats)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "title": self.title,
            "prompt": self.prompt,
            "method": self.method,
            "pieces": [asdict(piece) for piece in self.pieces],
            "rounds": [asdict(entry) for entry in self.rounds],
            "stats": self.stats.to_dict(),
            "plain": None if self.plain is None else asdict(self.plain),
            "settings": self.settings,
            "notes": list(self.notes),
            "timelines": {name: line.to_dict() for name, line in self.timelines.items()},
        }


@dataclass(frozen=True)
class Trace(AnswerTrace):
    """One explained answer of a method that prunes visual tokens."""

    visual: VisualTokens = field(kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values without the pictures.

        `score` names the scores of the views. `spare` is a list of the number of all tokens without
        a cell and of the kept ones.
        """
        counts = self.visual.counts
        spare = self.visual.spare
        return super().to_dict() | {
            "kept": counts.kept,
            "total": counts.total,
            "spare": [spare.total, spare.kept],
            "score": self.visual.score_name,
            "views": [view.to_dict() for view in self.visual.views],
        }


def trace_answer(
    engine: Engine,
    chat: Conversation,
    title: str,
    *,
    method: Any = None,
    compare: bool = True,
    **options: Any,
) -> AnswerTrace:
    """Answer a prompt and return what explains the answer of any method. With method `auto`, the
    method that the models answer by is traced and a note names it. Method `plain`, which drafts
    nothing, has a timeline of the target alone.

    Raises:
        InputError: the answer ended with its first token.
    """
    resolved = resolve(method)
    notes: tuple[str, ...] = ()
    if name_of(resolved) == AUTO:
        resolved = Automatic().method_for(engine.models)
        notes = (f"Method auto answers by {name_of(resolved)} with these models.",)
    is_plain = name_of(resolved) == PLAIN
    if is_plain:  # which would be compared with itself
        compare = False
        notes += ("Method plain drafts nothing: the timeline is that of the target alone.",)
    inputs = engine.process([chat])
    engine.plan(resolved).wait_until_ready()
    others = _run_others(engine, inputs, resolved, compare, options)
    clock = Clock(Stats(), record=True)
    stream = engine.answer(inputs, method=resolved, clock=clock, **options)
    steps = run_rounds(stream, clock.stats, engine)
    if not steps.rounds:
        raise InputError("the answer ended with its first token, so nothing was drafted")
    plain = others.get(PLAIN)
    timelines = {name: run.timeline for name, run in others.items()}
    timelines[PLAIN if is_plain else _schedule(resolved)] = clock.timeline()
    settings = settings_of(engine, stream, chat)
    return AnswerTrace(
        title=title,
        prompt=prompt_of(chat),
        method=to_dict(resolved),
        pieces=steps.pieces,
        rounds=steps.rounds,
        stats=stream.result.stats,
        plain=None if plain is None else comparison(plain.result, stream.result),
        settings=settings | {"draft": "none"} if is_plain else settings,
        notes=notes,
        timelines=timelines,
    )


def trace(
    engine: Engine,
    chat: Conversation,
    title: str,
    *,
    method: Any = "specvlm",
    compare: bool = True,
    **options: Any,
) -> Trace:
    """Answer a prompt about a clip or pictures and return what explains the answer."""
    pruned = pruning_method(method)
    if not chat.images and not chat.videos:
        raise InputError("there is nothing to explain in a prompt without pictures")
    inputs = engine.process([chat])
    engine.plan(pruned).wait_until_ready()
    pruning = _pruning(pruned)
    readings = _readings_for_heatmap(pruning)
    others = _run_others(engine, inputs, pruned, compare, options, readings)
    choices: list[Choice] = []
    clock = Clock(Stats(), record=True)
    stream = engine.answer(
        inputs,
        method=pruned,
        clock=clock,
        readings=readings,
        observe=choices.append,
        **options,
    )
    steps = run_rounds(stream, clock.stats, engine)
    if not choices:
        raise InputError("the answer ended with its first token, so nothing was drafted")
    visual = _shown(engine, chat, inputs, stream, choices[0])
    result = stream.result
    plain = others.get(PLAIN)
    timelines = {name: run.timeline for name, run in others.items()}
    timelines[_schedule(pruned)] = clock.timeline()
    return Trace(
        title=title,
        prompt=prompt_of(chat),
        method=to_dict(pruned),
        visual=visual,
        pieces=steps.pieces,
        rounds=steps.rounds,
        stats=result.stats,
        plain=None if plain is None else comparison(plain.result, result),
        settings=settings_of(engine, stream, chat),
        notes=_notes(visual, pruning, several=len(choices) > 1),
        timelines=timelines,
    )


def prunes(method: MethodLike) -> bool:
    """Whether the draft of a method reads a part of the visual tokens."""
    return has_option(resolve(method), "prune_ratio")


def pruning_method(method: MethodLike) -> Method:
    resolved = resolve(method)
    if not prunes(resolved):
        raise ConfigError(
            f"explain shows which visual tokens a draft keeps, but method {name_of(resolved)!r} "
            "keeps all of them: use method specvlm, or tabed to see which view was right"
        )
    return resolved


def _pruning(method: Method) -> Pruning:
    pruning: Pruning = method.pruning  # type: ignore[attr-defined]
    return pruning


def _readings_for_heatmap(pruning: Pruning) -> FeatureSpec:
    """The heatmap shows the pruner's own score; attention, even unused, if it has none."""
    return ATTENTION if pruning.pruner.readings.score is None else NO_FEATURES


@dataclass(frozen=True)
class _Run:
    result: Result
    timeline: Timeline


def _run_others(
    engine: Engine,
    inputs: Inputs,
    method: Method,
    compare: bool,
    options: dict[str, Any],
    readings: FeatureSpec = NO_FEATURES,
) -> dict[str, _Run]:
    """The answers that one is compared with; `readings` are those of the method's prefill."""
    others: list[tuple[str, MethodLike, FeatureSpec]] = []
    if compare:
        others.append((PLAIN, PLAIN, NO_FEATURES))
    if _schedule(method) != SERIAL:
        others.append((SERIAL, with_option(method, "schedule", SERIAL), readings))
    if not others:
        return {}
    short = {**options, "max_new_tokens": _WARM_UP_TOKENS}
    for _, other, needed in others:
        engine.answer(inputs, method=other, readings=needed, **short).run()
    engine.answer(inputs, method=method, **short).run()
    runs = {}
    for name, other, needed in others:
        clock = Clock(Stats(), record=True)
        stream = engine.answer(inputs, method=other, clock=clock, readings=needed, **options)
        runs[name] = _Run(stream.run(), clock.timeline())
    return runs


def _schedule(method: Method) -> str:
    name: str = to_dict(method).get("schedule", SERIAL)
    return name


def comparison(plain: Result, traced: Result) -> PlainRun:
    """An answer of plain decoding compared with another answer."""
    return PlainRun(plain.stats.e2e, plain.stats.decode, plain.tokens == traced.tokens)


@dataclass(frozen=True)
class Steps:
    rounds: tuple[Round, ...]
    pieces: tuple[Piece, ...]
    spans: tuple[tuple[int, bool, int], ...]


def run_rounds(stream: Stream, stats: Stats, engine: Engine) -> Steps:
    """Run a stream to its end and record each round; `stats` are those of its clock."""
    rounds = []
    spans = []
    drafted = 0
    for number, chunk in enumerate(stream):
        if number:
            newly_drafted = stats.drafted - drafted
            rounds.append(Round(newly_drafted, sum(chunk.from_draft), len(chunk.tokens)))
        drafted = stats.drafted
        for token, from_draft in zip(chunk.tokens, chunk.from_draft, strict=True):
            spans.append((token, from_draft, number))
    pieces = pieces_of(spans, engine.target.processor.tokenizer)
    return Steps(tuple(rounds), pieces, tuple(spans))


def pieces_of(spans: Sequence[tuple[int, bool, int]], tokenizer: Any) -> tuple[Piece, ...]:
    """Return the text that each token adds to the tokens before it."""
    decoder = TextDecoder(lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    pieces = []
    for index, (token, drafted, number) in enumerate(spans):
        # An incomplete character joins the piece of the token that completes it.
        text = decoder.add([token])
        if index == len(spans) - 1:
            text += decoder.flush()
        if text:
            pieces.append(Piece(text, drafted, number))
    return tuple(pieces)


def _shown(
    engine: Engine, chat: Conversation, inputs: Inputs, stream: Stream, choice: Choice
) -> VisualTokens:
    separate = engine.draft if stream.plan.uses_draft else None
    model_inputs = inputs.target if separate is None or inputs.draft is None else inputs.draft
    return lay_out(choice, chat, model_inputs, (separate or engine.target).processor)


def lay_out(
    choice: Choice, chat: Conversation, inputs: Mapping[str, Any], processor: Any
) -> VisualTokens:
    """Arrange a pruner's choice on the pictures of a prompt."""
    cells = choice.visual.cells.cpu().numpy()
    runs = token_runs(choice)
    views_per_run = [len(np.unique(cells[run, 0])) for run in runs]
    whole = whole_pictures(cells, runs, len(chat.images))
    pictures = locate_pictures(chat, inputs, processor, views_per_run, whole)
    return build_views(choice, pictures)


def prompt_of(chat: Conversation) -> str:
    texts = []
    for message in chat.messages:
        texts += [item["text"] for item in message["content"] if item["type"] == "text"]
    return " ".join(texts)


def settings_of(engine: Engine, stream: Stream, chat: Conversation) -> dict[str, str]:
    draft_name = "the target itself"
    if engine.draft is not None and stream.plan.uses_draft:
        draft_name = engine.draft.name
    backbone = engine.target.backbone
    media = [f"{len(video.frames)} frames of {video.duration:.1f} s" for video in chat.videos]
    media += [f"{image.width} x {image.height} pixels" for image in chat.images]
    return {
        "target": engine.target.name,
        "draft": draft_name,
        "media": ", ".join(media),
        "precision": str(backbone.dtype).removeprefix("torch."),
        "device": str(backbone.device),
        "versions": f"draftlens {__version__}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}",
    }


def _notes(visual: VisualTokens, pruning: Pruning, several: bool) -> tuple[str, ...]:
    """Sentences about what the pictures do not show by themselves."""
    notes = []
    spare = visual.spare
    if spare.total == 1:
        state = "kept" if spare.kept else "pruned"
        notes.append(
            f"1 visual token ends a row or a picture and has no cell of its own; it is {state}."
        )
    elif spare.total:
        notes.append(
            f"{spare.total} visual tokens end rows or pictures and have no cells of their own; "
            f"{spare.kept} of them are kept."
        )
    if several:
        notes.append(
            "Each layer keeps different tokens; the pictures show the tokens that the "
            "sum of the scores over all layers would keep."
        )
    if not pruning.pruner.readings:
        name = PRUNERS.name_of(type(pruning.pruner))
        notes.append(
            f"Pruner {name} does not use attention scores; they were computed for these pictures "
            "only."
        )
    if any(view.image is None for view in visual.views):
        notes.append(
            "Cells without a picture are drawn in the order of the prompt, because their places in "
            "the picture are not known."
        )
    if any(view.aspect != view.source_aspect for view in visual.views):
        notes.append(f"Pictures longer than {MAX_ASPECT:g} to 1 are drawn as {MAX_ASPECT:g} to 1.")
    return tuple(notes)
