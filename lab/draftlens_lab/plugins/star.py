"""Star Attention (Acharya et al. 2025): blocks that see the first one and themselves."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput, PrefillReading
from draftlens.prefill.spava.config import check_whole
from draftlens.prefill.spava.kv_placement import check_decode, new_cache
from draftlens.prefill.spava.one_process import check_directed, read_in_blocks
from draftlens.prefill.spava.rows import Division, PromptRow, prompt_rows
from draftlens.prefill.spava.several import SeveralProcesses


@dataclass(frozen=True)
class StarPrefill(SeveralProcesses):
    """Reads a video in blocks that attend to the first block and to themselves: a baseline.

    The query attends to everything. In Star Attention it does so in a second pass; here it rides
    along in the same one, which computes the same, because no block depends on the query.

    Args:
        blocks: number of blocks, the first of which is the anchor of the others: one for each host
            in that paper.
        query_tokens: tokens at the end of a prompt without pictures and clips that are its query;
            None: such prompts are read exactly.
        decode: where keys and values are while the answer is decoded, with several processes:
            `"gathered"` on rank 0, `"sharded"` with those that read them, `"auto"` wherever there
            is memory and it is faster. It changes no token.
        hosts: number of processes that read prompts together, as for prefill `spava`.

    Raises:
        ConfigError: there are fewer than two blocks, `decode` is unknown, or `hosts` is no number
            of processes.

    Example:

        >>> StarPrefill().approximate
        ('star prefill: 8 blocks',)
    """

    blocks: int = 8
    query_tokens: int | None = None
    decode: str = "auto"
    hosts: int | None = None

    def __post_init__(self) -> None:
        check_decode(self.decode)
        self.check_hosts()
        if self.query_tokens is not None:
            check_whole("query_tokens", self.query_tokens)
        check_whole("blocks", self.blocks)
        if self.blocks < 2:
            raise ConfigError(f"star prefill needs at least 2 blocks, not {self.blocks}")

    @property
    def approximate(self) -> tuple[str, ...]:
        words = f"star prefill: {self.blocks} blocks"
        if self.query_tokens is not None:
            words += f", the last {self.query_tokens} tokens of texts as query"
        return (words,)

    def rows(self, prompt: Prompt) -> list[PromptRow]:
        """How each row of a prompt is divided."""
        division = Division(self.blocks - 1, f"n/{self.blocks}", 0, self.query_tokens)
        return prompt_rows(prompt, division)

    def check(self, backbone: Backbone) -> None:
        check_directed(backbone)

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """See `Prefill.new_cache`.

        Raises:
            HostError: a host is lost.
        """
        return new_cache(backbone, prompt, room, self.decode)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        return read_in_blocks(backbone, reading, self.rows, self.approximate)
