"""Contestants of a benchmark: our methods and the library's own generation behind one interface."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from draftlens.core.errors import ConfigError, InputError, MediaError
from draftlens.core.options import Registry, build, describe
from draftlens.core.stats import Clock, Stats
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.methods.base import (
    METHODS,
    Method,
    PlainDecoding,
    from_dict,
    has_option,
    to_dict,
    with_option,
)
from draftlens.verify import assistant_settings, run_stock
from draftlens_lab.bench.clips import Reader
from draftlens_lab.bench.lossy import DROPPINGS, Dropping, accepted_tokens, answer_lossily
from draftlens_lab.bench.options import BenchOptions

REFERENCE = "hf-generate"
"""The peer that is always measured: speedups are relative to its time, and answers are compared
with its tokens."""

PEERS = Registry(
    "peer",
    {
        "hf-generate": "draftlens_lab.bench.contestants:HfGenerate",
        "hf-assisted": "draftlens_lab.bench.contestants:HfAssisted",
        **{entry.name: entry.location for entry in DROPPINGS.entries()},
    },
)
"""The library's own ways of generating, and the lossy peers (`draftlens_lab.bench.lossy`)."""

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
    "corrections",
)
"""Counters of `Stats` that are stored."""


@dataclass(frozen=True)
class TimedAnswer:
    """One whole call.

    Args:
        e2e: seconds from before the clip is read to the last token.
        ttft: seconds from the same moment to the first token.
        phases: seconds by phase (`draftlens.core.stats.PHASES`); fewer phases for the library's own
            generation: its loop cannot be timed from outside.
        counters: `COUNTERS` by name; empty for the library's own generation.
        views: `ViewStats` as numbers, by the name of the view; empty unless the draft reads the
            prompt in several views.
        cache_bytes: bytes of both models' keys and values; None if they are not accessible.
        workers: ids of other processes that took part (`Plan.processes`); they are not stored.
        accept_lengths: tokens that each verification pass emitted, bonus token included; empty if
            unknown.
    """

    tokens: list[int]
    e2e: float
    ttft: float
    phases: dict[str, float]
    prompt_tokens: int
    counters: dict[str, int] = field(default_factory=dict)
    cache_bytes: int | None = None
    workers: tuple[int, ...] = ()
    views: dict[str, dict[str, float]] = field(default_factory=dict)
    accept_lengths: list[int] = field(default_factory=list)


class Way(Protocol):
    """A way of generating an answer."""

    @property
    def method(self) -> Method | None:
        """The method of draftlens for sweeps of its options; None for other ways."""
        ...

    def settings(self) -> dict[str, Any]:
        """All settings as JSON values; different ways have different settings."""
        ...

    def answer(self, engine: Engine, read_clip: Reader, max_new_tokens: int) -> TimedAnswer:
        """Read the clip, process it and answer greedily."""
        ...

    def accepted(self, engine: Engine, read_clip: Reader, tokens: Sequence[int]) -> int | None:
        """How many tokens of an answer the full target accepts (`lossy.accepted_tokens`), for the
        metric A; None if the way is lossless, so that it accepts all. Called outside of
        measurements."""
        ...


@dataclass(frozen=True)
class Contestant:
    """A way of generating with its name.

    Args:
        base: name of the method that this one is a variant of; None if it is no variant.
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
        return to_dict(self.method)

    def answer(self, engine: Engine, read_clip: Reader, max_new_tokens: int) -> TimedAnswer:
        """See `Way.answer`. A method that does not use the draft model is measured without
        processing its input."""
        plan = engine.plan(self.method)
        plan.wait_until_ready()
        if not plan.uses_draft:
            engine = Engine(engine.target, None, self.method)
        clock = Clock(Stats())
        with clock.phase("frames"):
            inputs = _read(engine, read_clip)
        stream = engine.answer(
            inputs, method=self.method, clock=clock, max_new_tokens=max_new_tokens
        )
        result = stream.run()
        stats = result.stats
        return TimedAnswer(
            tokens=result.tokens[0],
            e2e=stats.e2e,
            ttft=stats.ttft,
            phases=dict(stats.phases),
            prompt_tokens=int(inputs.target["input_ids"].shape[1]),
            counters={name: getattr(stats, name) for name in COUNTERS},
            cache_bytes=stats.target_cache_bytes + stats.draft_cache_bytes,
            workers=tuple(stream.plan.processes()),
            views={name: dict(vars(view)) for name, view in stats.views.items()},
            accept_lengths=accept_lengths(result.from_draft[0], stats.passes),
        )

    def accepted(self, engine: Engine, read_clip: Reader, tokens: Sequence[int]) -> int | None:
        """See `Way.accepted`. Only a method that approximates something on the target's side is
        lossy."""
        if not engine.plan(self.method).approximate:
            return None
        return _count_accepted(engine, read_clip, tokens)


@dataclass(frozen=True)
class HfGenerate:
    """The unmodified library's ``model.generate``."""

    method: ClassVar[None] = None

    def settings(self) -> dict[str, Any]:
        return {"peer": "hf-generate"}

    def answer(self, engine: Engine, read_clip: Reader, max_new_tokens: int) -> TimedAnswer:
        return _stock_answer(engine, read_clip, max_new_tokens)

    def accepted(self, engine: Engine, read_clip: Reader, tokens: Sequence[int]) -> int | None:
        return None


@dataclass(frozen=True)
class HfAssisted:
    """The library's assisted generation: ``model.generate(assistant_model=draft)``.

    The options are fields of the draft's generation config; None keeps the config's value.

    Args:
        num_assistant_tokens: draft tokens per round.
        assistant_confidence_threshold: the draft stops drafting below this probability; 0 disables
            this rule.
    """

    method: ClassVar[None] = None

    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None

    def settings(self) -> dict[str, Any]:
        """The name and the options that differ from None."""
        return {"peer": "hf-assisted", **self._options()}

    def answer(self, engine: Engine, read_clip: Reader, max_new_tokens: int) -> TimedAnswer:
        if engine.draft is None:
            raise ConfigError("hf-assisted needs a draft model")
        draft = engine.draft.backbone.model
        with assistant_settings(draft, self._options()):
            return _stock_answer(engine, read_clip, max_new_tokens, assistant=draft)

    def accepted(self, engine: Engine, read_clip: Reader, tokens: Sequence[int]) -> int | None:
        """See `Way.accepted`: assisted generation is lossless."""
        return None

    def _options(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Lossy:
    """A published method that drops visual tokens of the target, which may change the answer."""

    dropping: Dropping

    method: ClassVar[None] = None

    def settings(self) -> dict[str, Any]:
        """Name and fields of what is dropped."""
        options = describe(DROPPINGS, self.dropping)
        return {"peer": options.pop("name"), **options}

    def answer(self, engine: Engine, read_clip: Reader, max_new_tokens: int) -> TimedAnswer:
        """See `Way.answer`. Of the counters there are `visual`, the visual tokens counted once for
        each layer, and `kept`, those that the last step reads."""
        engine = _target_alone(engine)
        backbone = engine.target.backbone
        clock = Clock(Stats())
        with clock.phase("frames"):
            inputs = _read(engine, read_clip).target
        with clock.phase("vision"):
            prepared = backbone.prepare(inputs, max_new_tokens=max_new_tokens, do_sample=False)
            prompt = backbone.encode(prepared)
        answer = answer_lossily(backbone, prepared, prompt, self.dropping, clock)
        return TimedAnswer(
            tokens=answer.tokens,
            e2e=clock.stats.e2e,
            ttft=clock.stats.ttft,
            phases=dict(clock.stats.phases),
            prompt_tokens=int(inputs["input_ids"].shape[1]),
            counters={"visual": answer.visual, "kept": answer.kept},
            cache_bytes=answer.cache_bytes,
        )

    def accepted(self, engine: Engine, read_clip: Reader, tokens: Sequence[int]) -> int | None:
        return _count_accepted(engine, read_clip, tokens)


def accept_lengths(from_draft: Sequence[bool], passes: int) -> list[int]:
    """Tokens of each verification pass: its draft tokens and the target's own token after them,
    with which a pass ends unless the answer does. The first token of the answer is no pass's.

    Empty if the passes do not end so, as with a draft that runs in parallel.
    """
    lengths: list[int] = []
    is_open = False
    for supplied in from_draft[1:]:
        if is_open:
            lengths[-1] += 1
        else:
            lengths.append(1)
        is_open = supplied
    return lengths if len(lengths) == passes else []


def _target_alone(engine: Engine) -> Engine:
    """The engine without its draft, so that its input need not be processed."""
    return Engine(engine.target, None, PlainDecoding())


def _count_accepted(engine: Engine, read_clip: Reader, tokens: Sequence[int]) -> int:
    engine = _target_alone(engine)
    backbone = engine.target.backbone
    inputs = _read(engine, read_clip).target
    prepared = backbone.prepare(inputs, max_new_tokens=max(1, len(tokens)), do_sample=False)
    return sum(accepted_tokens(backbone, prepared, backbone.encode(prepared), tokens))


def _read(engine: Engine, read_clip: Reader) -> Inputs:
    try:
        return engine.process([read_clip()])
    except InputError as error:
        raise MediaError(str(error)) from error


def _stock_answer(
    engine: Engine, read_clip: Reader, max_new_tokens: int, assistant: Any = None
) -> TimedAnswer:
    start = time.perf_counter()
    inputs = _read(_target_alone(engine), read_clip).target
    reading = time.perf_counter() - start
    run = run_stock(
        engine.target.backbone,
        inputs,
        assistant=assistant,
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
    e2e = time.perf_counter() - start
    ttft = e2e - run.decode
    phases = {"frames": reading, "target_prefill": ttft - reading, "verify": run.decode}
    return TimedAnswer(run.tokens[0], e2e, ttft, phases, int(inputs["input_ids"].shape[1]))


def line_up(options: BenchOptions) -> list[Contestant]:
    """All contestants that the options name, the reference first, and their variants for sweeps and
    contexts."""
    peers = [REFERENCE, *(name for name in options.peers if name != REFERENCE)]
    _check_unique([*peers, *options.methods, *options.extra])
    settings_by_name: dict[str, Mapping[str, Any]] = {name: {"peer": name} for name in peers}
    settings_by_name |= {name: {"method": name} for name in options.methods}
    settings_by_name |= options.extra
    contestants = [
        Contestant(name, _way(name, settings)) for name, settings in settings_by_name.items()
    ]
    for field_name, values in options.sweep.items():
        contestants = spread_out(contestants, field_name, values)
    if options.context and any(_has_field(contestant, "prune_ratio") for contestant in contestants):
        contestants = spread_out(contestants, "prune_ratio", [0.0])
    return contestants


def spread_out(
    contestants: Sequence[Contestant], field_name: str, values: Sequence[Any]
) -> list[Contestant]:
    """Append a variant for each value of a field and each method that has the field.

    A variant that equals another contestant is not added: `report.swept` finds that one, whatever
    its name is.
    """
    methods = [
        contestant
        for contestant in contestants
        if _has_field(contestant, field_name) and contestant.base is None
    ]
    if not methods:
        raise ConfigError(f"no method in this run has a {field_name!r} to sweep")
    result = list(contestants)
    for contestant, value in itertools.product(methods, values):
        assert contestant.way.method is not None
        way = Ours(with_option(contestant.way.method, field_name, value))
        if all(existing.way != way for existing in result):
            name = f"{contestant.name} {field_name}={value}"
            result.append(Contestant(name, way, contestant.name, (field_name, value)))
    return result


def _check_unique(names: Sequence[str]) -> None:
    counts = Counter(names)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ConfigError(
            f"{', '.join(map(repr, repeated))} is named twice: give each method a name of its own"
        )


def _has_field(contestant: Contestant, field_name: str) -> bool:
    method = contestant.way.method
    return method is not None and has_option(method, field_name)


def _way(name: str, settings: Mapping[str, Any]) -> Way:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"the settings of {name!r} must be an object, not {settings!r}")
    if "peer" in settings:
        return _peer(settings)
    method = settings.get("method")
    if method in PEERS and method not in METHODS:
        raise ConfigError(f"{method!r} is a peer, not a method")
    return Ours(from_dict(settings))


def _peer(settings: Mapping[str, Any]) -> Way:
    name = settings["peer"]
    options = {key: value for key, value in settings.items() if key != "peer"}
    if name in DROPPINGS:
        return Lossy(build(DROPPINGS, name, options))
    way: Way = build(PEERS, name, options)
    return way
