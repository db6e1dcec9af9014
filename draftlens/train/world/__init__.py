"""A procedural world of moving shapes: scenes from seeds, their pixels, and what is right to say about them."""

from draftlens.train.world.caption import caption, still_caption
from draftlens.train.world.dialogue import IMAGE_PROMPTS, VIDEO_PROMPTS, Turn, describe, questions
from draftlens.train.world.facts import Facts, facts, read_facts, right_facts, still_facts
from draftlens.train.world.render import frame_times, render, render_still
from draftlens.train.world.scene import HELD_OUT, Scene, Thing, sample_scene, sample_still

__all__ = [
    "HELD_OUT",
    "IMAGE_PROMPTS",
    "VIDEO_PROMPTS",
    "Facts",
    "Scene",
    "Thing",
    "Turn",
    "caption",
    "describe",
    "facts",
    "frame_times",
    "questions",
    "read_facts",
    "render",
    "render_still",
    "right_facts",
    "sample_scene",
    "sample_still",
    "still_caption",
    "still_facts",
]
