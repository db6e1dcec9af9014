"""A procedural world of moving shapes and words.

Scenes are sampled from seeds. Each scene has pixels, a caption and dialogues, and of every question
exactly one answer is right.
"""

from draftlens_lab.world.captions import (
    caption,
    marked_caption,
    marked_still_caption,
    seen_spans,
    still_caption,
)
from draftlens_lab.world.dialogue import (
    IMAGE_PROMPTS,
    VIDEO_PROMPTS,
    Turn,
    describe,
    differences,
    follow_ups,
    questions,
    small_talk,
)
from draftlens_lab.world.fact_reader import Facts, facts, read_facts, right_facts, still_facts
from draftlens_lab.world.focus import FocusTurn, chats, focus_turns, needle_turns, spot_turns
from draftlens_lab.world.reel import Reel, sample_reel
from draftlens_lab.world.regions import Evidence, Region, evidence
from draftlens_lab.world.renderer import frame_times, render, render_at, render_still
from draftlens_lab.world.sample import (
    HELD_OUT,
    novelties,
    sample_pair,
    sample_scene,
    sample_sparse,
    sample_still,
    sample_story,
)
from draftlens_lab.world.scene import Scene, Shot, Text, Thing
from draftlens_lab.world.stories import Story, story

__all__ = [
    "HELD_OUT",
    "IMAGE_PROMPTS",
    "VIDEO_PROMPTS",
    "Evidence",
    "Facts",
    "FocusTurn",
    "Reel",
    "Region",
    "Scene",
    "Shot",
    "Story",
    "Text",
    "Thing",
    "Turn",
    "caption",
    "chats",
    "describe",
    "differences",
    "evidence",
    "facts",
    "focus_turns",
    "follow_ups",
    "frame_times",
    "marked_caption",
    "marked_still_caption",
    "needle_turns",
    "novelties",
    "questions",
    "read_facts",
    "render",
    "render_at",
    "render_still",
    "right_facts",
    "sample_pair",
    "sample_reel",
    "sample_scene",
    "sample_sparse",
    "sample_still",
    "sample_story",
    "seen_spans",
    "small_talk",
    "spot_turns",
    "still_caption",
    "still_facts",
    "story",
]
