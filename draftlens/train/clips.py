"""Makes the bundled world clips and picture again: ``python -m draftlens.train.clips``.

Each comes with a JSON record of what is right to say about it. With ``--check`` the embedded target is asked to
describe them, from the files as they are, and every fact is compared.
"""

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from draftlens.train.world import (
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

EMBEDDED = Path(__file__).resolve().parents[1] / "embedded"
CLIPS = EMBEDDED / "clips"
SIDE, RATE, SECONDS = 256, 24, 4  # pixels, frames a second, seconds
# Held-out scenes with things that move in different ways; the measured held-out scenes are others.
MOVING = {"shapes": HELD_OUT + 10_037, "drift": HELD_OUT + 10_018}
STILL = {"shapes": HELD_OUT + 10_000}

Frames = NDArray[np.uint8]


def write_clip(path: Path, frames: Frames, rate: int = RATE, crf: int = 18) -> None:
    """H.264 in mp4 from ``[T, H, W, 3]`` uint8 RGB frames; height and width must be even."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as file:
        stream: Any = file.add_stream("libx264", rate=Fraction(rate), options={"crf": str(crf), "preset": "slow"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1  # the same bytes on every machine
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())


def sampled_frames(path: Path, count: int) -> Frames:
    """The frames shown at the midpoints of ``count`` equal parts of the clip: ``[count, H, W, 3]`` uint8 RGB."""
    with av.open(str(path)) as file:
        shown = [(frame.time or 0.0, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
        duration = float(file.duration or 0) / av.time_base
    times = np.array([time for time, _ in shown])
    wanted = (np.arange(count) + 0.5) * duration / count
    picks = np.searchsorted(times, wanted + 1e-6, side="right") - 1
    return np.stack([shown[int(i)][1] for i in picks])


def _record(scene: Scene, said: str, known: Facts, prompt: str) -> str:
    record = {"seed": scene.seed, "prompt": prompt, "caption": said, "facts": known}
    return json.dumps(record, indent=2) + "\n"


def make() -> None:
    """Writes the clips, the picture and their records."""
    CLIPS.mkdir(parents=True, exist_ok=True)
    for name, seed in MOVING.items():
        scene = sample_scene(seed)
        write_clip(CLIPS / f"{name}.mp4", render(scene, RATE * SECONDS, SIDE))
        record = _record(scene, caption(scene), facts(scene), "Describe the video.")
        (CLIPS / f"{name}.mp4.json").write_text(record)
    for name, seed in STILL.items():
        scene = sample_still(seed)
        Image.fromarray(render_still(scene, SIDE)).save(CLIPS / f"{name}.png", optimize=True)
        record = _record(scene, still_caption(scene), still_facts(scene), "Describe the image.")
        (CLIPS / f"{name}.png.json").write_text(record)


def check(model: Any, processor: Any) -> dict[str, tuple[int, int, str]]:
    """For every bundled file with a record: right facts, all facts and what the model said."""
    from draftlens.train.pair.answers import answer

    results = {}
    for file in sorted(CLIPS.glob("*.json")):
        record, media = json.loads(file.read_text()), file.with_suffix("")
        still = media.suffix == ".png"
        shown = np.array(Image.open(media).convert("RGB")) if still else sampled_frames(media, 8)
        text = answer(model, processor, [shown], [record["prompt"]], still)[0]
        results[media.name] = (*right_facts(text, record["facts"]), text)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m draftlens.train.clips", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only ask the embedded target about the files")
    if not parser.parse_args().check:
        make()
        return
    from draftlens.train.pair.export import load

    for name, (right, total, text) in check(*load(EMBEDDED / "target")).items():
        print(f"{name}: {right} of {total} facts right: {text}")


if __name__ == "__main__":
    main()
