"""An exact prefill by several ranks; keys and values travel around a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import FullPrefill, PrefillOutput, PrefillReading
from draftlens.prefill.spava.hosts import hosts_of
from draftlens.prefill.spava.kv_placement import check_decode, new_cache
from draftlens.prefill.spava.one_process import check_causal, check_directed
from draftlens.prefill.spava.rank_zero import Hand, OnRankZero, RowPart, read_by_ranks
from draftlens.prefill.spava.ring_attention import Chunks, InRing
from draftlens.prefill.spava.several import SeveralProcesses


@dataclass(frozen=True)
class RingPrefill(SeveralProcesses):
    """Reads prompts exactly, each rank its share of the tokens; the full prefill in one process.

    A row with fewer tokens than two for each rank is read by rank 0 alone.

    Args:
        decode: where keys and values are while the answer is decoded, with several processes:
            `"gathered"` on rank 0, `"sharded"` with those that read them, `"auto"` wherever there
            is memory and it is faster. It changes no token.
        hosts: number of processes that read prompts together, on the CPU of this machine; they are
            started with the model, or by its first request, end with it, and share the threads of
            torch. None: this process alone, or those of torchrun, where rank 0 answers and the
            other processes end with it.

    Raises:
        ConfigError: `decode` is unknown, or `hosts` no number of processes.

    Example:

        >>> RingPrefill().approximate
        ()
    """

    decode: str = "auto"
    hosts: int | None = None

    def __post_init__(self) -> None:
        check_decode(self.decode)
        self.check_hosts()

    @property
    def approximate(self) -> tuple[str, ...]:
        return ()

    def check(self, backbone: Backbone) -> None:
        check_directed(backbone)

    def new_cache(self, backbone: Backbone, prompt: Prompt, room: int) -> KVCache:
        """`Prefill.new_cache`; raises `HostError` if a rank is lost."""
        return new_cache(backbone, prompt, room, self.decode)

    def run(self, backbone: Backbone, reading: PrefillReading) -> PrefillOutput:
        """`Prefill.run`; raises `HostError` if a rank is lost."""
        hosts = hosts_of(backbone)
        lengths = reading.prompt.lengths
        min_length = 2 * hosts.size
        if hosts.size == 1 or max(lengths) < min_length:
            return FullPrefill().run(backbone, reading)
        check_causal(backbone, reading.prompt)
        hands = [_hand(lengths, rank, hosts.size, min_length) for rank in range(hosts.size)]
        return read_by_ranks(backbone, hosts, reading, hands)


def _hand(lengths: Sequence[int], rank: int, size: int, least: int) -> Hand:
    """The share of one rank; rows with fewer than `least` tokens are rank 0's."""
    rows: list[Chunks | None] = []
    parts: list[RowPart] = []
    for length in lengths:
        if length < least:
            rows.append(None)
            parts.append(OnRankZero(length, rank))
        else:
            chunks = Chunks(length, rank, size)
            rows.append(chunks)
            parts.append(chunks)
    return Hand(parts, InRing(tuple(rows)))
