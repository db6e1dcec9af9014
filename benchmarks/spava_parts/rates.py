"""How fast this machine computes prefills and exchanges tensors, for the cost model."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from shared import caption_sample, encoded_prompt, rotated, sample_inputs

from draftlens.engine import Engine
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import Prefill, PrefillReading
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.heartbeat import Signs
from draftlens.prefill.spava.processes.jobs import ALLOWED
from draftlens.prefill.spava.processes.process_group import PATIENCE_SECONDS, GroupRanks
from draftlens.prefill.spava.processes.sockets import SocketLinks, mesh
from draftlens.prefill.spava.processes.worker_loop import run_jobs_and_exit
from spava_parts.loads import Load, Shape

SMALL = 1 << 10
LARGE = 1 << 21
"""Elements of the messages whose seconds give latency and rate."""

ROUNDS = 30
"""Exchanges of each size, of which the fastest counts."""

KINDS = ("gather", "all_gather", "pass_on")
"""Exchanges of a group (`prefill.spava.hosts.Hosts`)."""


@dataclass(frozen=True)
class Rates:
    """Seconds of each unit of work.

    Args:
        token: of the linear layers.
        pair: of a query and a key, of one head.
        call: of the attention kernel.
        merge: of a token's attention with another part of it.
        copy: of a passing key that is put behind others.
        alpha, beta: seconds of an exchange, and of each element, by kind.
        deal: seconds in which a job and its tokens are given to another process, for each token.
        beside: factor of the processor's seconds while another process computes on the other core.
    """

    token: float
    pair: float
    call: float
    merge: float
    copy: float
    alpha: Mapping[str, float]
    beta: Mapping[str, float]
    deal: float
    beside: float

    def computing(self, load: Load) -> float:
        """Seconds of computing of one host with a core of its own."""
        kernel = self.pair * load.pairs + self.call * load.calls
        around = self.merge * load.merged + self.copy * load.copied
        return self.token * load.tokens + kernel + around

    def exchanging(self, load: Load, kind: str, slower: float = 1.0) -> float:
        """Seconds of the exchanges inside the layers, on a link slower by a factor."""
        return slower * (self.alpha[kind] * load.messages + self.beta[kind] * load.elements)


def shape_of(target: Backbone, prompt: Prompt) -> Shape:
    """A prompt that ends with text, as the cost model sees it."""
    config = target.text_config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    context = int(prompt.visual[0].nonzero()[-1]) + 1
    heads = (config.num_attention_heads, config.num_key_value_heads)
    return Shape(context, prompt.lengths[0] - context, config.num_hidden_layers, *heads, width)


def prompt_of(engine: Engine, frames: int) -> Prompt:
    """A held-out clip with the request for its caption."""
    inputs = sample_inputs(engine, caption_sample(0), frames)
    return encoded_prompt(engine.target.backbone, inputs.target)


@dataclass(frozen=True)
class Seconds:
    """Medians of one prefill.

    Args:
        wall: on the clock.
        processor: of this process, which waiting and other programs do not lengthen.
    """

    wall: float
    processor: float


def seconds_of(
    target: Backbone, cases: Mapping[str, tuple[Prompt, Prefill]], hosts: Hosts, repeats: int
) -> dict[str, Seconds]:
    """Seconds of prefills, interleaved, behind one round that is not counted."""
    walls: dict[str, list[float]] = {name: [] for name in cases}
    processors: dict[str, list[float]] = {name: [] for name in cases}
    set_hosts(target, hosts)
    try:
        for repeat in range(-1, repeats):
            for name, (prompt, prefill) in rotated(list(cases.items()), repeat + 1):
                cache = target.new_cache(prompt, 1)
                began = time.perf_counter()
                spent = time.process_time()
                prefill.run(target, PrefillReading(prompt, cache))
                if repeat >= 0:
                    processors[name].append(time.process_time() - spent)
                    walls[name].append(time.perf_counter() - began)
    finally:
        set_hosts(target, ALONE)
    found = {}
    for name in cases:
        wall = statistics.median(walls[name])
        found[name] = Seconds(wall, statistics.median(processors[name]))
    return found


def fitted(loads: Sequence[Load], seconds: Sequence[float]) -> NDArray[np.float64]:
    """Seconds of a token, a pair, a call, a merge and a copy, none below zero, with the least
    squares of relative errors."""
    rows = [[load.tokens, load.pairs, load.calls, load.merged, load.copied] for load in loads]
    work = np.array(rows, dtype=np.float64) / np.array(seconds)[:, None]
    used = [0, 1, 2, 3, 4]
    while True:
        found = np.linalg.lstsq(work[:, used], np.ones(len(loads)), rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    rates = np.zeros(5)
    rates[used] = found
    return rates


@dataclass(frozen=True)
class Exchanging:
    """A job that takes part in an exchange of this many elements, after one of a single element.

    Args:
        kind: of `KINDS`.
        size: number of elements.
    """

    kind: str
    size: int

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        """See `Hosts.give`."""
        exchange(hosts, "gather", 1)
        exchange(hosts, self.kind, self.size)


def exchange(hosts: Hosts, kind: str, size: int) -> None:
    """One exchange of tensors of this size."""
    local = torch.zeros(size)
    sizes = [size] * hosts.size
    calls: Mapping[str, Callable[[], Any]] = {
        "gather": lambda: hosts.gather(local, sizes),
        "all_gather": lambda: hosts.all_gather(local, sizes),
        "pass_on": lambda: hosts.pass_on(local, size),
    }
    calls[kind]().wait()


def exchange_rates(hosts: Hosts) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of an exchange as such, and of each element that arrives, by kind."""
    alpha = {}
    beta = {}
    for kind in KINDS:
        small, large = (exchange_seconds(hosts, kind, size) for size in (SMALL, LARGE))
        beta[kind] = max(large - small, 0.0) / (LARGE - SMALL)
        alpha[kind] = max(small - beta[kind] * SMALL, 0.0)
    return alpha, beta


def exchange_seconds(hosts: Hosts, kind: str, size: int) -> float:
    """Least seconds of an exchange on rank 0, when all ranks have begun: other programs only
    lengthen it."""
    times = []
    for _ in range(ROUNDS):
        with hosts.answering():
            hosts.give([Exchanging(kind, size)] * (hosts.size - 1))
            exchange(hosts, "gather", 1)
            began = time.perf_counter()
            exchange(hosts, kind, size)
            times.append(time.perf_counter() - began)
    return min(times)


@dataclass(frozen=True)
class PromptJob:
    """A job that reads a prompt by itself some times, and does nothing else.

    Args:
        prompt: what it reads.
        times: how often.
    """

    prompt: Prompt
    times: int

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        """See `Hosts.give`."""
        for _ in range(self.times):
            backbone.prefill(self.prompt, backbone.new_cache(self.prompt, 1))
        exchange(hosts, "gather", 1)


def beside(target: Backbone, prompt: Prompt, hosts: Hosts, repeats: int) -> tuple[float, float]:
    """Two figures of another process: by what factor it slows this one's computing while it reads,
    and the seconds for each token in which it is given a prompt."""
    alone = [own_seconds(target, prompt) for _ in range(repeats)]
    deals = []
    together = []
    for _ in range(repeats):
        with hosts.answering():
            began = time.perf_counter()
            hosts.give([PromptJob(prompt, 3)] * (hosts.size - 1))
            deals.append(time.perf_counter() - began)
            own_seconds(target, prompt)
            together.append(own_seconds(target, prompt))
            exchange(hosts, "gather", 1)
    factor = statistics.median(together) / statistics.median(alone)
    return max(factor, 1.0), min(deals) / prompt.lengths[0]


class Unwatched(Signs):
    """Nobody observes the ranks."""

    def silent(self) -> list[int]:
        return []

    def tell(self, why: str) -> str:
        return why


@contextmanager
def two_ranks(backbone: Backbone) -> Iterator[GroupRanks]:
    """Rank 0 of two, of which the other is a fork: processes that `start` starts run no jobs of a
    benchmark."""
    own, other = mesh(2)
    child = os.fork()
    jobs = (*ALLOWED, Exchanging, PromptJob)
    if child == 0:
        own[1].close()
        links = SocketLinks(other)
        run_jobs_and_exit(backbone, GroupRanks(1, 2, PATIENCE_SECONDS, links, Unwatched(), jobs))
    other[0].close()
    links = SocketLinks(own)
    try:
        yield GroupRanks(0, 2, PATIENCE_SECONDS, links, Unwatched())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        links.close()


def own_seconds(target: Backbone, prompt: Prompt) -> float:
    """Seconds of the processor for a full prefill by this process."""
    cache = target.new_cache(prompt, 1)
    began = time.process_time()
    target.prefill(prompt, cache)
    return time.process_time() - began
