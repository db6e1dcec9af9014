"""Jobs as bytes: tensors and plain data. Unpacking runs no code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftlens.models.prompt import Prompt
from draftlens.models.visual_grid import GridLayout
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
    GridLayout,
    Prompt,
    Readers,
    Share,
)
"""Classes of which jobs consist, besides tensors, numbers, texts and their collections."""

ALLOWED = (*JOBS, *PARTS)


def packed(content: Any) -> memoryview:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def unpacked(parcel: Tensor, device: torch.device, allowed: Sequence[type]) -> Any:
    """The content of `packed` bytes (uint8), tensors on `device`. Only objects of the `allowed`
    classes are made; raises `ValueError` for others, or for bytes that are no job."""
    buffer = io.BytesIO(parcel.numpy().tobytes())
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(buffer, weights_only=True, map_location=device)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError("what it was sent is no job of tensors and plain data") from error
