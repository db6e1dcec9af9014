"""One answer with everything that explains it: what the draft was shown, what it guessed, what
became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from draftlens import __version__
from draftlens.api import Engine, Inputs, Stream
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.result import Result
from draftlens.core.stats import Stats
from draftlens.draft.pruned import Choice
from draftlens.draft.self_draft import SelfDrafter
from draftlens.draft.small_model import SmallModelDrafter
from draftlens.explain.pictures import pictures
from draftlens.explain.views import LONGEST, Shown, runs_of, show, wholes_of
from draftlens.media.conversation import Conversation
from draftlens.methods import SpecVLM, resolve
from draftlens.prune import make_pruner


@dataclass(frozen=True)
class Round:
    """One verification pass of the target.

    Args:
        drafted: guesses that were checked.
        accepted: guesses that were right and used.
        emitted: tokens gained; one more than accepted (the target's own), unless the answer ended
            before it.
    """

    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class Piece:
    """The text of one token, or of several that share a character.

    Args:
        text: never empty.
        drafted: whether the draft supplied it.
        round: which pass checked it, from 1; 0 for what prefill itself yielded.
    """

    text: str
    drafted: bool
    round: int


@dataclass(frozen=True)
class Plain:
    """Plain decoding of the same prompt by the same target in the same run.

    Args:
        e2e: its seconds from the call to the last token.
        decode: its seconds from the first token to the last.
        identical: whether it gave the same tokens.
    """

    e2e: float
    decode: float
    identical: bool


@dataclass(frozen=True)
class Trace:
    """One explained answer.

    Args:
        title: name of the clip or pictures.
        prompt: what was asked.
        method: how it was decoded.
        shown: the draft's visual tokens.
        pieces: the answer.
        rounds: in order.
        stats: counters and times.
        plain: what plain decoding took, if it was measured.
        settings: everything else that was chosen, by name.
        notes: sentences that whoever looks at the pictures should know.
    """

    title: str
    prompt: str
    method: SpecVLM
    shown: Shown
    pieces: tuple[Piece, ...]
    rounds: tuple[Round, ...]
    stats: Stats
    plain: Plain | None
    settings: dict[str, str]
    notes: tuple[str, ...]

    @property
    def speedup(self) -> tuple[float, float] | None:
        """Plain seconds / ours, end to end and of decoding alone; None where plain decoding was not
        measured."""
        if self.plain is None or not self.stats.decode:
            return None
        return self.plain.e2e / self.stats.e2e, self.plain.decode / self.stats.decode

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, pictures left out."""
        kept, total = self.shown.counts
        return {
            "title": self.title,
            "prompt": self.prompt,
            "method": {"method": self.method.name, **asdict(self.method)},
            "kept": kept,
            "total": total,
            "spare": list(self.shown.spare),
            "views": [view.to_dict() for view in self.shown.views],
            "pieces": [asdict(piece) for piece in self.pieces],
            "rounds": [asdict(one) for one in self.rounds],
            "stats": self.stats.to_dict(),
            "plain": None if self.plain is None else asdict(self.plain),
            "settings": self.settings,
            "notes": list(self.notes),
        }


def trace(
    engine: Engine,
    chat: Conversation,
    title: str,
    *,
    method: Any = "specvlm",
    compare: bool = True,
    **options: Any,
) -> Trace:
    """Answer a prompt about a clip or pictures and keep what explains the answer.

    Args:
        engine: the pair.
        chat: one prompt, its media read.
        title: name of the media.
        method: `specvlm`, or a dict or dataclass of its options.
        compare: whether plain decoding is measured too.
        options: as for `Engine.answer`.

    Raises:
        ConfigError: another method, which leaves nothing out.
        InputError: the prompt shows nothing, or the answer ended before anything was drafted.
    """
    chosen = pruning_method(method)
    if not chat.images and not chat.videos:
        raise InputError("there is nothing to explain in a prompt without pictures")
    inputs = engine.process([chat])
    plain = _plain(engine, inputs, chosen, options) if compare else None
    stream = engine.answer(inputs, method=chosen, **options)
    choices = watch(stream)
    rounds, pieces = _follow(stream, engine)
    if not choices:
        raise InputError("the answer ended with its first token, so nothing was drafted")
    shown = _shown(engine, chat, inputs, stream, choices[0])
    return Trace(
        title=title,
        prompt=_prompt(chat),
        method=chosen,
        shown=shown,
        pieces=pieces,
        rounds=rounds,
        stats=stream.session.stats,
        plain=None if plain is None else _beside(plain, stream.result),
        settings=_settings(engine, stream, chat),
        notes=_notes(shown, chosen, several=len(choices) > 1),
    )


def watch(stream: Stream) -> list[Choice]:
    """The choices that the stream's drafter will have made once it has begun, and the target's
    attention with them.

    Raises:
        ConfigError: its drafter chooses nothing.
    """
    drafter = stream.session.drafter
    if not isinstance(drafter, SmallModelDrafter) or drafter.pruning is None:
        raise ConfigError(
            "explain shows what a draft kept, and this one leaves nothing out: use method specvlm"
        )
    choices: list[Choice] = []
    drafter.pruning = replace(drafter.pruning, observer=choices.append)
    drafter.needs_scores = (
        True  # also for a pruner that goes by something else: whoever looks wants to compare
    )
    return choices


def pruning_method(method: Any) -> SpecVLM:
    """The method that a name, a dict or a dataclass means.

    Raises:
        ConfigError: it leaves nothing out, or there is no such method.
    """
    chosen = resolve(method, has_draft=True)
    if not isinstance(chosen, SpecVLM):
        raise ConfigError(
            f"explain shows what a draft kept, and method {chosen.name!r} leaves nothing out: "
            f"use specvlm"
        )
    return chosen


def _plain(engine: Engine, inputs: Inputs, method: SpecVLM, options: dict[str, Any]) -> Result:
    """Plain decoding, after the lazy initialisation that neither side should pay for."""
    for warm in ("plain", method):
        engine.answer(inputs, method=warm, **{**options, "max_new_tokens": 12}).run()
    return engine.answer(inputs, method="plain", **options).run()


def _beside(plain: Result, ours: Result) -> Plain:
    return Plain(plain.stats.e2e, plain.stats.decode, plain.tokens == ours.tokens)


def _follow(stream: Stream, engine: Engine) -> tuple[tuple[Round, ...], tuple[Piece, ...]]:
    """Run the stream; what each of its rounds did and said."""
    stats, rounds, spans = stream.session.stats, [], []
    drafted = 0
    for number, chunk in enumerate(stream):
        if number:
            rounds.append(Round(stats.drafted - drafted, sum(chunk.from_draft), len(chunk.tokens)))
        drafted = stats.drafted
        spans += [
            (token, supplied, number)
            for token, supplied in zip(chunk.tokens, chunk.from_draft, strict=True)
        ]
    return tuple(rounds), pieces_of(spans, engine.target.processor.tokenizer)


def pieces_of(spans: Sequence[tuple[int, bool, int]], tokenizer: Any) -> tuple[Piece, ...]:
    """The text that each token adds to those before it.

    Args:
        spans: id, whether the draft supplied it, and round of each token.
        tokenizer: decodes.
    """
    ids, told, pieces = [token for token, _, _ in spans], 0, []
    for count, (_, drafted, number) in enumerate(spans, 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=True)
        # A character that is not whole yet is told with the token that completes it.
        if len(text) > told and (
            count == len(ids) or not text.endswith("\N{REPLACEMENT CHARACTER}")
        ):
            pieces.append(Piece(text[told:], drafted, number))
            told = len(text)
    return tuple(pieces)


def _shown(
    engine: Engine, chat: Conversation, inputs: Inputs, stream: Stream, choice: Choice
) -> Shown:
    """The draft's visual tokens on the pictures that its own processor made."""
    own = None if isinstance(stream.session.drafter, SelfDrafter) else engine.draft
    seen = inputs.target if own is None or inputs.draft is None else inputs.draft
    return lay_out(choice, chat, seen, (own or engine.target).processor)


def lay_out(choice: Choice, chat: Conversation, inputs: Mapping[str, Any], processor: Any) -> Shown:
    """What was chosen of a prompt, on its pictures.

    Args:
        choice: of the draft's visual tokens.
        chat: the prompt's media.
        inputs, processor: of the model that drafts.
    """
    cells, runs = choice.visual.cells.cpu().numpy(), runs_of(choice)
    times = [len(np.unique(cells[run, 0])) for run in runs]
    return show(
        choice, pictures(chat, inputs, processor, times, wholes_of(cells, runs, len(chat.images)))
    )


def _prompt(chat: Conversation) -> str:
    return " ".join(
        item["text"]
        for message in chat.messages
        for item in message["content"]
        if item["type"] == "text"
    )


def _settings(engine: Engine, stream: Stream, chat: Conversation) -> dict[str, str]:
    """What was chosen besides the method."""
    itself = engine.draft is None or isinstance(stream.session.drafter, SelfDrafter)
    backbone = engine.target.backbone
    media = [f"{len(video.frames)} frames of {video.duration:.1f} s" for video in chat.videos]
    return {
        "target": engine.target.name,
        "draft": "the target itself" if itself or engine.draft is None else engine.draft.name,
        "media": ", ".join(
            [*media, *(f"{image.width} x {image.height} pixels" for image in chat.images)]
        ),
        "precision": str(backbone.dtype).removeprefix("torch."),
        "device": str(backbone.device),
        "versions": f"draftlens {__version__}, torch {torch.__version__}, transformers "
        "{transformers.__version__}",
    }


def _notes(shown: Shown, method: SpecVLM, several: bool) -> tuple[str, ...]:
    """What the pictures do not say by themselves."""
    notes = []
    spare, kept = shown.spare
    if spare == 1:
        notes.append(
            f"1 visual token ends a row or a picture and has no cell of its own: "
            f"{'kept' if kept else 'left out'}."
        )
    elif spare:
        notes.append(
            f"{spare} visual tokens end rows or pictures and have no cells of their own: {kept} "
            f"kept."
        )
    if several:
        notes.append(
            "Every layer keeps other tokens (kv sparse): shown is what the sum over layers "
            "would keep."
        )
    if not make_pruner(method.pruner, asdict(method)).needs_scores:
        notes.append(
            f"Pruner {method.pruner} does not go by attention: it was read for these pictures only."
        )
    if any(view.image is None for view in shown.views):
        notes.append(
            "Cells without a picture stand in the order of the prompt: their places are not known."
        )
    if any(view.aspect != view.own_aspect for view in shown.views):
        notes.append(
            f"What is longer than {LONGEST:g} to 1 is drawn as if it were {LONGEST:g} to 1."
        )
    return tuple(notes)
