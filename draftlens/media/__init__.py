"""Reads clips and images from files. Unusable input raises a `MediaError` of one sentence."""

from draftlens.media.image import load_image
from draftlens.media.limits import Limits
from draftlens.media.video import Video, load_video

__all__ = ["Limits", "Video", "load_image", "load_video"]
