"""SPAVA: a long video in blocks that share an anchor and pass few keys on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput
from draftlens.prefill.reading import Reading
from draftlens.prefill.spava.kv_placement import check_decode, new_cache
from draftlens.prefill.spava.one_process import check_directed, read_in_blocks
from draftlens.prefill.spava.passing_keys import ByChance, ByQuery, Choice, Evenly
from draftlens.prefill.spava.ring_chunks import Length, check_length
from draftlens.prefill.spava.rows import Division, rows_of
from draftlens.prefill.spava.several import SeveralProcesses

SELECTS = ("query", "random", "uniform", "none")
"""How passing keys are chosen."""


@dataclass(frozen=True)
class SpavaPrefill(SeveralProcesses):
    """Reads a video in blocks: approximate, and cheaper the longer the video is.

    The context, which ends with the last visual token, is divided into an anchor and `blocks`
    blocks. A block attends to the anchor, to itself, and to the few keys that the blocks before it
    pass on, chosen anew in every layer and for every head of the keys. The query behind the context
    attends to everything. What is computed depends on these options and the prompt alone, never on
    the number of processes.

    Rows that are too short for this are read exactly; `rows_of` states the rule, and
    `Result.notes` names them.

    Args:
        anchor: l_a, tokens at the beginning that all blocks see: a number, or a share of the
            context such as `"n/64"`.
        passing: l_p, keys that each block passes on, in the same forms. At least the length of a
            block makes the prefill exact.
        blocks: number of blocks; twice the number of hosts in the paper.
        select: how passing keys are chosen: `"query"` by the question, `"random"`, `"uniform"` at
            equal distances, `"none"` passes none.
        rounding: `anchor` and `passing` are rounded up to a multiple of it; 128 in the paper's
            code.
        pool: number of neighbouring keys whose greatest score counts for the one in their middle,
            odd; for `select="query"`.
        zigzag: whether each process reads blocks from the front and from the back, so that all have
            equal work. It changes no token.
        decode: where keys and values are while the answer is decoded, with several processes:
            `"gathered"` on rank 0, `"sharded"` with those that read them, `"auto"` wherever there
            is memory and it is faster. It changes no token.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> SpavaPrefill(blocks=8).approximate
        ('spava prefill: 8 blocks, anchor n/64, passing n/128',)
    """

    anchor: Length = "n/64"
    passing: Length = "n/128"
    blocks: int = 16
    select: str = "query"
    rounding: int = 1
    pool: int = 5
    zigzag: bool = True
    decode: str = "auto"

    def __post_init__(self) -> None:
        check_decode(self.decode)
        check_length("anchor", self.anchor)
        check_length("passing", self.passing)
        check_whole("blocks", self.blocks)
        check_whole("rounding", self.rounding)
        check_whole("pool", self.pool)
        if self.pool % 2 == 0:
            raise ConfigError(f"pool must be odd, so that it has a middle, not {self.pool}")
        if self.select not in SELECTS:
            raise ConfigError(f"unknown select {self.select!r}; known: {', '.join(SELECTS)}")
        if not isinstance(self.zigzag, bool):
            raise ConfigError(f"zigzag must be true or false, not {self.zigzag!r}")

    @property
    def approximate(self) -> tuple[str, ...]:
        """See `Prefill.approximate`."""
        return (f"spava prefill: {self.described()}",)

    def described(self) -> str:
        """The options that change tokens, in words for the user."""
        words = [f"{self.blocks} blocks", f"anchor {self.anchor}"]
        if self.select == "none":
            words.append("nothing passed")
        else:
            words.append(f"passing {self.passing}")
        if self.select in ("random", "uniform"):
            words.append(f"{self.select} selection")
        if self.select == "query" and self.pool != 5:
            words.append(f"pool {self.pool}")
        if self.rounding != 1:
            words.append(f"rounded to {self.rounding}")
        return ", ".join(words)

    @property
    def division(self) -> Division:
        """How rows are divided."""
        passing = 0 if self.select == "none" else self.passing
        return Division(self.blocks, self.anchor, passing, self.rounding)

    @property
    def choice(self) -> Choice:
        """What chooses the passing keys."""
        choices: Mapping[str, Choice] = {
            "query": ByQuery(self.pool),
            "random": ByChance(),
            "uniform": Evenly(),
            "none": Evenly(),
        }
        return choices[self.select]

    def check(self, backbone: Backbone) -> None:
        """See `Prefill.check`."""
        check_directed(backbone)

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """See `Prefill.new_cache`.

        Raises:
            HostError: a host is lost.
        """
        return new_cache(backbone, prompt, room, self.decode)

    def run(self, backbone: Backbone, reading: Reading) -> PrefillOutput:
        """See `Prefill.run`.

        Raises:
            UnsupportedModelError: as `Prefill.check`.
        """
        rows = rows_of(reading.prompt, self.division)
        return read_in_blocks(backbone, reading, rows, self.choice, self.approximate, self.zigzag)


def check_whole(option: str, value: object) -> None:
    """Refuse what is no whole number of at least 1.

    Raises:
        ConfigError: names the option.
    """
    if type(value) is not int or value < 1:
        raise ConfigError(f"{option} must be a whole number of at least 1, not {value!r}")
