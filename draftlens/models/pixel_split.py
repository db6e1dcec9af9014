"""How the pixels of a batch are divided into shares that can be encoded separately. The unit is a
frame of a video, or a picture (or, where items are cached, a video): vision towers attend within a
unit only, so the concatenated features of the shares are those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

PIXELS = ("pixel_values", "pixel_values_videos")


class Shares:
    """The pixels of one modality, unit by unit."""

    @property
    def num_states(self) -> int | None:
        """Entries of the encoder's hidden states, where they are read (`models.visual_grid`)."""
        return None

    @property
    def units(self) -> int:
        """Number of frames or pictures."""
        raise NotImplementedError

    @property
    def groups(self) -> int:
        """Number of feature tensors that the model makes."""
        raise NotImplementedError

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        """Arguments of the encoder for the units from `first` up to `last`, at least one."""
        raise NotImplementedError

    def groups_of(self, first: int, last: int) -> list[int]:
        """The group of each feature tensor that the encoder makes of these units. A group consists
        of the pieces of all shares, in order."""
        raise NotImplementedError

    def dropped(self, last: int) -> int:
        """Tokens to drop at the end of each of these tensors."""
        return 0

    def items(self) -> list[tuple[int, int]]:
        """First and last unit (exclusive) of each picture or video."""
        return [(unit, unit + 1) for unit in range(self.units)]


@dataclass(frozen=True)
class Pictures(Shares):
    """Pictures along the first dimension, `sizes` in each unit, and further arguments with an entry
    for each. With `batch_num_images` the pictures of a prompt stay together, because the model cuts
    a picture into patches only if it is alone."""

    inputs: Mapping[str, Any]
    sizes: Sequence[int]

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Pictures | None:
        """None if these arguments cannot be divided."""
        pixels = inputs["pixel_values"]
        numbers = inputs.get("batch_num_images")
        sizes = [1] * len(pixels) if numbers is None else [int(n) for n in numbers if n]
        if sum(sizes) != len(pixels):
            return None
        return cls(inputs, sizes)

    @property
    def units(self) -> int:
        return len(self.sizes)

    @property
    def groups(self) -> int:
        return sum(self.sizes)

    def _span(self, first: int, last: int) -> slice:
        ends = [0, *accumulate(self.sizes)]
        return slice(ends[first], ends[last])

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        span = self._span(first, last)
        arguments = dict(self.inputs)
        for name in ("pixel_values", "image_sizes"):
            if arguments.get(name) is not None:
                arguments[name] = arguments[name][span]
        numbers = arguments.get("batch_num_images")
        if numbers is not None:
            arguments["batch_num_images"] = torch.tensor(self.sizes[first:last])
        return arguments

    def groups_of(self, first: int, last: int) -> list[int]:
        span = self._span(first, last)
        return list(range(span.start, span.stop))


@dataclass(frozen=True)
class SizedPictures(Pictures):
    """Pictures of the sizes `image_sizes`, which are padded to the largest of a batch."""

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        arguments = super().arguments(first, last)
        height, width = torch.as_tensor(arguments["image_sizes"]).amax(0).tolist()
        arguments["pixel_values"] = arguments["pixel_values"][..., :height, :width].contiguous()
        return arguments


@dataclass(frozen=True)
class Videos(Shares):
    """Videos ``[V, F, C, H, W]``, video by video."""

    inputs: Mapping[str, Any]

    @property
    def units(self) -> int:
        return len(self.inputs["pixel_values_videos"])

    @property
    def groups(self) -> int:
        return self.units

    @property
    def num_states(self) -> int:
        """One for each frame."""
        return self.units * int(self.inputs["pixel_values_videos"].shape[1])

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        return {
            **self.inputs,
            "pixel_values_videos": self.inputs["pixel_values_videos"][first:last],
        }

    def groups_of(self, first: int, last: int) -> list[int]:
        return list(range(first, last))


@dataclass(frozen=True)
class Frames(Shares):
    """Videos ``[V, F, C, H, W]``; the model appends one token to the features of each."""

    inputs: Mapping[str, Any]

    @property
    def units(self) -> int:
        return int(self.inputs["pixel_values_videos"].shape[1])

    @property
    def groups(self) -> int:
        return len(self.inputs["pixel_values_videos"])

    @property
    def num_states(self) -> int:
        """One for each frame."""
        return self.units * self.groups

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        frames = self.inputs["pixel_values_videos"][:, first:last]
        return {**self.inputs, "pixel_values_videos": frames.contiguous()}

    def groups_of(self, first: int, last: int) -> list[int]:
        return list(range(self.groups))

    def dropped(self, last: int) -> int:
        """The appended token, but for the last frames."""
        return int(last < self.units)

    def items(self) -> list[tuple[int, int]]:
        return [(0, self.units)]


@dataclass(frozen=True)
class Grids(Shares):
    """Pictures and videos as patches ``[P, D]``, with grids (t, h, w), int64 ``[V, 3]``."""

    inputs: Mapping[str, Any]
    pixels: str
    grid: str

    @classmethod
    def of_pictures(cls, inputs: Mapping[str, Any]) -> Grids:
        return cls(inputs, "pixel_values", "image_grid_thw")

    @classmethod
    def of_videos(cls, inputs: Mapping[str, Any]) -> Grids:
        return cls(inputs, "pixel_values_videos", "video_grid_thw")

    @property
    def units(self) -> int:
        return int(self.inputs[self.grid][:, 0].sum())

    @property
    def groups(self) -> int:
        return len(self.inputs[self.grid])

    def _pieces(self, first: int, last: int) -> list[tuple[int, int]]:
        """The videos of these units, and how many of the units each has."""
        pieces = []
        end = 0
        for video, length in enumerate(self.inputs[self.grid][:, 0].tolist()):
            start = end
            end += length
            shared = min(end, last) - max(start, first)
            if shared > 0:
                pieces.append((video, shared))
        return pieces

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        grid = self.inputs[self.grid]
        patches = (grid[:, 1] * grid[:, 2]).repeat_interleave(grid[:, 0])  # of each unit
        begin = int(patches[:first].sum())
        end = begin + int(patches[first:last].sum())
        pieces = self._pieces(first, last)
        cut = grid[[video for video, _ in pieces]]
        cut[:, 0] = torch.tensor([number for _, number in pieces])
        return {**self.inputs, self.pixels: self.inputs[self.pixels][begin:end], self.grid: cut}

    def groups_of(self, first: int, last: int) -> list[int]:
        return [video for video, _ in self._pieces(first, last)]

    def items(self) -> list[tuple[int, int]]:
        ends = [0, *accumulate(self.inputs[self.grid][:, 0].tolist())]
        return list(pairwise(ends))


@dataclass(frozen=True)
class PaddedPictures(Shares):
    """Pictures ``[B, N, C, H, W]`` of B prompts, padded by pictures of zeros, which the model
    skips; `real` has prompt and index of the others, int64 ``[n, 2]``."""

    inputs: Mapping[str, Any]
    real: Tensor

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> PaddedPictures | None:
        """None if all pictures are padding."""
        real = (inputs["pixel_values"] != 0).flatten(2).any(-1).nonzero()
        return cls(inputs, real) if len(real) else None

    @property
    def units(self) -> int:
        return len(self.real)

    @property
    def groups(self) -> int:
        return len(self.inputs["pixel_values"])

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        prompts, places = self.real[first:last].unbind(1)
        arguments = dict(self.inputs)
        for name in ("pixel_values", "pixel_attention_mask"):
            if arguments.get(name) is not None:
                arguments[name] = arguments[name][prompts, places][:, None]
        return arguments

    def groups_of(self, first: int, last: int) -> list[int]:
        prompts: list[int] = self.real[first:last, 0].tolist()
        return prompts


Maker = Callable[[Mapping[str, Any]], Shares | None]

MAKERS: Mapping[tuple[str, str], Maker] = {
    ("llava", "image"): Pictures.of,
    ("llava_next", "image"): Pictures.of,
    ("llava_onevision", "image"): Pictures.of,
    ("llava_onevision", "video"): Frames,
    ("internvl", "image"): Pictures.of,
    ("smolvlm", "image"): PaddedPictures.of,
    ("qwen2_vl", "image"): Grids.of_pictures,
    ("qwen2_vl", "video"): Grids.of_videos,
    ("qwen2_5_vl", "image"): Grids.of_pictures,
    ("qwen2_5_vl", "video"): Grids.of_videos,
    ("qwen3_vl", "image"): Grids.of_pictures,
    ("qwen3_vl", "video"): Grids.of_videos,
    ("glm_ocr", "image"): Grids.of_pictures,
    ("hunyuan_vl", "image"): Grids.of_pictures,
    ("paddleocr_vl", "image"): Grids.of_pictures,
    ("lighton_ocr", "image"): SizedPictures.of,
    ("got_ocr2", "image"): Pictures.of,
    ("qianfan_ocr", "image"): Pictures.of,
    ("idefics3", "image"): PaddedPictures.of,
}
"""How the pixels of a family are divided, by its `model_type` and the modality."""


def pixel_shares(model_type: str, modality: str, inputs: Mapping[str, Any]) -> Shares | None:
    """The shares of the pixels of one modality (`image` or `video`), from the encoder's arguments;
    None if the family is unknown, or these pixels cannot be divided."""
    maker = MAKERS.get((model_type, modality))
    return None if maker is None else maker(inputs)


def pixel_items(model_type: str, modality: str, inputs: Mapping[str, Any]) -> Shares | None:
    """As `pixel_shares`, so that each picture and each video can be encoded by itself."""
    if (model_type, modality) == ("llava_onevision", "video"):
        return Videos(inputs)
    return pixel_shares(model_type, modality, inputs)
