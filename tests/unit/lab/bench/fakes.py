"""Contestants and clips that need no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from draftlens_lab.bench.clips import Clip, Reader
from draftlens_lab.bench.contestants import Contestant, TimedAnswer
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.runner import BenchRun
from draftlens_lab.bench.store import Measurement, Store
from draftlens_lab.bench.workloads import clips_of

from draftlens.core.errors import MediaError
from draftlens.media.conversation import Conversation

SAYS = [5, 6, 7, 8]
WHAT = {"models": {"target": "t"}, "options": {"repeats": 3, "max_new_tokens": 256}}


@dataclass(frozen=True)
class Pixels:
    """Media that can be shown, or not."""

    readable: bool = True

    def prepare(self, prompt: str, frames: int) -> Reader:
        """Reading happens when it is shown."""

        def shown() -> Conversation:
            if not self.readable:
                raise MediaError(f"cannot read {prompt}: it is broken")
            return Conversation([{"role": "user", "content": prompt}])

        return shown

    def files(self) -> list[Path]:
        """They are in memory."""
        return []


@dataclass(frozen=True)
class Fake:
    """Answers `says` at once, and writes down whom it answered.

    Args:
        asked: gets (name, prompt, longest answer) of each call.
        before: called with the prompt; may raise.
        accepts: tokens that the full target accepts; None if the fake is lossless.
    """

    name: str
    asked: list[tuple[str, str, int]]
    says: tuple[int, ...] = tuple(SAYS)
    before: Callable[[str], None] = field(default=lambda prompt: None)
    accepts: int | None = None

    method = None

    def settings(self) -> dict[str, Any]:
        return {"fake": self.name, "says": list(self.says)}

    def answer(self, engine: Any, read_clip: Reader, max_new_tokens: int) -> TimedAnswer:
        prompt = read_clip().messages[0]["content"]
        self.asked.append((self.name, prompt, max_new_tokens))
        self.before(prompt)
        counters = (
            {"emitted": 4, "first": 1, "passes": 2, "drafted": 4, "accepted": 1}
            if self.name == "ours"
            else {}
        )
        return TimedAnswer(
            list(self.says), 2.0, 0.5, {"frames": 0.25, "verify": 1.5}, 10, counters, 100
        )

    def accepted(self, engine: Any, read_clip: Reader, tokens: Sequence[int]) -> int | None:
        return self.accepts


@dataclass
class Race:
    """Fakes on fake clips.

    Args:
        asked: every call, in order.
        ways: by name; a test may change or add some.
    """

    asked: list[tuple[str, str, int]] = field(default_factory=list)
    ways: dict[str, Fake] = field(default_factory=dict)
    clips: list[Clip] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("hf-generate", "plain", "ours"):
            self.ways[name] = Fake(name, self.asked)
        for name in ("a", "b"):
            self.clips.append(Clip(name, f"what is {name}", Pixels(), 8, "films"))

    def plan(self, repeats: int = 3, **options: Any) -> BenchRun:
        model = SimpleNamespace(backbone=SimpleNamespace(model=torch.nn.Linear(1, 1)))
        chosen = [Contestant(name, way) for name, way in self.ways.items()]
        engine: Any = SimpleNamespace(target=model, draft=None)
        return BenchRun(engine, self.clips, chosen, BenchOptions(repeats=repeats, **options))


def begun(folder: Path, resume: bool | None = None) -> Store:
    """The store of a run in this folder."""
    store = Store(folder)
    store.begin(WHAT, resume)
    return store


def keys(store: Store) -> Counter[tuple[str, str, int]]:
    """How often each clip, method and repeat is measured."""
    return Counter((m.clip, m.method, m.repeat) for m in store.of(Measurement))


def clips(workload: str, **options: Any) -> list[Clip]:
    """The clips of a workload, with further options of `draftlens bench`."""
    return clips_of(BenchOptions(workload, **options), processor=None)
