"""Everything draftlens raises on purpose.

    DraftlensError
    ├── ConfigError            an option or name is unknown, or its value makes no sense
    ├── MediaError             a clip, image or page cannot be read; names the file and the cause
    ├── UnsupportedModelError  a model does not fit the seam; names the model class and the cause
    ├── IncompatiblePairError  target and draft cannot work together; names both
    ├── InputError             inputs that do not belong to the model, or a batch that makes no
    sense └── TrainingDataError      an entry of training data is wrong; names the file, the entry
    and its line

Messages are one sentence for the person who called: what is wrong, with which thing, and what would
help.
"""


class DraftlensError(Exception):
    """The root: catch this to catch every refusal of the library."""


class ConfigError(DraftlensError, ValueError):
    """An option or name is unknown, or its value makes no sense."""


class MediaError(DraftlensError):
    """A clip, image or page cannot be read."""


class UnsupportedModelError(DraftlensError):
    """A model does not fit the seam that every family must offer."""


class IncompatiblePairError(DraftlensError):
    """Target and draft cannot work together."""


class InputError(DraftlensError, ValueError):
    """Inputs that do not belong to the model, or a batch that makes no sense."""


class TrainingDataError(DraftlensError, ValueError):
    """An entry of training data is wrong, or a file of it cannot be read."""
