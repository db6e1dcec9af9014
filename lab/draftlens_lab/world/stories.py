"""Stories: pictures that follow each other, with a caption for each but the last.

They have the form of PororoSV and VIST, in which five pictures and four captions are given and the
last picture is the question.
"""

from dataclasses import dataclass

from draftlens_lab.world.captions import marked_still_caption, still_caption
from draftlens_lab.world.dialogue import Turn
from draftlens_lab.world.sample import sample_story
from draftlens_lab.world.scene import Scene

PICTURES = 5
QUESTION = "Describe the last image."


@dataclass(frozen=True)
class Story:
    """Pictures with captions and a question.

    Args:
        scenes: the pictures; each differs from the one before in one thing.
    """

    scenes: tuple[Scene, ...]
    turn: Turn

    @property
    def captions(self) -> tuple[str, ...]:
        """The right captions of all pictures but the last, which are part of the prompt."""
        return tuple(still_caption(scene) for scene in self.scenes[:-1])


def story(seed: int, pictures: int = PICTURES) -> Story:
    """The story of a seed.

    Args:
        pictures: number of pictures, 1 or more.

    Example:
        >>> len(story(7).captions)
        4
    """
    scenes = sample_story(seed, pictures)
    return Story(scenes, Turn(QUESTION, marked_still_caption(scenes[-1]), "story"))
