"""Batches of pictures with their Markdown, equal to what the processor makes of them.

All pictures of a batch have one size, so all rows have the same number of visual tokens, and the
number of different shapes that a training meets is small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.pair.data import IGNORED
from recipes.reader.layout import make_crop, make_page
from recipes.reader.model import CELL, CONTRAST, MERGE, PATCH, WHITE
from recipes.reader.page import BULLET, NOT_SAID, Glyph, Page, render
from recipes.reader.scan import Scan, random_scan
from recipes.reader.tokenizer import END, IMAGE, PROMPT_AFTER, PROMPT_BEFORE
from recipes.reader.words import Split

SLOTS = 5  # characters that a cell is asked for; the fifth is an l among the narrowest
NOTHING = 0  # the class of a slot behind the last character
CHARACTERS = [chr(code) for code in range(33, 127)] + [BULLET]
CLASSES = {character: index + 1 for index, character in enumerate(CHARACTERS)}
LENGTH_STEP = 16  # batches are padded to a multiple of it


@dataclass(frozen=True)
class Bucket:
    """Pictures of one size.

    Args:
        width, height: in pixels, multiples of `CELL`.
        rows: pictures per batch.
        columns: columns of a page; 0 for crops.
        share: relative frequency of such batches.
        invented: probability that a word is invented.
        scans: share of the pictures that are scans.
        mixed: whether each block has a style of its own.
    """

    width: int
    height: int
    rows: int
    columns: int = 0
    share: float = 1.0
    invented: float = 0.5
    scans: float = 0.0
    mixed: bool = False

    @property
    def cells(self) -> int:
        """Visual tokens of a picture."""
        return (self.width // CELL) * (self.height // CELL)

    def draw(self, rng: np.random.Generator, split: Split) -> Page:
        """A random page or crop of this size."""
        if self.columns == 0:
            return make_crop(rng, split, self.width, self.height, self.invented, self.mixed)
        return make_page(
            rng, split, self.width, self.height, self.columns, self.invented, self.mixed
        )


@dataclass(frozen=True)
class Sample:
    """A picture and what is known about it.

    Args:
        patches: float32 ``[4 * cells, 3 * PATCH * PATCH]``, as the processor arranges them.
        answer: token ids of the Markdown and of its end.
        sight: int64 ``[cells, SLOTS]``, the classes of each cell's characters.
        cells: int64 ``[len(answer), 2]``, for each token the cells of its first and last character;
            for a token that stands for nothing visible, twice that of the next visible character.
    """

    patches: NDArray[np.float32]
    answer: list[int]
    sight: NDArray[np.int64]
    cells: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Pictures of one size; ``B`` rows, ``N`` cells, ``L`` tokens, of which ``A`` are the answer.

    Args:
        patches: float32 ``[B * 4 * N, 3 * PATCH * PATCH]``.
        grid: int64 ``[B, 3]``: frames, patches from top to bottom and from left to right.
        ids: int64 ``[B, L]``, padded on the right.
        positions: int64 ``[3, B, L]``: time, height and width.
        labels: int64 ``[B, A]``: the answer, which begins at ``start``; `IGNORED` behind its end.
        sight: int64 ``[B, N, SLOTS]``; `IGNORED` behind the first slot without a character.
        cells: int64 ``[B, A, 2]``, or `IGNORED`.
        first: index of the first visual token.
        start: index of the first token of the answers.
    """

    patches: torch.Tensor
    grid: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    sight: torch.Tensor
    cells: torch.Tensor
    first: int
    start: int


def batches(
    tokenizer: Any, buckets: tuple[Bucket, ...], seed: int, start: int, split: Split
) -> Iterator[Batch]:
    """Endless batches, beginning with number ``start``.

    Args:
        tokenizer: the reader's.
        buckets: sizes, one of which is drawn for each batch.
        seed: of the data.
        start: number of the first batch.
        split: which words and sizes may occur.
    """
    shares = np.array([bucket.share for bucket in buckets])
    for step in range(start, 2**31):
        rng = np.random.default_rng([seed, step])
        bucket = buckets[int(rng.choice(len(buckets), p=shares / shares.sum()))]
        samples = []
        for _ in range(bucket.rows):
            page = bucket.draw(rng, split)
            scan = random_scan(rng) if rng.random() < bucket.scans else None
            samples.append(encode(tokenizer, page, scan))
        yield collate(tokenizer, samples, bucket.width, bucket.height)


def encode(tokenizer: Any, page: Page, scan: Scan | None = None) -> Sample:
    """The tensors of a page, or of a scan of it."""
    picture = render(page)
    if scan is not None:
        picture = scan.apply(picture)
    encoded = tokenizer(page.markdown, return_offsets_mapping=True, add_special_tokens=False)
    answer = [*encoded["input_ids"], tokenizer.convert_tokens_to_ids(END)]
    sight, cell_of = _labels(page, scan)
    cells = _token_cells(cell_of, encoded["offset_mapping"])
    return Sample(patches(picture), answer, sight, cells)


def _labels(page: Page, scan: Scan | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each cell shows, int64 ``[cells, SLOTS]``, and the cell of each character of the
    Markdown, int64 ``[len(markdown) + 1]``."""
    rows = page.height // CELL
    columns = page.width // CELL
    sight = np.zeros((rows * columns, SLOTS), dtype=np.int64)
    used = np.zeros(rows * columns, dtype=np.int64)
    cell_of = np.full(len(page.markdown) + 1, IGNORED, dtype=np.int64)
    for glyph in page.glyphs:
        x, y = _place(glyph, page, scan)
        cell = int(y // CELL) * columns + int(x // CELL)
        if used[cell] < SLOTS:
            sight[cell, used[cell]] = CLASSES[glyph.character]
            used[cell] += 1
        if glyph.place != NOT_SAID:
            cell_of[glyph.place] = cell
    for cell in range(rows * columns):
        sight[cell, used[cell] + 1 :] = IGNORED
    return sight, cell_of


def _place(glyph: Glyph, page: Page, scan: Scan | None) -> tuple[float, float]:
    """Where the middle of a character is in the picture, in pixels."""
    if scan is None:
        return glyph.x, glyph.y
    x, y = scan.place(glyph.x, glyph.y, page.width, page.height)
    return min(max(x, 0.0), page.width - 1.0), min(max(y, 0.0), page.height - 1.0)


def patches(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The patches of a grey picture ``[H, W]``, as the processor arranges them.

    The four patches of a cell follow each other; the three colours are equal.
    """
    height, width = picture.shape
    shares = picture.astype(np.float32) / 255
    scaled = ((shares - WHITE) / CONTRAST).astype(np.float32)
    grid = scaled.reshape(height // CELL, MERGE, PATCH, width // CELL, MERGE, PATCH)
    arranged = grid.transpose(0, 3, 1, 4, 2, 5).reshape(-1, 1, PATCH * PATCH)
    coloured: NDArray[np.float32] = np.tile(arranged, (1, 3, 1))
    return coloured.reshape(-1, 3 * PATCH * PATCH)


def collate(tokenizer: Any, samples: list[Sample], width: int, height: int) -> Batch:
    """One batch of samples of the same size in pixels."""
    rows = height // CELL
    columns = width // CELL
    before = _ids(tokenizer, PROMPT_BEFORE)
    after = _ids(tokenizer, PROMPT_AFTER)
    image = [tokenizer.convert_tokens_to_ids(IMAGE)] * (rows * columns)
    prompt = torch.tensor([*before, *image, *after]).expand(len(samples), -1)
    room = _room(samples)
    answers = [torch.tensor(sample.answer) for sample in samples]
    cells = [torch.from_numpy(sample.cells) for sample in samples]
    padded = _padded(answers, room, tokenizer.pad_token_id)
    positions = rope_positions(len(before), rows, columns, len(after) + room)
    grid = [1, MERGE * rows, MERGE * columns]
    return Batch(
        patches=torch.from_numpy(np.concatenate([sample.patches for sample in samples])),
        grid=torch.tensor([grid] * len(samples)),
        ids=torch.cat([prompt, padded], dim=1),
        positions=positions[:, None].expand(-1, len(samples), -1),
        labels=_padded(answers, room, IGNORED),
        sight=torch.from_numpy(np.stack([sample.sight for sample in samples])),
        cells=_padded(cells, room, IGNORED),
        first=len(before),
        start=prompt.shape[1],
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _room(samples: list[Sample]) -> int:
    """Tokens of the longest answer, rounded up to a multiple of `LENGTH_STEP`."""
    longest = max(len(sample.answer) for sample in samples)
    return -(-longest // LENGTH_STEP) * LENGTH_STEP


def _padded(rows: list[torch.Tensor], length: int, filler: int) -> torch.Tensor:
    """Rows ``[L, ...]`` of different lengths as one tensor ``[B, length, ...]``."""
    stacked = torch.full((len(rows), length, *rows[0].shape[1:]), filler)
    for index, row in enumerate(rows):
        stacked[index, : len(row)] = row
    return stacked


def rope_positions(before: int, rows: int, columns: int, after: int) -> torch.Tensor:
    """Positions of Qwen2-VL's rotary embedding, int64 ``[3, L]``: time, height and width.

    Args:
        before: tokens before the picture.
        rows, columns: cells of the picture.
        after: tokens behind the picture.
    """
    text = torch.arange(before).expand(3, -1)
    time = torch.zeros(rows * columns, dtype=torch.int64)
    down = torch.arange(rows).repeat_interleave(columns)
    right = torch.arange(columns).repeat(rows)
    picture = torch.stack([time, down, right]) + before
    rest = torch.arange(after).expand(3, -1) + before + max(rows, columns)
    return torch.cat([text, picture, rest], dim=1)


def _token_cells(cell_of: NDArray[np.int64], offsets: list[tuple[int, int]]) -> NDArray[np.int64]:
    """The cells of each token's first and last character, int64 ``[len(offsets) + 1, 2]``.

    Args:
        cell_of: the cell of each character of the Markdown; `IGNORED` if it is not visible.
        offsets: where each token begins and ends.
    """
    cells = np.full((len(offsets) + 1, 2), IGNORED, dtype=np.int64)
    following = IGNORED
    position = len(cell_of)
    for index in range(len(offsets) - 1, -1, -1):
        start, end = offsets[index]
        last = IGNORED
        for position in range(end - 1, start - 1, -1):
            if cell_of[position] != IGNORED:
                following = int(cell_of[position])
                last = following if last == IGNORED else last
        cells[index] = following, following if last == IGNORED else last
    return cells
