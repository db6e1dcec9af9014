"""Words and numbers as masks, in the fonts of matplotlib, which are equal on all machines."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

_FONT_FILES = {
    "sans": "DejaVuSans-Bold.ttf",
    "serif": "DejaVuSerif-Bold.ttf",
    "mono": "DejaVuSansMono-Bold.ttf",
}
_CAPITAL_HEIGHT = 0.73  # height of capitals as a share of the font size


@lru_cache(maxsize=8192)
def mask(text: str, font: str, width: int, height: int) -> NDArray[np.float32]:
    """The coverage of each pixel by a text in capitals, centred in a box.

    Args:
        width: width of the box in pixels.
        height: height of the box in pixels, which is also the font size.

    Returns:
        float32 ``[height, width]`` in 0..1.
    """
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FONT_FILES[font]
    picture = Image.new("L", (width, height))
    truetype = ImageFont.truetype(str(file), height, layout_engine=ImageFont.Layout.BASIC)
    baseline_middle = (width / 2, height / 2 + _CAPITAL_HEIGHT * height / 2)
    draw = ImageDraw.Draw(picture)
    draw.text(baseline_middle, text.upper(), fill=255, font=truetype, anchor="ms")
    coverage: NDArray[np.float32] = np.asarray(picture, dtype=np.float32) / np.float32(255)
    return coverage
