"""Who is measured: our methods and the library's own ways, behind one call."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftlens.api import Engine, Inputs
from draftlens.bench.clips import Shown
from draftlens.bench.options import Options
from draftlens.core.errors import ConfigError, InputError, MediaError
from draftlens.core.registry import Registry
from draftlens.core.stats import Clock, Stats
from draftlens.measure.stock import run_stock
from draftlens.methods import METHODS, Method, PlainDecoding, from_dict

REFERENCE = "hf-generate"
"""Always measured: speed is told in multiples of its time, and answers are compared with its
tokens."""

PEERS = Registry(
    "peer",
    {
        "hf-generate": "draftlens.bench.contestants:HfGenerate",
        "hf-assisted": "draftlens.bench.contestants:HfAssisted",
    },
)

COUNTERS = (
    "emitted",
    "first",
    "passes",
    "drafted",
    "accepted",
    "visual",
    "kept",
    "target_forwards",
    "draft_forwards",
)


@dataclass(frozen=True)
class Answer:
    """One whole call.

    Args:
        tokens: new token ids.
        e2e: seconds from before the clip is read to the last token.
        ttft: seconds from the same moment to the first token.
        phases: seconds by phase (`engine.stats.PHASES`); where a library's own loop cannot be
            looked into, fewer.
        prompt_tokens: length of the target's prompt.
        counters: of `Stats`; empty where nothing counts.
        cache_bytes: of both models' keys and values; None where they cannot be seen.
    """

    tokens: list[int]
    e2e: float
    ttft: float
    phases: dict[str, float]
    prompt_tokens: int
    counters: dict[str, int] = field(default_factory=dict)
    cache_bytes: int | None = None


class Way(Protocol):
    """How an answer is made."""

    def settings(self) -> dict[str, Any]:
        """Everything that sets it apart, as JSON values."""
        ...

    def answer(self, engine: Engine, shown: Shown, max_new_tokens: int) -> Answer:
        """Read the clip, process it and answer, greedily.

        Raises:
            MediaError: the clip cannot be read, or a processor refuses it.
            DraftlensError: it does not go with the engine's models.
        """
        ...


@dataclass(frozen=True)
class Contestant:
    """A way with a name.

    Args:
        name: as in the report.
        way: how it answers.
        base: name of the method that it is a variant of.
        varied: the field that makes it one, and its value.
    """

    name: str
    way: Way
    base: str | None = None
    varied: tuple[str, Any] | None = None


@dataclass(frozen=True)
class Ours:
    """A method of draftlens."""

    method: Method

    def settings(self) -> dict[str, Any]:
        """Its name and fields."""
        return {"method": self.method.name, **dataclasses.asdict(self.method)}

    def answer(self, engine: Engine, shown: Shown, max_new_tokens: int) -> Answer:
        """See `Way.answer`. A method that has no use for the draft model does not process its input
        either."""
        if isinstance(self.method, PlainDecoding) or getattr(self.method, "draft", None) == "self":
            engine = Engine(engine.target, None, self.method)
        clock = Clock(Stats())
        with clock.phase("frames"):
            inputs = _read(engine, shown)
        stream = engine.answer(
            inputs, method=self.method, clock=clock, max_new_tokens=max_new_tokens
        )
        stats, session = stream.run().stats, stream.session
        caches = [session.cache, getattr(session.drafter, "cache", None)]
        return Answer(
            tokens=list(session.rows.tokens[0]),
            e2e=stats.e2e,
            ttft=stats.ttft,
            phases=dict(stats.phases),
            prompt_tokens=int(inputs.target["input_ids"].shape[1]),
            counters={name: getattr(stats, name) for name in COUNTERS},
            cache_bytes=sum(cache.nbytes for cache in caches if cache is not None),
        )


@dataclass(frozen=True)
class HfGenerate:
    """The unmodified library's ``model.generate``."""

    def settings(self) -> dict[str, Any]:
        """There is nothing to set."""
        return {"peer": "hf-generate"}

    def answer(self, engine: Engine, shown: Shown, max_new_tokens: int) -> Answer:
        """See `Way.answer`."""
        return _stock(engine, shown, max_new_tokens)


@dataclass(frozen=True)
class HfAssisted:
    """The library's assisted generation: ``model.generate(assistant_model=draft)``.

    Its knobs live in the draft's generation config; None leaves the library's default.

    Args:
        num_assistant_tokens: guesses a round.
        num_assistant_tokens_schedule: `constant`, `heuristic` or `heuristic_transient`.
        assistant_confidence_threshold: below this probability the draft stops guessing; 0 turns
            that off.
    """

    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None

    def settings(self) -> dict[str, Any]:
        """What is not left to the library."""
        chosen = {name: value for name, value in vars(self).items() if value is not None}
        return {"peer": "hf-assisted", **chosen}

    def answer(self, engine: Engine, shown: Shown, max_new_tokens: int) -> Answer:
        """See `Way.answer`.

        Raises:
            ConfigError: there is no draft model.
        """
        if engine.draft is None:
            raise ConfigError("hf-assisted needs a draft model")
        draft = engine.draft.backbone.model
        chosen = {name: value for name, value in vars(self).items() if value is not None}
        before = {name: getattr(draft.generation_config, name) for name in chosen}
        draft.generation_config.update(**chosen)
        try:
            return _stock(engine, shown, max_new_tokens, assistant=draft)
        finally:
            draft.generation_config.update(**before)


def _read(engine: Engine, shown: Shown) -> Inputs:
    """What the processors make of the clip.

    Raises:
        MediaError: it cannot be read, or one of them refuses it: no matter which method asked.
    """
    try:
        return engine.process([shown()])
    except InputError as error:
        raise MediaError(str(error)) from error


def _stock(engine: Engine, shown: Shown, max_new_tokens: int, assistant: Any = None) -> Answer:
    """A call of the library, with the same reading of the clip as ours; its vision counts as
    prefill."""
    start = time.perf_counter()
    inputs = _read(Engine(engine.target, None, PlainDecoding()), shown).target
    read = time.perf_counter() - start
    run = run_stock(
        engine.target.backbone,
        inputs,
        assistant=assistant,
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
    e2e = time.perf_counter() - start
    ttft = e2e - run.decode
    phases = {"frames": read, "target_prefill": ttft - read, "verify": run.decode}
    return Answer(run.tokens[0], e2e, ttft, phases, int(inputs["input_ids"].shape[1]))


def line_up(options: Options) -> list[Contestant]:
    """Everybody that the options name, the reference first, and the variants that a sweep or
    contexts ask for.

    Raises:
        ConfigError: a name is not known or comes twice, or nobody has the field that is to be
            swept.
    """
    peers = [REFERENCE, *(name for name in options.peers if name != REFERENCE)]
    named: list[tuple[str, Mapping[str, Any]]] = [(name, {"peer": name}) for name in peers]
    named += [(name, {"method": name}) for name in options.methods]
    named += list(options.extra.items())
    twice = sorted({name for name, _ in named if sum(other == name for other, _ in named) > 1})
    if twice:
        raise ConfigError(
            f"{', '.join(map(repr, twice))} is named twice: give each method a name of its own"
        )
    chosen = [Contestant(name, _way(name, settings)) for name, settings in named]
    for field_name, values in options.sweep.items():
        chosen = spread_out(chosen, field_name, values)
    if options.context and any(_has(one, "prune_ratio") for one in chosen):
        chosen = spread_out(chosen, "prune_ratio", [0.0])
    return chosen


def spread_out(
    chosen: Sequence[Contestant], field_name: str, values: Sequence[Any]
) -> list[Contestant]:
    """The same, and behind all, one variant for each method that has the field and each value.

    What is there already, under whatever name, is not put in again: `report.swept` finds it.

    Raises:
        ConfigError: no method has the field, or a value makes no sense.
    """
    able = [one for one in chosen if _has(one, field_name) and one.base is None]
    if not able:
        raise ConfigError(f"no method in this run has a {field_name!r} to sweep")
    found = list(chosen)
    for one, value in itertools.product(able, values):
        assert isinstance(one.way, Ours)
        method = dataclasses.replace(one.way.method, **{field_name: value})
        if all(other.way != Ours(method) for other in found):
            found.append(
                Contestant(
                    f"{one.name} {field_name}={value}", Ours(method), one.name, (field_name, value)
                )
            )
    return found


def _has(one: Contestant, field_name: str) -> bool:
    return isinstance(one.way, Ours) and any(
        f.name == field_name for f in dataclasses.fields(one.way.method)
    )


def _way(name: str, settings: Mapping[str, Any]) -> Way:
    """The way that these settings describe.

    Raises:
        ConfigError: they are no settings, or name something unknown.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"the settings of {name!r} must be an object, not {settings!r}")
    if "peer" not in settings:
        if settings.get("method") in PEERS and settings.get("method") not in METHODS:
            raise ConfigError(f"{settings['method']!r} is a peer, not a method")
        return Ours(from_dict(settings))
    fields = dict(settings)
    kind = PEERS[fields.pop("peer")]
    known = [f.name for f in dataclasses.fields(kind)]
    unknown = sorted(set(fields) - set(known))
    if unknown:
        known_names = ", ".join(known) or "none"
        raise ConfigError(
            f"peer of {name!r} does not know {', '.join(map(repr, unknown))}; known: {known_names}"
        )
    way: Way = kind(**fields)
    return way
