"""Many short answers in one process, and what they leave behind.

`make soak` gives 500 answers of every kind in turn: all methods and prefills, streams that are
dropped, drafts and prompts in processes of their own, folders, documents, and calls that fail. What
the process holds must not grow after the first 50. `test_soak.py` does the same with those kinds
that need no further process, and counts objects instead of bytes.

Memory that the allocator holds free does not count, since its fragments grow for some hundred
answers whatever is held: after 50, 100, 150 and 200 answers it was 165, 170, 195 and 193 MB, while
what was in use (`mallinfo2`) stayed at 218 MB, all tensors at 44 MB, and resident memory that was
trimmed at 973, 974, 971 and 970 MB.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import psutil
from torch import nn

import draftlens
from draftlens.batch.map import MapOptions
from draftlens.core.errors import DraftlensError
from draftlens.core.result import Result
from draftlens.core.sequence import Sequence
from draftlens.core.stats import Stats
from draftlens.decoding.session import Session
from draftlens.drafting.draft_rows import DraftRows
from draftlens.methods.tabed.view_rows import ViewRows
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.streaming import Stream

CLIPS = files("draftlens") / "embedded" / "clips"
CLIP, PICTURE = str(CLIPS / "shapes.mp4"), str(CLIPS / "shapes.png")
NEW = 8
QUESTION = "What is shown?"
TREES = ({"num_speculative_tokens": 3}, {"tree": "eagle"}, {"tree": "auto"})
METHODS: tuple[Mapping[str, Any], ...] = (
    {"method": "plain"},
    *({"method": "speculative", **tree} for tree in TREES),
    {"method": "specvlm", "num_speculative_tokens": 3, "prune_ratio": 0.5},
    {"method": "specvlm", "draft": "self", "num_speculative_tokens": 3},
    {"method": "tabed", "views": ["multimodal", "text", "caption"]},
    {"method": "lookup"},
)
AHEAD: tuple[Mapping[str, Any], ...] = (
    {"method": "speculative", "schedule": "parallel"},
    {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3},
    {"method": "parallelvlm", "prune_ratio": 0.5},
)
BLOCKS = {"name": "spava", "blocks": 4, "anchor": 2, "passing": 2}
HOST_EVERY = 5
"""Of so many rounds one reads prompts by two processes, which is slow for prompts this short."""

OF_AN_ANSWER = (Stream, Session, Sequence, Prompt, KVCache, DraftRows, ViewRows, Stats, Result)
"""Classes whose objects belong to one answer. What draftlens learns from answers is kept longer."""

Give = Callable[[], None]
"""Gives one answer, or fails as it should."""


@dataclass(frozen=True)
class Held:
    """What the process holds.

    Attributes:
        objects: living objects of each class of `OF_AN_ANSWER`.
        hooks: hooks of the modules of all models.
        tables: entries of each weak table of draftlens.
        threads, descriptors, processes: of this process, and the processes that it started.
        memory: see `resident_memory`.
    """

    objects: Mapping[str, int]
    hooks: int
    tables: Mapping[str, int]
    threads: int
    descriptors: int
    processes: int
    memory: int

    @classmethod
    def now(cls) -> Held:
        """What is held when everything that can be freed is freed."""
        gc.collect()
        gc.collect()
        objects: Counter[str] = Counter()
        hooks = 0
        for one in gc.get_objects():
            kind = type(one)
            if kind in OF_AN_ANSWER:
                objects[kind.__name__] += 1
            if issubclass(kind, nn.Module):
                hooks += len(one._forward_hooks) + len(one._forward_pre_hooks)
        here = psutil.Process()
        return cls(
            objects,
            hooks,
            dict(weak_tables()),
            here.num_threads(),
            here.num_fds(),
            len(here.children(recursive=True)),
            resident_memory(),
        )

    def grown(self, before: Held) -> list[str]:
        """What is more than before, but for memory, in words."""
        found = []
        for name in ("hooks", "threads", "descriptors", "processes"):
            was, now = getattr(before, name), getattr(self, name)
            if now > was:
                found.append(f"{name}: {was} before, {now} now")
        for was_all, now_all in ((before.objects, self.objects), (before.tables, self.tables)):
            found += [
                f"{name}: {was_all.get(name, 0)} before, {count} now"
                for name, count in now_all.items()
                if count > was_all.get(name, 0)
            ]
        return found


def resident_memory() -> int:
    """Bytes of resident memory of this process, after the allocator has returned what it holds free
    (by glibc's `malloc_trim`; elsewhere that counts, too)."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def weak_tables() -> Iterator[tuple[str, int]]:
    """The entries of each weak table of a module of draftlens, or of an object in a module."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("draftlens"):
            continue
        for key, value in list(vars(module).items()):
            tables = {key: value}
            if type(value).__module__.startswith("draftlens"):
                tables |= {f"{key}.{inner}": one for inner, one in state_of(value).items()}
            for label, table in tables.items():
                if isinstance(table, (WeakKeyDictionary, WeakValueDictionary, WeakSet)):
                    yield f"{name}.{label}", len(table)


def state_of(value: Any) -> Mapping[str, Any]:
    """The attributes of an object."""
    return dict(getattr(value, "__dict__", {}))


@dataclass
class Answers:
    """All kinds of answers.

    Args:
        folder: for what is read and written.
        in_processes: whether kinds take part that need processes of their own.
    """

    folder: Path
    in_processes: bool
    engine: draftlens.Engine = field(init=False)
    hosted: draftlens.Engine | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.engine = draftlens.load(device="cpu")
        if self.in_processes:
            self.hosted = draftlens.load(device="cpu", method="plain")
        (self.folder / "noise.mp4").write_bytes(b"no clip" * 100)

    @property
    def kinds(self) -> dict[str, Give]:
        """What gives an answer of each kind, by its name."""
        kinds: dict[str, Give] = {}
        for method in METHODS:
            kinds[" ".join(map(str, method.values()))] = lambda method=method: self.ask(method)
        kinds |= {
            "hsd": lambda: self.ask({"method": "hsd"}, references=["A red square moves."]),
            "drawn": lambda: self.ask({"method": "speculative"}, do_sample=True, seed=1),
            "ring": lambda: self.ask({"method": "plain"}, prefill="ring"),
            "spava": lambda: self.ask({"num_speculative_tokens": 3}, prefill=BLOCKS),
            "a clip": self.about_a_clip,
            "the caller's generate": self.by_the_caller,
            "dropped streams": self.drop,
            "two threads": self.at_once,
            "wrong arguments": self.refused,
            "a processor that fails": self.fails_midway,
            "an interrupted answer": self.interrupted,
        }
        if self.in_processes:
            for method in AHEAD:
                name = f"in a process: {method.get('schedule', method['method'])}"
                kinds[name] = lambda method=method: self.ask(method)
            kinds |= {
                "a dropped stream of a process": lambda: self.drop(AHEAD[0]),
                "a folder": self.about_a_folder,
                "a document": self.about_a_document,
                "two hosts": self.by_two_hosts,
            }
        return kinds

    def ask(self, method: Mapping[str, Any], **options: Any) -> None:
        """One short answer about the picture."""
        result = self.engine.generate(
            QUESTION, images=PICTURE, method=method, max_new_tokens=NEW, **options
        )
        assert 0 < len(result.tokens[0]) <= NEW

    def about_a_clip(self) -> None:
        """Four frames of a file."""
        self.engine.generate(QUESTION, video=CLIP, num_frames=4, max_new_tokens=NEW)

    def by_the_caller(self) -> None:
        """`generate` of transformers."""
        inputs = self.engine.read(QUESTION, images=PICTURE).target
        assert self.engine.draft is not None
        custom = draftlens.SpeculativeGenerate(self.engine.draft.backbone.model, inputs)
        model = self.engine.target.backbone.model
        model.generate(**inputs, max_new_tokens=NEW, custom_generate=custom)

    def drop(self, method: Mapping[str, Any] | None = None) -> None:
        """Streams that nobody reads to their end, or begins to read."""
        for chunks in (0, 1, 3):
            stream = self.engine.stream(QUESTION, images=PICTURE, method=method, max_new_tokens=NEW)
            for _ in range(chunks):
                next(stream, None)

    def at_once(self) -> None:
        """Two answers of one engine."""
        calls = [threading.Thread(target=self.ask, args=(METHODS[i],)) for i in (0, 1)]
        for call in calls:
            call.start()
        for call in calls:
            call.join()

    def refused(self) -> None:
        """Calls that are refused before their first token."""
        for wrong in (
            {"images": str(self.folder / "nowhere.png")},
            {"video": str(self.folder / "noise.mp4")},
            {"images": PICTURE, "method": "nothing"},
            {"images": PICTURE, "num_beams": 2},
        ):
            with suppress(DraftlensError):
                self.engine.generate(QUESTION, max_new_tokens=NEW, **wrong)
                raise AssertionError(f"{wrong} was not refused")

    def fails_midway(self) -> None:
        """An error of the caller's own code while tokens are chosen."""
        self._ends_with(ValueError)

    def interrupted(self) -> None:
        """Ctrl-C while tokens are chosen."""
        self._ends_with(KeyboardInterrupt)

    def _ends_with(self, error: type[BaseException]) -> None:
        calls = itertools.count()

        def fail(ids: Any, scores: Any) -> Any:
            if next(calls) > 2:
                raise error
            return scores

        with suppress(error):
            self.ask({"num_speculative_tokens": 2}, logits_processor=[fail])
            raise AssertionError("the error of a processor was lost")

    def about_a_folder(self) -> None:
        """A clip and a file that is none, in processes that read them."""
        clips = [CLIP, str(self.folder / "noise.mp4")]
        options = MapOptions(num_frames=2, readers=1)
        answers = list(self.engine.map(clips, QUESTION, options=options, max_new_tokens=NEW))
        assert len(answers) == 2

    def about_a_document(self) -> None:
        """A page, read with the reader of the package's target."""
        pages = list(
            draftlens.parse(PICTURE, engine=self.engine, prompt="Read.", max_new_tokens=NEW)
        )
        assert len(pages) == 1

    def by_two_hosts(self) -> None:
        """A prompt that two processes read."""
        assert self.hosted is not None
        inputs = self.hosted.read(QUESTION, images=PICTURE).target
        model = self.hosted.target.backbone
        draftlens.generate(
            model, inputs, method="plain", prefill="ring", hosts=2, max_new_tokens=NEW
        )


def rounds(answers: Answers) -> Iterator[str]:
    """Give answers of all kinds in turn for ever; yields the name of each kind."""
    kinds = answers.kinds
    for number in itertools.count():
        for name, give in kinds.items():
            if name == "two hosts" and number % HOST_EVERY:
                continue
            give()
            yield name


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Give many answers and see what is left behind.")
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--first", type=int, default=50, help="Answers after which nothing grows.")
    parser.add_argument("--memory", type=float, default=0.02, help="Share that memory may vary.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        answers = Answers(Path(folder), in_processes=True)
        counts: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        began = moment = time.monotonic()
        first: Held | None = None
        for number, name in enumerate(itertools.islice(rounds(answers), arguments.answers), 1):
            counts[name] += 1
            seconds[name] += time.monotonic() - moment
            if number % arguments.first == 0:
                held = Held.now()
                first = first or held
                print(
                    f"{number:5} answers, {time.monotonic() - began:5.0f} s: "
                    f"{held.memory / 1e6:.0f} MB, {held.descriptors} descriptors, "
                    f"{held.threads} threads, {held.processes} processes, "
                    f"{sum(held.objects.values())} objects, {held.hooks} hooks, "
                    f"{sum(held.tables.values())} entries of weak tables",
                    flush=True,
                )
            moment = time.monotonic()
        for name, count in counts.items():
            print(f"{count:4} x {name}, {seconds[name] / count:.2f} s each")
        last = Held.now()
        assert first is not None, "give more answers than --first"
        grown = last.grown(first)
        if last.memory > first.memory * (1 + arguments.memory):
            grown.append(f"memory: {first.memory} bytes before, {last.memory} now")
        for what in grown:
            print(f"grown: {what}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
