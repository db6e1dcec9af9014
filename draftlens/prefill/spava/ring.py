"""An exact prefill by several hosts, whose keys and values travel around a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt
from draftlens.prefill.base import PrefillOutput
from draftlens.prefill.full import FullPrefill
from draftlens.prefill.reading import Reading
from draftlens.prefill.spava.kv_placement import check_decode, new_cache
from draftlens.prefill.spava.one_process import check_directed
from draftlens.prefill.spava.rank_zero import Hand, Held, OnRankZero, read_by_hosts
from draftlens.prefill.spava.ring_attention import Chunks, InRing
from draftlens.prefill.spava.several import SeveralProcesses


@dataclass(frozen=True)
class RingPrefill(SeveralProcesses):
    """Reads prompts exactly, each host its share of the tokens; with one process it is the full
    prefill.

    A row with fewer tokens than two for each host is read by rank 0 alone.

    Args:
        decode: where keys and values are while the answer is decoded, with several processes:
            `"gathered"` on rank 0, `"sharded"` with those that read them, `"auto"` wherever there
            is memory and it is faster. It changes no token.

    Raises:
        ConfigError: `decode` is unknown.

    Example:

        >>> RingPrefill().approximate
        ()
    """

    decode: str = "auto"

    def __post_init__(self) -> None:
        check_decode(self.decode)

    @property
    def approximate(self) -> tuple[str, ...]:
        """Nothing differs."""
        return ()

    def check(self, backbone: Backbone) -> None:
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
            HostError: a host is lost.
        """
        hosts = backbone.hosts
        lengths = reading.prompt.lengths
        least = 2 * hosts.size
        if hosts.size == 1 or max(lengths) < least:
            return FullPrefill().run(backbone, reading)
        hands = [_hand(lengths, rank, hosts.size, least) for rank in range(hosts.size)]
        return read_by_hosts(backbone, hosts, reading, hands)


def _hand(lengths: Sequence[int], rank: int, size: int, least: int) -> Hand:
    """The share of one rank; rows with fewer than `least` tokens are rank 0's."""
    rows: list[Chunks | None] = []
    held: list[Held] = []
    for length in lengths:
        if length < least:
            rows.append(None)
            held.append(OnRankZero(length, rank))
        else:
            chunks = Chunks(length, rank, size)
            rows.append(chunks)
            held.append(chunks)
    return Hand(held, InRing(tuple(rows)))
