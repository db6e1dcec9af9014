"""Pixels encoded by several ranks (SPAVA, eq. 3 and 6): rank h of H encodes floor(F/H) + [h < F mod
H] of F frames, by the model's own encoder. Rank 0 deals the pixels and receives the features. The
reference in one process is `generate`, which encodes all pixels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from draftlens.models.media_features import (
    ENCODED,
    FeaturePieces,
    completed,
    encode,
    encoder_arguments,
)
from draftlens.models.pixel_split import PIXELS, Shares, pixel_shares
from draftlens.models.prompt import Encoded
from draftlens.prefill.spava.blocks import near_equal_parts
from draftlens.prefill.spava.hosts import Hosts

MODALITIES = {"image": "pictures", "video": "videos"}
"""Modalities, and their names in messages."""


def encode_by_ranks(model: Any, hosts: Hosts, inputs: Mapping[str, Any]) -> Encoded:
    """Encode the pixels among the arguments of `generate`, on the model's device, by all ranks;
    called on rank 0. Raises `HostError` if a rank is lost."""
    remaining = dict(inputs)
    notes = []
    outputs: dict[str, Any] = dict(remaining.get(ENCODED) or {})
    for modality, words in MODALITIES.items():
        arguments = encoder_arguments(model, modality, remaining)
        if not any(name in arguments for name in PIXELS):
            continue
        shares = None
        if ENCODED in inspect.signature(model.forward).parameters:
            shares = pixel_shares(model.config.model_type, modality, arguments)
        if shares is None:
            notes.append(f"{words} were encoded by one host: they cannot be divided exactly")
        elif shares.units < 2:
            notes.append(f"{words} were encoded by one host: there is only one to encode")
        else:
            outputs[modality] = _encoded(model, hosts, modality, shares)
            for name in PIXELS:
                if name in arguments:
                    del remaining[name]
    if outputs:
        remaining[ENCODED] = outputs
    return Encoded(remaining, tuple(notes))


def _encoded(model: Any, hosts: Hosts, modality: str, shares: Shares) -> Any:
    """The output of the model's encoder for all units."""
    edges = [0, *accumulate(near_equal_parts(shares.units, hosts.size))]
    spans = list(pairwise(edges))
    jobs = [_job(modality, shares, first, last) for first, last in spans]
    with hosts.answering():
        hosts.give(jobs[1:])
        output = jobs[0].output(model)
        pieces = _Pieces.of(output, jobs[0].dropped)
        lengths = hosts.gather(pieces.lengths, [job.num_pieces for job in jobs]).wait()
        per_token = pieces.elements_per_token
        sizes = [per_token * int(tokens.sum()) for tokens in lengths]
        messages = hosts.gather(pieces.message, sizes).wait()
    groups = [shares.groups_of(first, last) for first, last in spans]
    levels = _grouped(pieces, lengths, messages, groups, shares.groups)
    return completed(output, levels, shares.num_states)


def _job(modality: str, shares: Shares, first: int, last: int) -> Encode:
    if first == last:
        return Encode(modality, {}, 0, 0)
    pieces = len(shares.groups_of(first, last))
    return Encode(modality, shares.arguments(first, last), pieces, shares.dropped(last))


@dataclass(frozen=True)
class Encode:
    """Job: encode some pixels and send rank 0 their features, `num_pieces` tensors without the last
    `dropped` tokens of each. Without arguments this rank encodes nothing."""

    modality: str
    arguments: dict[str, Any]
    num_pieces: int
    dropped: int

    def run(self, backbone: Any, hosts: Hosts) -> None:
        if not self.num_pieces:
            nothing = torch.empty(0, device=backbone.device)
            hosts.gather(nothing).wait()
            hosts.gather(nothing).wait()
            return
        pieces = _Pieces.of(self.output(backbone.model), self.dropped)
        hosts.gather(pieces.lengths).wait()
        hosts.gather(pieces.message).wait()

    def output(self, model: Any) -> Any:
        return encode(model, self.modality, self.arguments)


@dataclass(frozen=True)
class _Pieces(FeaturePieces):
    """Features as they are sent to rank 0."""

    @classmethod
    def of(cls, output: Any, dropped: int = 0) -> _Pieces:
        return cls(FeaturePieces.of(output, dropped).levels)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each piece, int64."""
        first = self.levels[0]
        return torch.tensor([len(piece) for piece in first], device=first[0].device)

    @property
    def elements_per_token(self) -> int:
        """Elements of one token, in all levels."""
        return len(self.levels) * self.levels[0][0].shape[-1]

    @property
    def message(self) -> Tensor:
        """All features, level by level and piece by piece, as one flat tensor."""
        return torch.cat([piece.flatten() for level in self.levels for piece in level])


def _grouped(
    own: _Pieces,
    lengths: Sequence[Tensor],
    messages: Sequence[Tensor],
    groups: Sequence[Sequence[int]],
    num_groups: int,
) -> list[list[Tensor]]:
    """The features of all ranks by level and group, from rank 0's own pieces, the tokens of each
    piece and the message of each rank, and the group of each piece."""
    width = own.levels[0][0].shape[-1]
    empty = own.levels[0][0].new_empty(0, width)
    parts = [[[empty] for _ in range(num_groups)] for _ in own.levels]
    for tokens, message, of_pieces in zip(lengths, messages, groups, strict=True):
        first = 0
        for level in parts:
            for number, group in zip(tokens.tolist(), of_pieces, strict=True):
                end = first + number * width
                level[group].append(message[first:end].view(number, width))
                first = end
    return [[torch.cat(pieces) for pieces in level] for level in parts]
