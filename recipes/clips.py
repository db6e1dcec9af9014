"""Makes the bundled world clips and picture again: ``python -m recipes.clips``, or ``... FOLDER``.

Each comes with a JSON record of what is right to say about it. With ``--check`` the embedded target
is asked to describe them, from the files as they are, and every fact is compared. With ``--sheet
FILE`` a contact sheet of the world is drawn instead, as docs/world.md shows it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from draftlens.world import (
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
from draftlens.world.files import RATE, Frames, png, write_clip

EMBEDDED = Path(__file__).resolve().parents[1] / "draftlens" / "embedded"
CLIPS = EMBEDDED / "clips"
SIDE, SECONDS = 256, 4  # pixels, seconds
# Held-out scenes in which much happens; the measured held-out scenes are others. "shapes" has one
# shot, two bumps, an entrance and a secret on a card; "drift" two shots and seven different
# motions.
MOVING = {"shapes": HELD_OUT + 10_075, "drift": HELD_OUT + 10_107}
STILL = {"shapes": HELD_OUT + 10_372}
SHEET_CLIPS, SHEET_STILLS = (
    (10_627, 11_121, 10_280),
    range(10_370, 10_378),
)  # of the contact sheet, held out


def sampled_frames(path: Path, count: int) -> Frames:
    """The frames shown at the midpoints of ``count`` equal parts of the clip: ``[count, H, W, 3]``
    uint8 RGB."""
    with av.open(str(path)) as file:
        shown = [
            (frame.time or 0.0, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)
        ]
        duration = float(file.duration or 0) / av.time_base
    times = np.array([time for time, _ in shown])
    wanted = (np.arange(count) + 0.5) * duration / count
    picks = np.searchsorted(times, wanted + 1e-6, side="right") - 1
    return np.stack([shown[int(i)][1] for i in picks])


def _record(scene: Scene, said: str, known: Facts, prompt: str) -> str:
    record = {"seed": scene.seed, "prompt": prompt, "caption": said, "facts": known}
    return json.dumps(record, indent=2) + "\n"


def make(folder: Path = CLIPS) -> None:
    """Writes the clips, the picture and their records."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in MOVING.items():
        scene = sample_scene(seed)
        write_clip(folder / f"{name}.mp4", render(scene, RATE * SECONDS, SIDE))
        record = _record(scene, caption(scene), facts(scene), "Describe the video.")
        (folder / f"{name}.mp4.json").write_text(record)
    for name, seed in STILL.items():
        scene = sample_still(seed)
        (folder / f"{name}.png").write_bytes(png(render_still(scene, SIDE)))
        record = _record(scene, still_caption(scene), still_facts(scene), "Describe the image.")
        (folder / f"{name}.png.json").write_text(record)


def check(model: Any, processor: Any, folder: Path = CLIPS) -> dict[str, tuple[int, int, str]]:
    """For every bundled file with a record: right facts, all facts and what the model said."""
    from recipes.pair.answers import answer

    results = {}
    for file in sorted(folder.glob("*.json")):
        record, media = json.loads(file.read_text()), file.with_suffix("")
        still = media.suffix == ".png"
        shown = np.array(Image.open(media).convert("RGB")) if still else sampled_frames(media, 8)
        text = answer(model, processor, [shown], [record["prompt"]], still)[0]
        results[media.name] = (*right_facts(text, record["facts"]), text)
    return results


def draw_sheet(path: Path, side: int = 128, columns: int = 8, gap: int = 4) -> None:
    """Rows of a clip's frames in order of time, then a row of pictures, as one PNG of few
    colours."""
    rows = [render(sample_scene(HELD_OUT + seed), columns, side) for seed in SHEET_CLIPS]
    stills = [render_still(sample_still(HELD_OUT + seed), side) for seed in SHEET_STILLS]
    rows.append(np.stack(stills))
    sheet = np.full(
        (len(rows) * (side + gap) - gap, columns * (side + gap) - gap, 3), 255, np.uint8
    )
    for row, frames in enumerate(rows):
        for column, frame in enumerate(frames):
            top, left = row * (side + gap), column * (side + gap)
            sheet[top : top + side, left : left + side] = frame
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet).quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.clips", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=CLIPS, help="by default that of the package"
    )
    parser.add_argument(
        "--check", action="store_true", help="only ask the embedded target about the files"
    )
    parser.add_argument(
        "--sheet", type=Path, metavar="FILE", help="only draw a contact sheet of the world"
    )
    options = parser.parse_args()
    if options.sheet:
        draw_sheet(options.sheet)
    elif options.check:
        from recipes.pair.export import load

        for name, (right, total, text) in check(*load(EMBEDDED / "target"), options.folder).items():
            print(f"{name}: {right} of {total} facts right: {text}")
    else:
        make(options.folder)


if __name__ == "__main__":
    main()
