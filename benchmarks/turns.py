"""Conversations about a clip: turns that read only what is new, beside stock `generate`, which
reads the whole conversation in each turn.

    python benchmarks/turns.py --out benchmarks/results/turns [--parts turns,delay,memory]

`turns` asks five questions about a clip and takes the CPU time of each turn end to end: processor,
vision, prefill and decoding, all on one thread. Other programs change it less than wall time.
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
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world import HELD_OUT
from draftlens_lab.world.samples import Sample, draw
from shared import (
    argument_parser,
    assisted_answerer,
    backbones,
    configure,
    environment,
    environment_line,
    rotated,
    save,
)

import draftlens
from draftlens.chat import Chat
from draftlens.core.stats import Clock, Stats
from draftlens.decoding import Session, session, step
from draftlens.engine import Engine
from draftlens.media.conversation import Conversation
from draftlens.models.prompt_cache import PromptCache

PREDICTION = """Written before the first run: the second turn reads 30 new tokens in place of about
1,150, so its first token comes 10 times as early as the first turn's and 12 times as early as
stock's, whose vision tower runs anew as well; what is left is the processor, which looks at all
frames in each turn. Five turns take a quarter of stock's time with the default method, half of that
gain being the prompt's. A prompt of 16,001 tokens that is read at once stops a running row for 20
seconds; in parts for 50 ms, and the last part for twice that. Bytes counted are those held."""

SIDE = 64
QUESTIONS = (
    "Describe the video.",
    "What is at the top left?",
    "Which word is shown last?",
    "How many shots are there?",
    "Describe the video.",
)
BOUND = 256 * 2**20
WAYS = ("stock generate", "stock assisted", "plain", "default", "chat, plain", "chat, default")


@dataclass(frozen=True)
class Turn:
    """One answer: seconds to its first token, None if that was not noted, and to its last."""

    first: float | None
    whole: float
    tokens: list[int]
    cached: int = 0


Asker = Callable[[Conversation], Turn]


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/turns", repeats=5)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--long-frames", type=int, default=1000)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--parts", default="turns,delay,memory")
    args = parser.parse_args()
    configure(args.threads)
    engine = draftlens.load("embedded", device="cpu")
    measures = {"turns": measure_turns, "delay": measure_delay, "memory": measure_memory}
    reports = {"turns": report_turns, "delay": report_delay, "memory": report_memory}
    report: dict[str, Any] = {"environment": environment(args), "prediction": PREDICTION}
    lines = ["# Turns that read only what is new"]
    for part in args.parts.split(","):
        report[part] = measures[part](engine, args)
        lines += reports[part](report[part])
        facts = f"Environment: {environment_line(report['environment'])}."
        page = "\n\n".join([*lines, facts, f"Prediction. {' '.join(PREDICTION.split())}"]) + "\n"
        save(args.out, report, page)
    print(page)


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


def report_turns(figures: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    seconds = figures["seconds"]
    stock = seconds["stock generate"]
    rows = []
    for way in WAYS:
        own = seconds[way]
        if "failed" in own:
            rows.append([way, own["failed"], "", "", "", ""])
            continue
        firsts, gains = "", ""
        if own["first"][0][0] is not None:
            turns = zip(*own["first"], strict=True)
            firsts = " ".join(f"{1e3 * statistics.median(turn):.0f}" for turn in turns)
            pairs = zip(stock["first"], own["first"], strict=True)
            gains = spread(
                [statistics.median(one[1:]) / statistics.median(two[1:]) for one, two in pairs]
            )
        whole = [sum(run) for run in own["whole"]]
        speedups = [sum(run) / now for run, now in zip(stock["whole"], whole, strict=True)]
        rows.append(
            [
                way,
                firsts,
                gains,
                f"{statistics.median(whole):.2f}",
                spread(speedups),
                " ".join(
                    f"{statistics.median(turn):.2f}" for turn in zip(*own["whole"], strict=True)
                ),
            ]
        )
    columns = (
        "",
        "first token of turns 1 to 5, ms",
        "turns 2 to 5 against stock",
        "five turns, s",
        "against stock",
        "turns, s",
    )
    return [
        f"## Five turns about a clip\n\nA prompt of {figures['prompt']} tokens, answers of "
        f"{', '.join(map(str, figures['answers']))} tokens, {len(stock['whole'])} interleaved "
        "repeats: medians, ratios with smallest and largest. Times are CPU time; processor, "
        "vision, prefill and draft are included, and all tokens are equal to stock's. "
        "Cached prompt tokens of the turns: "
        f"{', '.join(map(str, figures['cached']))}.",
        "\n".join(markdown_table(columns, rows, text_columns=(0,))),
    ]


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


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


def report_delay(figures: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    rows = []
    for way, runs in figures["gaps"].items():
        cells = [[run[name] for run in runs] for name in ("longest", "median", "rounds", "read")]
        longest, median, rounds, read = (statistics.median(values) for values in cells)
        rows.append(
            [way, f"{1e3 * longest:.0f}", f"{1e3 * median:.0f}", f"{rounds:.0f}", f"{read:.1f}"]
        )
    alone = statistics.median(run["round"] for runs in figures["gaps"].values() for run in runs)
    columns = (
        "prompt is read",
        "longest round, ms",
        "median, ms",
        "rounds beside it",
        "until first token, s",
    )
    return [
        f"## A prompt of {figures['tokens']} tokens joins a running row\n\nSeconds between two "
        f"tokens of the running row, which are {1e3 * alone:.1f} ms without the prompt.",
        "\n".join(markdown_table(columns, rows, text_columns=(0,))),
    ]


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


def report_memory(figures: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    rows = [
        [str(row[0]), *(f"{value / 2**20:.1f}" for value in row[1:])] for row in figures["rows"]
    ]
    columns = ("conversations", "counted, MiB", "kept count", "held by tensors", "resident")
    return [
        f"## Memory under a bound of {figures['bound'] >> 20} MiB\n\nTwo turns about clips of 8 to "
        "32 frames in each conversation, seven namespaces.",
        "\n".join(markdown_table(columns, rows, text_columns=())),
    ]


if __name__ == "__main__":
    main()
