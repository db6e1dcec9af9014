"""Jobs as bytes: tensors and plain data, of which reading runs no code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.models.visual_grid import Layout
from draftlens.prefill.spava.blocks import Blocks, Share
from draftlens.prefill.spava.kv_placement import Exchanges
from draftlens.prefill.spava.rank import Shard
from draftlens.prefill.spava.rank_attention import InShards
from draftlens.prefill.spava.ring_attention import Chunks, InRing
from draftlens.prefill.spava.sharded_cache import Along, Fetch
from draftlens.prefill.spava.sharded_scores import Readers
from draftlens.prefill.spava.vision import Encode

JOBS: tuple[type, ...] = (Along, Encode, Exchanges, Fetch, Shard)

PARTS: tuple[type, ...] = (
    Blocks,
    Chunks,
    InRing,
    InShards,
    Layout,
    Prompt,
    Readers,
    Share,
)
"""What jobs consist of, beside tensors, numbers, texts and their collections."""

ALLOWED = (*JOBS, *PARTS)


def packed(content: Any) -> memoryview:
    """A job and what goes with it as bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def unpacked(parcel: Tensor, device: torch.device, allowed: Sequence[type]) -> Any:
    """What `packed` was given.

    Args:
        parcel: bytes, uint8.
        device: of the tensors.
        allowed: classes whose objects may be made.

    Raises:
        ValueError: the bytes are no job, or hold objects of another class.
    """
    buffer = io.BytesIO(parcel.numpy().tobytes())
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(buffer, weights_only=True, map_location=device)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError("what it was sent is no job of tensors and plain data") from error
