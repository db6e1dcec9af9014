"""SPAVA: a long video in blocks that share an anchor and pass few keys on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from draftlens.core.errors import ConfigError
from draftlens.core.options import shown
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput, PrefillReading
from draftlens.prefill.spava.kv_placement import check_decode, new_cache
from draftlens.prefill.spava.one_process import check_directed, read_in_blocks
from draftlens.prefill.spava.passing_keys import SELECTS
from draftlens.prefill.spava.ring_chunks import Length, check_ring_length
from draftlens.prefill.spava.rows import Division, PromptRow, prompt_rows
from draftlens.prefill.spava.several import SeveralProcesses

ABLATIONS = "the prefill 'spava-ablation' of draftlens-lab has it"


@dataclass(frozen=True)
class SpavaPrefill(SeveralProcesses):
    """Reads a video or a long text in blocks: approximate, and cheaper the longer it is.

    The context, which ends with the last visual token, is divided into an anchor and `blocks`
    blocks. A block attends to the anchor, to itself, and to the few keys that the blocks before it
    pass on, in every layer and for every head of the keys other ones.
    The query after the context attends to everything. The result depends on these options and the
    prompt alone, never on the number of processes.

    Rows that are too short for this are read exactly; `prompt_rows` states the rule, and
    `Result.notes` names them.

    Args:
        anchor: l_a, tokens at the beginning that all blocks see: a number, or a share of the
            context such as `"n/64"`.
        passing: l_p, keys that each block passes on, in the same forms. At least the length of a
            block makes the prefill exact.
        blocks: number of blocks; twice the number of ranks in the paper.
        query_tokens: tokens at the end of a prompt without pictures and clips that are its query,
            such as a question about a long text and what the chat template adds to it; the text in
            front of them is the context. None: such prompts are read exactly.
        select: how passing keys are chosen: `"query"`, those that the question scores highest, as
            in the paper; `"sampled"`, an order sample by the question's attention
            (`prefill.spava.passing_keys`), which is close to a random choice where attention says
            little.
        zigzag: whether each process reads blocks from the front and from the back, so that all have
            equal work. It changes no token.
        decode: where keys and values are while the answer is decoded, with several processes:
            `"gathered"` on rank 0, `"sharded"` with those that read them, `"auto"` wherever there
            is memory and it is faster. It changes no token.
        hosts: number of processes that read prompts together, on the CPU of this machine; they are
            started with the model, or by its first request, end with it, and share the threads of
            torch. None: this process alone, or those of torchrun, where rank 0 answers and the
            other processes end with it.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> SpavaPrefill(blocks=8).approximate
        ('spava prefill: 8 blocks, anchor n/64, passing n/128',)
    """

    removed: ClassVar[Mapping[str, str]] = dict.fromkeys(("pool", "rounding"), ABLATIONS)

    anchor: Length = "n/64"
    passing: Length = "n/128"
    blocks: int = 16
    query_tokens: int | None = None
    select: str = "sampled"
    zigzag: bool = True
    decode: str = "auto"
    hosts: int | None = None

    def __post_init__(self) -> None:
        check_decode(self.decode)
        self.check_hosts()
        if self.query_tokens is not None:
            check_whole("query_tokens", self.query_tokens)
        check_ring_length("anchor", self.anchor)
        check_ring_length("passing", self.passing)
        check_whole("blocks", self.blocks)
        if not isinstance(self.select, str) or self.select not in SELECTS:
            raise ConfigError(f"unknown select {shown(self.select)}; known: {', '.join(SELECTS)}")
        if not isinstance(self.zigzag, bool):
            raise ConfigError(f"zigzag must be true or false, not {self.zigzag!r}")

    @property
    def approximate(self) -> tuple[str, ...]:
        return (f"spava prefill: {self.described()}",)

    def described(self) -> str:
        """The options that change tokens, in words for the user."""
        passing = f"passing {self.passing}" if self.passing else "nothing passed"
        if self.passing and self.select == "query":
            passing += ", query selection"
        words = f"{self.blocks} blocks, anchor {self.anchor}, {passing}"
        if self.query_tokens is None:
            return words
        return f"{words}, the last {self.query_tokens} tokens of texts as query"

    def rows(self, prompt: Prompt) -> list[PromptRow]:
        division = Division(self.blocks, self.anchor, self.passing, self.query_tokens)
        return prompt_rows(prompt, division)

    def check(self, backbone: Backbone) -> None:
        check_directed(backbone)

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """`Prefill.new_cache`; raises `HostError` if a rank is lost."""
        return new_cache(backbone, prompt, room, self.decode)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """`Prefill.run`; raises `UnsupportedModelError` as `Prefill.check`."""
        return read_in_blocks(
            backbone, reading, self.rows, self.approximate, self.zigzag, self.select
        )


def check_whole(option: str, value: object) -> None:
    """Raise `ConfigError`, which names the option, unless it is a whole number of at least 1."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{option} must be a whole number of at least 1, not {shown(value)}")
