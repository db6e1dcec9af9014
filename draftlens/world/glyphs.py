"""Words and numbers as masks, in the fonts that matplotlib carries: the same ones on every
machine."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

_FILES = {
    "sans": "DejaVuSans-Bold.ttf",
    "serif": "DejaVuSerif-Bold.ttf",
    "mono": "DejaVuSansMono-Bold.ttf",
}


@lru_cache(maxsize=8192)
def mask(text: str, font: str, width: int, height: int) -> NDArray[np.float32]:
    """Cover ``[height, width]`` float32 in 0..1 of the text in capitals, centred, as high as the
    box allows.

    Raises:
        ModuleNotFoundError: matplotlib is missing; ``pip install "draftlens[train]"`` brings it.
    """
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FILES[font]
    picture = Image.new("L", (width, height))
    # Capitals are 0.73 of a font's size high; the box's rest is margin.
    sized = ImageFont.truetype(str(file), height, layout_engine=ImageFont.Layout.BASIC)
    middle = (width / 2, height / 2 + 0.73 * height / 2)
    ImageDraw.Draw(picture).text(middle, text.upper(), fill=255, font=sized, anchor="ms")
    cover: NDArray[np.float32] = np.asarray(picture, dtype=np.float32) / np.float32(255)
    return cover
