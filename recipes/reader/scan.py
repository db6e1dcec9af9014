"""Pages as a scanner would give them: a little turned, blurred, noisy, grey and compressed."""

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter


@dataclass(frozen=True)
class Scan:
    """What a scanner did to a page.

    Args:
        angle: by which the page is turned, in degrees against the clock.
        blur: radius of a Gaussian blur in pixels.
        paper: brightness of the paper, 255 for white.
        ink: brightness of the ink, 0 for black.
        noise: standard deviation of the noise, of 255.
        quality: of the JPEG compression, 1 to 95.
        seed: of the noise.
    """

    angle: float
    blur: float
    paper: float
    ink: float
    noise: float
    quality: int
    seed: int

    def apply(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The scan of a grey picture ``[H, W]``, of the same size."""
        image = Image.fromarray(picture)
        image = image.rotate(self.angle, Image.Resampling.BILINEAR, fillcolor=255)
        image = image.filter(ImageFilter.GaussianBlur(self.blur))
        shares = np.asarray(image, dtype=np.float32) / 255
        values = self.ink + (self.paper - self.ink) * shares
        noise = np.random.default_rng(self.seed).standard_normal(values.shape, dtype=np.float32)
        values = np.clip(values + self.noise * noise, 0, 255)
        file = io.BytesIO()
        Image.fromarray(values.astype(np.uint8)).save(file, "JPEG", quality=self.quality)
        return np.asarray(Image.open(file))

    def place(self, x: float, y: float, width: int, height: int) -> tuple[float, float]:
        """Where a point of a page of the given size is in its scan, in pixels."""
        right = x - width / 2
        down = y - height / 2
        turn = math.radians(self.angle)
        moved_right = math.cos(turn) * right + math.sin(turn) * down
        moved_down = math.cos(turn) * down - math.sin(turn) * right
        return width / 2 + moved_right, height / 2 + moved_down


def random_scan(rng: np.random.Generator) -> Scan:
    """A scan of fair quality."""
    return Scan(
        angle=float(rng.uniform(-0.7, 0.7)),
        blur=float(rng.uniform(0, 0.5)),
        paper=float(rng.uniform(215, 255)),
        ink=float(rng.uniform(0, 70)),
        noise=float(rng.uniform(0, 10)),
        quality=int(rng.integers(45, 95)),
        seed=int(rng.integers(0, 2**31)),
    )
