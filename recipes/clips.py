"""Makes the bundled clips and the bundled picture: ``python -m recipes.clips [FOLDER]``.

Each file has a JSON record with its facts beside it. With ``--check`` the embedded target describes
the existing files, and its answers are compared with their facts. With ``--sheet FILE`` a contact
sheet of the world is drawn, which docs/world.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from draftlens_lab.world import (
    HELD_OUT,
    Facts,
    Scene,
    caption,
    facts,
    render,
    render_still,
    right_facts,
    sample_scene,
    sample_still,
    still_caption,
    still_facts,
)
from draftlens_lab.world.files import RATE, Frames, png, write_clip
from numpy.typing import NDArray
from PIL import Image

EMBEDDED = Path(__file__).resolve().parents[1] / "draftlens" / "embedded"
CLIPS = EMBEDDED / "clips"
SIDE = 256  # pixels
SECONDS = 4
VIDEO_PROMPT = "Describe the video."
IMAGE_PROMPT = "Describe the image."
NUM_CHECKED_FRAMES = 8

# Held-out scenes with many events; the evaluated held-out scenes are others. "shapes" has one shot,
# two bumps, two other motions and a secret on a card; "drift" has two shots and six motions.
CLIP_SEEDS = {"shapes": HELD_OUT + 12_344, "drift": HELD_OUT + 10_130}
PICTURE_SEEDS = {"shapes": HELD_OUT + 10_391}

# Held-out scenes of the contact sheet.
SHEET_CLIP_SEEDS = (HELD_OUT + 10_627, HELD_OUT + 11_121, HELD_OUT + 10_280)
SHEET_PICTURE_SEEDS = range(HELD_OUT + 10_370, HELD_OUT + 10_378)
SHEET_COLOURS = 128


@dataclass(frozen=True)
class CheckResult:
    """A model's description of one file.

    Args:
        num_right: number of facts that the description states correctly.
        num_facts: number of facts in the file's record.
        text: the description.
    """

    num_right: int
    num_facts: int
    text: str


def sampled_frames(path: Path, count: int) -> Frames:
    """The frames at the midpoints of ``count`` equal parts of a clip.

    Returns:
        uint8 RGB ``[count, H, W, 3]``.
    """
    times = []
    frames = []
    with av.open(str(path)) as file:
        for frame in file.decode(video=0):
            times.append(frame.time or 0.0)
            frames.append(frame.to_ndarray(format="rgb24"))
        duration = float(file.duration or 0) / av.time_base
    midpoints = (np.arange(count) + 0.5) * duration / count
    indices = np.searchsorted(np.array(times), midpoints + 1e-6, side="right") - 1
    return np.stack([frames[int(index)] for index in indices])


def make(folder: Path = CLIPS) -> None:
    """Write the clips, the picture and their records."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in CLIP_SEEDS.items():
        scene = sample_scene(seed)
        write_clip(folder / f"{name}.mp4", render(scene, RATE * SECONDS, SIDE))
        record = _record(scene, VIDEO_PROMPT, caption(scene), facts(scene))
        (folder / f"{name}.mp4.json").write_text(record)
    for name, seed in PICTURE_SEEDS.items():
        scene = sample_still(seed)
        (folder / f"{name}.png").write_bytes(png(render_still(scene, SIDE)))
        record = _record(scene, IMAGE_PROMPT, still_caption(scene), still_facts(scene))
        (folder / f"{name}.png.json").write_text(record)


def check(model: Any, processor: Any, folder: Path = CLIPS) -> dict[str, CheckResult]:
    """Let a model describe every file that has a record; the results by file name."""
    from recipes.pair.answers import answer

    results = {}
    for record_file in sorted(folder.glob("*.json")):
        record = json.loads(record_file.read_text())
        media_file = record_file.with_suffix("")
        is_picture = media_file.suffix == ".png"
        if is_picture:
            media = np.array(Image.open(media_file).convert("RGB"))
        else:
            media = sampled_frames(media_file, NUM_CHECKED_FRAMES)
        text = answer(model, processor, [media], [record["prompt"]], is_picture)[0]
        num_right, num_facts = right_facts(text, record["facts"])
        results[media_file.name] = CheckResult(num_right, num_facts, text)
    return results


def draw_sheet(path: Path, side: int = 128, columns: int = 8, gap: int = 4) -> None:
    """Draw a PNG with one row of frames per clip, in temporal order, and a row of pictures.

    Args:
        path: the file to write.
        side: size of a frame in pixels.
        columns: frames per clip.
        gap: space between frames in pixels.
    """
    rows = [render(sample_scene(seed), columns, side) for seed in SHEET_CLIP_SEEDS]
    pictures = [render_still(sample_still(seed), side) for seed in SHEET_PICTURE_SEEDS]
    rows.append(np.stack(pictures))
    image = Image.fromarray(_tile(rows, side, columns, gap))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(SHEET_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.clips", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=CLIPS, help="default: the package's folder"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the target's descriptions with the facts"
    )
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="draw a contact sheet")
    options = parser.parse_args()
    if options.sheet:
        draw_sheet(options.sheet)
    elif options.check:
        _print_check(options.folder)
    else:
        make(options.folder)


def _record(scene: Scene, prompt: str, description: str, scene_facts: Facts) -> str:
    """The JSON record of a file."""
    record = {
        "seed": scene.seed,
        "prompt": prompt,
        "caption": description,
        "facts": scene_facts,
    }
    return json.dumps(record, indent=2) + "\n"


def _tile(
    rows: Sequence[NDArray[np.uint8]], side: int, columns: int, gap: int
) -> NDArray[np.uint8]:
    """Rows of frames uint8 ``[columns, side, side, 3]`` on a white sheet ``[H, W, 3]``."""
    pitch = side + gap
    sheet = np.full((len(rows) * pitch - gap, columns * pitch - gap, 3), 255, np.uint8)
    for row, frames in enumerate(rows):
        for column, frame in enumerate(frames):
            top = row * pitch
            left = column * pitch
            sheet[top : top + side, left : left + side] = frame
    return sheet


def _print_check(folder: Path) -> None:
    from recipes.pair.export import load

    model, processor = load(EMBEDDED / "target")
    for name, result in check(model, processor, folder).items():
        print(f"{name}: {result.num_right} of {result.num_facts} facts right: {result.text}")


if __name__ == "__main__":
    main()
