"""What the language model reads at each token, as a digest: two prompts with equal digests up to a
token have equal keys and values up to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from draftlens.models.prefix_tree import DIGEST_BYTES
from draftlens.models.prompt import Prompt


def prompt_digests(prompt: Prompt, row: int) -> np.ndarray:
    """Digests of a row's tokens, uint8 ``[length, DIGEST_BYTES]``: of their embeddings (which are
    the vision features of visual tokens), positions and further features."""
    length = prompt.lengths[row]
    visual = prompt.visual[row, :length]
    tokens = _tokens(prompt.embeds[row, :length], prompt.position_ids[..., row, :length])
    features = [_bytes(value) for value in _visual_features(prompt, row)]
    digests = []
    place = 0  # among the visual tokens of the row
    for token, is_visual in zip(tokens, visual.tolist(), strict=True):
        digest = blake2b(token.tobytes(), digest_size=DIGEST_BYTES)
        if is_visual:
            for value in features:
                digest.update(value[place].tobytes())
            place += 1
        digests.append(digest.digest())
    return _table(digests)


def answer_digests(embeds: Tensor, positions: Tensor) -> np.ndarray:
    """Digests of text tokens with embeddings ``[T, D]`` and positions ``[..., T]``."""
    tokens = _tokens(embeds, positions)
    return _table(blake2b(token.tobytes(), digest_size=DIGEST_BYTES).digest() for token in tokens)


def content_digest(values: Iterable[tuple[str, object]]) -> bytes:
    """A digest of named tensors and plain values."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, value in values:
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(_bytes(value.reshape(1, -1)).tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.digest()


def _visual_features(prompt: Prompt, row: int) -> list[Tensor]:
    """Further features of a row's visual tokens (deepstack), each ``[n, D]``."""
    before = int(prompt.visual[:row].sum())
    row_slice = slice(before, before + int(prompt.visual[row].sum()))
    features: list[Tensor] = []
    for value in prompt.extra.values():
        value = list(value.values()) if isinstance(value, dict) else value
        if isinstance(value, (list, tuple)):
            features += [part[row_slice] for part in value if isinstance(part, Tensor)]
    return features


def _tokens(embeds: Tensor, positions: Tensor) -> np.ndarray:
    """Embeddings ``[T, D]`` and positions ``[..., T]`` as bytes of each token."""
    places = positions.reshape(-1, positions.shape[-1]).T
    return np.concatenate([_bytes(embeds), _bytes(places)], 1)


def _bytes(values: Tensor) -> np.ndarray:
    """Values ``[T, ...]`` as uint8 ``[T, W]``."""
    flat = values.detach().cpu().reshape(-1).contiguous()
    width = math.prod(values.shape[1:]) * values.element_size()
    return flat.view(torch.uint8).reshape(len(values), width).numpy()


def _table(digests: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
