"""Conversations about a clip: turns that read only what is new, beside stock `generate`, which
reads the whole conversation in each turn.

    python benchmarks/turns.py --out benchmarks/results/turns [--parts turns,second,delay,memory]

`turns` asks five questions about a clip and takes the CPU time of each turn end to end: processor,
vision, prefill and decoding, all on one thread. Other programs change it less than wall time.
`second` takes that of the first token of the second turn, with hidden states for pruner `uv` and
with prefill `spava`, beside a reading of the whole conversation without a cache.
`delay` lets a long prompt join a row that is running, and takes the longest time between two rounds
of that row, with the prompt read in parts and at once. `memory` holds 1,000 conversations under a
bound and counts what is really kept. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import psutil
import torch
from draftlens_lab.evaluate.answers import dialogue
from draftlens_lab.world import HELD_OUT
from draftlens_lab.world.samples import Sample, draw
from shared import (
    Benchmark,
    Report,
    assisted_answerer,
    backbones,
    medians,
    range_line,
    ratios,
    rotated,
    table,
)

import draftlens
from draftlens.chat import Chat
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, session, step
from draftlens.engine import Engine
from draftlens.media.conversation import Conversation
from draftlens.models.prompt_cache import PromptCache

SIDE = 64
QUESTIONS = (
    "Describe the video.",
    "What is at the top left?",
    "Which word is shown last?",
    "How many shots are there?",
    "Describe the video.",
)
BOUND = 256 * 2**20
UV = {"method": "specvlm", "pruner": "uv"}
READINGS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "specvlm with uv": {"method": UV},
    "plain, spava": {"method": "plain", "prefill": "spava"},
    "specvlm with uv, spava": {"method": UV, "prefill": "spava"},
    "default, spava": {"prefill": "spava"},
}
"""Ways to read a second turn; the tokens of each are those of `plain` with the same prefill."""

WAYS = ("stock generate", "stock assisted", "plain", "default", "chat, plain", "chat, default")


@dataclass(frozen=True)
class Turn:
    """One answer: seconds to its first token, None if that was not noted, and to its last."""

    first: float | None
    whole: float
    tokens: list[int]
    cached: int = 0


Asker = Callable[[Conversation], Turn]


def reel(frames: int, seed: int = 0) -> Sample:
    return draw("focus", HELD_OUT + seed, frames)


def asked(so_far: Conversation, answer: str | None, question: str) -> Conversation:
    """The conversation with an answer and a further question."""
    messages = list(so_far.messages)
    content: list[dict[str, Any]] = [{"type": "text", "text": question}]
    if answer is None:
        content = [{"type": "video"}, *content]
    else:
        words = [{"type": "text", "text": answer}]
        messages.append({"role": "assistant", "content": words})
    return replace(so_far, messages=[*messages, {"role": "user", "content": content}])


class FirstToken:
    """A streamer of transformers that notes when the first token came."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.is_prompt = True

    def put(self, value: Any) -> None:
        if self.is_prompt:
            self.is_prompt = False
        elif self.at is None:
            self.at = time.process_time()

    def end(self) -> None: ...


def askers(engine: Engine, options: Mapping[str, Any]) -> dict[str, Asker]:
    """The ways that read the whole conversation in each turn."""
    target, draft = backbones(engine)
    assisted = assisted_answerer(target, draft, {})

    def stock(conversation: Conversation) -> Turn:
        began = time.process_time()
        inputs = dict(engine.process([conversation]).target)
        first = FirstToken()
        with torch.no_grad():
            output = target.model.generate(**inputs, **options, streamer=first)
        ended = time.process_time()
        tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
        assert first.at is not None
        return Turn(first.at - began, ended - began, tokens)

    def stock_assisted(conversation: Conversation) -> Turn:
        began = time.process_time()
        run = assisted(engine.process([conversation]), dict(options))
        ended = time.process_time()
        return Turn(None, ended - began, run["tokens"][0])

    def whole(method: Any) -> Asker:
        def ask(conversation: Conversation) -> Turn:
            began = time.process_time()
            inputs = engine.process([conversation])
            return turn_of(engine.answer(inputs, method=method, **options), began)

        return ask

    return {
        "stock generate": stock,
        "stock assisted": stock_assisted,
        "plain": whole("plain"),
        "default": whole(None),
    }


def turn_of(stream: draftlens.Stream, began: float) -> Turn:
    next(stream)
    first = time.process_time() - began
    result = stream.run()
    whole = time.process_time() - began
    return Turn(first, whole, result.tokens[0], result.stats.cached_tokens)


def measure_turns(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each turn by way, question and repeat; tokens are compared with stock's."""
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    sample = reel(args.frames)
    video = dialogue(sample, args.frames, SIDE).videos
    ways = askers(engine, options)
    seconds: dict[str, Any] = {way: {"first": [], "whole": []} for way in WAYS}
    cached: list[int] = []
    for repeat in range(-1, args.repeats):
        answers: dict[str, list[list[int]]] = {}
        for way in rotated(list(WAYS), repeat):
            try:
                turns = list(talk(engine, ways, way, video, options))
            except Exception as error:
                if way != "stock assisted":
                    raise
                seconds[way]["failed"] = f"{type(error).__name__}: {error}"
                continue
            answers[way] = [turn.tokens for turn in turns]
            cached = [turn.cached for turn in turns] if way == "chat, default" else cached
            if repeat >= 0:
                seconds[way]["first"].append([turn.first for turn in turns])
                seconds[way]["whole"].append([turn.whole for turn in turns])
        for way, tokens in answers.items():
            assert tokens == answers["stock generate"], way
    prompt = engine.process([asked(Conversation(videos=video), None, QUESTIONS[0])])
    return {
        "seconds": seconds,
        "cached": cached,
        "prompt": prompt.target["input_ids"].shape[1],
        "answers": [len(row) for row in answers["stock generate"]],
    }


def talk(
    engine: Engine,
    ways: Mapping[str, Asker],
    way: str,
    videos: Sequence[Any],
    options: Mapping[str, Any],
) -> Iterator[Turn]:
    """The turns of a new conversation in one way."""
    if way.startswith("chat"):
        engine.attach(PromptCache("2GB"))
        chat = engine.chat(video=videos[0])
        method = "plain" if "plain" in way else None
        for question in QUESTIONS:
            began = time.process_time()
            yield turn_of(chat.stream(question, method=method, **options), began)
        return
    conversation = Conversation(videos=list(videos))
    answer = None
    for question in QUESTIONS:
        conversation = asked(conversation, answer, question)
        turn = ways[way](conversation)
        answer = engine.text_decoder(turn.tokens)
        yield turn


def measure_second(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds to the first token of the second turn with and without a cache, by way and repeat,
    and the tokens that are read."""
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    video = dialogue(reel(args.frames), args.frames, SIDE).videos[0]
    cases = [(way, keeps) for way in READINGS for keeps in (True, False)]
    found: dict[str, Any] = {way: {"with": [], "without": []} for way in READINGS}
    for repeat in range(-1, args.repeats):
        answers: dict[tuple[str, bool], list[list[int]]] = {}
        for way, keeps in rotated(cases, repeat):
            ask = in_chat if keeps else anew
            turns = list(ask(engine, video, {**options, **READINGS[way]}))
            answers[way, keeps] = [turn.tokens for turn in turns]
            if repeat >= 0:
                found[way]["with" if keeps else "without"].append(turns[1].first)
            if keeps:
                found[way]["cached"] = turns[1].cached
        for (way, keeps), tokens in answers.items():
            prefill = READINGS[way].get("prefill")
            assert tokens == answers[f"plain, {prefill}" if prefill else "plain", keeps], way
            found[way]["as without"] = answers[way, True] == answers[way, False]
    first = asked(Conversation(videos=[video]), None, QUESTIONS[0])
    said = engine.text_decoder(answers["plain", True][0])
    second = engine.process([asked(first, said, QUESTIONS[1])])
    return {"ways": found, "prompt": second.target["input_ids"].shape[1]}


def in_chat(engine: Engine, video: Any, options: Mapping[str, Any]) -> Iterator[Turn]:
    """Two turns, of which the second finds what a cache has of the first."""
    engine.attach(PromptCache("2GB"))
    chat = engine.chat(video=video)
    for question in QUESTIONS[:2]:
        began = time.process_time()
        yield turn_of(chat.stream(question, **options), began)


def anew(engine: Engine, video: Any, options: Mapping[str, Any]) -> Iterator[Turn]:
    """The same two turns, each of which reads the whole conversation."""
    conversation = Conversation(videos=[video])
    answer = None
    for question in QUESTIONS[:2]:
        conversation = asked(conversation, answer, question)
        began = time.process_time()
        turn = turn_of(engine.answer(engine.process([conversation]), **options), began)
        answer = engine.text_decoder(turn.tokens)
        yield turn


def measure_delay(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """The longest times between two rounds of a running row, while a long prompt joins."""
    long = engine.process([dialogue(reel(args.frames, 1), args.long_frames, SIDE)])
    short = engine.process([dialogue(reel(args.frames, 2), 8, SIDE)])
    target, plan = engine.target.backbone, engine.plan("plain")
    gaps: dict[str, list[Any]] = {"at once": [], "in parts": []}
    tokens: list[Any] = []
    for _ in range(max(1, args.repeats // 2)):
        for way in gaps:
            bound = 1e9 if way == "at once" else session.PART_SECONDS
            with mock.patch.object(session, "PART_SECONDS", bound):
                own, answers = joined(target, plan, short.target, long.target)
            gaps[way].append(own)
            tokens = tokens or answers
            assert answers == tokens
    return {"gaps": gaps, "tokens": long.target["input_ids"].shape[1]}


def joined(target: Any, plan: Any, short: Any, long: Any) -> tuple[dict[str, float], Any]:
    """Seconds of the rounds of a row alone and beside the prompt, and the tokens of both rows."""
    batch = Session(target, plan, Clock(Stats()))
    batch.add(target.prepare(short, max_new_tokens=9000, min_new_tokens=9000), [0], short)
    alone, beside = [], []
    for _ in range(20):
        alone.append(seconds_of(lambda: step(batch)))
    batch.add(target.prepare(long, max_new_tokens=4), [0], long)
    began = time.perf_counter()
    while len(batch.sequences) == 1:
        beside.append(seconds_of(lambda: step(batch)))
    figures = {
        "round": statistics.median(alone[2:]),
        "longest": max(beside),
        "median": statistics.median(beside),
        "rounds": len(beside),
        "read": time.perf_counter() - began,
    }
    running, arrived = batch.sequences
    while arrived in batch.sequences and not arrived.finished:
        step(batch)
    return figures, [running.tokens[: len(alone)], arrived.tokens]


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure_memory(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Bytes counted and held, and resident memory, over many conversations of two turns."""
    cache = PromptCache(BOUND)
    engine.attach(cache)
    process = psutil.Process()
    rows = []
    for number in range(args.conversations):
        frames = 8 + number % 25
        videos = dialogue(reel(64, number), frames, SIDE).videos
        chat: Chat = engine.chat(video=videos[0], namespace=f"user {number % 7}")
        for question in QUESTIONS[1:3]:
            chat.ask(question, max_new_tokens=12)
        assert cache.nbytes <= BOUND
        if (number + 1) % (args.conversations // 10) == 0:
            gc.collect()
            counted = cache.counted()
            rows.append([number + 1, counted, cache.nbytes, held(cache), process.memory_info().rss])
    return {"rows": rows, "bound": BOUND}


def held(cache: PromptCache) -> int:
    """Bytes of the storages of all tensors that the cache refers to, each once."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[Any] = [cache._trees, cache._features]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value
        elif hasattr(value, "__dict__"):
            pending += vars(value).values()
        elif hasattr(value, "__slots__"):
            pending += [getattr(value, name) for name in value.__slots__]
    return sum(storages.values())


def report_turns(figures: Mapping[str, Any]) -> list[str]:
    """Seconds and gains by way."""
    seconds = figures["seconds"]
    stock = seconds["stock generate"]

    def row(way: str, own: Mapping[str, Any]) -> dict[str, Any]:
        if "failed" in own:
            return {"way": way, "firsts": own["failed"]}
        whole = [sum(run) for run in own["whole"]]
        found: dict[str, Any] = {
            "way": way,
            "whole": statistics.median(whole),
            "of stock": range_line(ratios([sum(run) for run in stock["whole"]], whole)),
            "turns": medians_line(own["whole"], 1, 2),
        }
        if own["first"][0][0] is not None:
            later, ours = (
                [statistics.median(run[1:]) for run in each["first"]] for each in (stock, own)
            )
            firsts = {"firsts": medians_line(own["first"], 1e3, 0)}
            found |= {**firsts, "gains": range_line(ratios(later, ours))}
        return found

    columns = {
        "": "{way}",
        "first token of turns 1 to 5, ms": "{firsts}",
        "turns 2 to 5 against stock": "{gains}",
        "five turns, s": "{whole:.2f}",
        "against stock": "{of stock}",
        "turns, s": "{turns}",
    }
    return [
        "## Five turns about a clip",
        f"A prompt of {figures['prompt']} tokens, answers of "
        f"{', '.join(map(str, figures['answers']))} tokens, {len(stock['whole'])} interleaved "
        "repeats: medians, ratios with smallest and largest. Times are CPU time; processor, "
        "vision, prefill and draft are included, and all tokens are equal to stock's. "
        f"Cached prompt tokens of the turns: {', '.join(map(str, figures['cached']))}.",
        table([row(way, seconds[way]) for way in WAYS], columns),
    ]


def medians_line(runs: Sequence[Sequence[float]], scale: float, digits: int) -> str:
    """Medians over runs, turn by turn."""
    turns = zip(*runs, strict=True)
    return " ".join(f"{scale * statistics.median(turn):.{digits}f}" for turn in turns)


def report_second(figures: Mapping[str, Any]) -> list[str]:
    """Medians by way."""
    columns: dict[str, Any] = {
        "": "{way}",
        "cached tokens": "{cached:,}",
        "first token with the cache, s": lambda row: range_line(row["with"]),
        "without, s": lambda row: range_line(row["without"]),
        "earlier by": lambda row: range_line(ratios(row["without"], row["with"])),
        "tokens of a reading of the whole": lambda row: "yes" if row["as without"] else "no",
    }
    rows = [{"way": way, **figures} for way, figures in figures["ways"].items()]
    return [
        "## The second turn about a clip",
        f"A prompt of {figures['prompt']:,} tokens, {len(rows[0]['with'])} interleaved repeats: "
        "medians with smallest and largest. Times are CPU time, with processor and vision. All "
        "tokens are those of `plain` with the same prefill and cache.",
        table(rows, columns),
    ]


def report_delay(figures: Mapping[str, Any]) -> list[str]:
    """The longest rounds beside a prompt that is read."""
    runs = [{"way": way, **run} for way, each in figures["gaps"].items() for run in each]
    columns = {
        "prompt is read": "{way}",
        "longest round, ms": "{longest:.0ms}",
        "median, ms": "{median:.0ms}",
        "rounds beside it": "{rounds:.0f}",
        "until first token, s": "{read:.1f}",
    }
    alone = statistics.median(run["round"] for run in runs)
    return [
        f"## A prompt of {figures['tokens']} tokens joins a running row",
        "Seconds between two tokens of the running row, which are "
        f"{1e3 * alone:.1f} ms without the prompt.",
        table(medians(runs, "way"), columns),
    ]


def report_memory(figures: Mapping[str, Any]) -> list[str]:
    """Bytes counted and held."""
    names = ("conversations", "counted, MiB", "kept count", "held by tensors", "resident")
    rows = [dict(zip(names, row, strict=True)) for row in figures["rows"]]
    columns = {names[0]: "{conversations}", **{name: f"{{{name}:.1MiB}}" for name in names[1:]}}
    return [
        f"## Memory under a bound of {figures['bound'] >> 20} MiB",
        "Two turns about clips of 8 to 32 frames in each conversation, seven namespaces.",
        table(rows, columns),
    ]


PARTS = {
    "turns": (measure_turns, report_turns),
    "second": (measure_second, report_second),
    "delay": (measure_delay, report_delay),
    "memory": (measure_memory, report_memory),
}


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each part."""
    engine = draftlens.load("embedded", device="cpu")
    report: Report = {}
    for part in args.parts.split(","):
        report[part] = PARTS[part][0](engine, args)
        yield report


def page(report: Report) -> list[str]:
    """The measured parts."""
    parts = [part for part in PARTS if part in report]
    return [block for part in parts for block in PARTS[part][1](report[part])]


BENCHMARK = Benchmark(
    "turns",
    __doc__,
    "Turns that read only what is new",
    measure,
    page,
    {
        "--repeats": 5,
        "--frames": 64,
        "--long-frames": 1000,
        "--conversations": 1000,
        "--parts": "turns,second,delay,memory",
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
