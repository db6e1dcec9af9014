"""Random pages, and crops of pages."""

from dataclasses import replace

import numpy as np

from recipes.reader.blocks import Column, Composer, random_style
from recipes.reader.page import Page, Writer
from recipes.reader.words import Split, Wording


def make_crop(
    rng: np.random.Generator,
    split: Split,
    width: int,
    height: int,
    invented: float = 0.5,
    mixed: bool = False,
) -> Page:
    """A page that is a part of another page: a block or a few, with small margins.

    Args:
        rng: the source of randomness.
        split: which words and sizes may occur.
        width, height: of the crop in pixels; a single line fits in a height of 32.
        invented: probability that a word is invented.
        mixed: whether each block has a style of its own, from which more is learned.
    """
    style = random_style(rng, split)
    writer = Writer(width, height)
    composer = Composer(writer, Wording(rng, split, invented), style, mixed)
    # At times, part of the width stays empty.
    left = float(rng.uniform(2, 10))
    share = float(rng.choice((1.0, 1.0, rng.uniform(0.5, 1.0))))
    right = left + max(64.0, share * (width - left - 2))
    top = float(rng.uniform(1, 6))
    column = Column(left, top, min(right, width - 2.0), height - 1.0)
    kinds = ["paragraph", "paragraph", "paragraph", "bullets", "numbered"]
    if height < 64:
        kinds += ["heading"]
    elif width >= 224:
        kinds += ["table"]
    bottom = composer.block(str(rng.choice(kinds)), column, top)
    if rng.random() < 0.8:
        composer.fill(replace(column, top=bottom + 0.7 * style.size))
    return writer.page()


def make_page(
    rng: np.random.Generator,
    split: Split,
    width: int,
    height: int,
    columns: int = 1,
    invented: float = 0.4,
    mixed: bool = False,
) -> Page:
    """A whole page: at times a head and a foot, which the Markdown leaves out, and a title.

    Args:
        rng: the source of randomness.
        split: which words and sizes may occur.
        width, height: in pixels.
        columns: number of columns.
        invented: probability that a word is invented.
        mixed: whether each block has a style of its own, from which more is learned.
    """
    style = random_style(rng, split)
    writer = Writer(width, height)
    composer = Composer(writer, Wording(rng, split, invented), style, mixed)
    margin = float(rng.uniform(14, 40))
    top = margin
    bottom = height - margin
    if height >= 256 and rng.random() < 0.5:
        composer.edge("head", margin, top + 10)
        top += 34
    has_foot = height >= 256 and rng.random() < 0.5
    if has_foot:
        bottom -= 30
    if rng.random() < 0.5:
        whole = Column(margin, top, width - margin, bottom)
        top = composer.block("title", whole, top) + 12
    gutter = float(rng.uniform(18, 30))
    column_width = (width - 2 * margin - (columns - 1) * gutter) / columns
    fill = 1.0 if columns > 1 else float(rng.choice((1.0, rng.uniform(0.4, 1.0))))
    end = top + fill * (bottom - top)
    for index in range(columns):
        left = margin + index * (column_width + gutter)
        composer.fill(Column(left, top, left + column_width, end))
    if has_foot:
        composer.edge("foot", margin, height - margin)
    return writer.page()
