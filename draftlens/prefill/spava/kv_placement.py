"""Placement of keys and values while decoding: on rank 0, or on the ranks that read the prompt."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import psutil
import torch

from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import BLOCK, KVCache
from draftlens.models.model_state import Slot
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.hosts import Hosts, hosts_of
from draftlens.prefill.spava.kernels import attend
from draftlens.prefill.spava.sharded_cache import ShardedCache

DECODES = ("auto", "gathered", "sharded")

NUM_EXCHANGES = 8
"""Messages by which the cost of one is measured."""

MESSAGE = 4096
"""Elements of such a message: some heads and tokens."""

BULK = 1 << 20
"""Elements by which the cost of moving keys is measured (4 MiB)."""

KEYS = 4096
"""Keys by which the cost of attention is measured."""


def check_decode(decode: object) -> None:
    """Raise `ConfigError` for an unknown placement."""
    if decode not in DECODES:
        raise ConfigError(f"unknown decode {decode!r}; known: {', '.join(DECODES)}")


def new_cache(backbone: Backbone, prompt: Prompt, room: int, decode: str) -> KVCache:
    """An empty cache for a prompt that several ranks may read; `decode` is one of `DECODES`."""
    hosts = hosts_of(backbone)
    if hosts.size == 1 or not is_sharded(backbone, prompt, room, decode):
        return backbone.new_cache(prompt, room)
    num_layers = backbone.text_config.num_hidden_layers
    capacity = max(prompt.lengths) // hosts.size + min(room, BLOCK)
    return ShardedCache(num_layers, len(prompt.lengths), capacity, hosts)


def is_sharded(backbone: Backbone, prompt: Prompt, room: int, decode: str) -> bool:
    """Whether keys and values stay with the ranks; for `auto` if rank 0 lacks the memory, or if it
    makes an answer of `room` tokens faster by measured costs. Raises `HostError`."""
    if decode != "auto":
        return decode == "sharded"
    shape = CacheShape.of(backbone)
    tokens = sum(prompt.lengths)
    if tokens * shape.bytes_per_token > free_bytes(backbone.device):
        return True
    costs = placement_costs(backbone, shape)
    return costs.sharded(tokens, room) < costs.gathered(tokens, room)


@dataclass(frozen=True)
class CacheShape:
    """Per token: layers, heads of queries and of keys, elements of a head, and dtype."""

    layers: int
    heads: int
    key_heads: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, backbone: Backbone) -> CacheShape:
        config = backbone.text_config
        heads = config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(config.num_hidden_layers, heads, key_heads, width, backbone.dtype)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values."""
        return 2 * self.layers * self.key_heads * self.width * self.dtype.itemsize


@dataclass(frozen=True)
class KeepingCosts:
    """Costs of decoding by placement, in seconds, without the costs that both share.

    Args:
        message: one exchange of small tensors.
        moving: moving the keys and values of one token to rank 0, in all layers.
        attention: attending to one more key in one layer.
    """

    size: int
    layers: int
    message: float
    moving: float
    attention: float

    def gathered(self, tokens: int, passes: int) -> float:
        """Keys move once, and rank 0 attends to all of them in `passes` decode passes."""
        elsewhere = tokens * (self.size - 1) / self.size
        return elsewhere * self.moving + passes * self.layers * tokens * self.attention

    def sharded(self, tokens: int, passes: int) -> float:
        """Each rank attends to its own keys, and every layer has an exchange."""
        return passes * self.layers * (self.message + tokens / self.size * self.attention)


_COSTS = Slot[KeepingCosts]("costs of decoding with several ranks")


def placement_costs(backbone: Backbone, shape: CacheShape) -> KeepingCosts:
    """The costs of a model's group, measured on first use. Raises `HostError`."""
    costs = _COSTS.get(backbone.model)
    if costs is None or costs.size != hosts_of(backbone).size:
        costs = _measured(backbone, shape)
        _COSTS.set(backbone.model, costs)
    return costs


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True)
class Exchanges:
    """Job: the exchanges that rank 0 times."""

    def run(self, backbone: Backbone, hosts: Hosts) -> None:
        small = torch.zeros(MESSAGE, device=backbone.device)
        for _ in range(NUM_EXCHANGES + 1):  # the first one connects
            hosts.all_gather(small, [MESSAGE] * hosts.size).wait()
        bulk = torch.zeros(BULK, device=backbone.device)
        hosts.gather(bulk, [BULK] * hosts.size).wait()


def _measured(backbone: Backbone, shape: CacheShape) -> KeepingCosts:
    hosts = hosts_of(backbone)
    small = torch.zeros(MESSAGE, device=backbone.device)
    bulk = torch.zeros(BULK, device=backbone.device)
    with hosts.answering():
        hosts.give([Exchanges()] * (hosts.size - 1))
        exchange = partial(hosts.all_gather, small, [MESSAGE] * hosts.size)
        exchange().wait()  # connects
        started = time.perf_counter()
        for _ in range(NUM_EXCHANGES):
            exchange().wait()
        message = (time.perf_counter() - started) / NUM_EXCHANGES
        started = time.perf_counter()
        hosts.gather(bulk, [BULK] * hosts.size).wait()
        per_byte = (time.perf_counter() - started) / ((hosts.size - 1) * bulk.nbytes)
    return KeepingCosts(
        size=hosts.size,
        layers=shape.layers,
        message=message,
        moving=per_byte * shape.bytes_per_token,
        attention=_attention_seconds(backbone.device, shape),
    )


def _attention_seconds(device: torch.device, shape: CacheShape) -> float:
    """Per query and key, in one layer."""
    query = torch.randn(shape.heads, 1, shape.width, device=device).to(shape.dtype)
    keys = torch.randn(shape.key_heads, KEYS, shape.width, device=device).to(shape.dtype)
    attend(query, keys, keys, 1.0).out.sum().item()  # warm-up
    started = time.perf_counter()
    for _ in range(NUM_EXCHANGES):
        out = attend(query, keys, keys, 1.0).out
    out.sum().item()  # waits for the device
    return (time.perf_counter() - started) / (NUM_EXCHANGES * KEYS)
