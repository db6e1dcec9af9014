"""All exceptions that draftlens raises on purpose.

    DraftlensError
    ├── ConfigError            an option or name is unknown, or its value is not valid
    ├── MediaError             a clip, image or page cannot be read; names the file and the cause
    ├── UnsupportedModelError  a model lacks something that draftlens needs; names class and cause
    ├── IncompatiblePairError  target and draft cannot work together; names both
    ├── InputError             the inputs do not fit the model, or the batch is not valid
    ├── HostError              a rank that shares the reading of prompts is lost; names it
    └── TrainingDataError      an entry of training data is wrong; names file, entry and line

Each message is one sentence with the cause and, if there is one, a remedy.
"""


class DraftlensError(Exception):
    """The base class: catch it to catch every refusal of the library.

    Example:

        >>> import draftlens
        >>> try:
        ...     draftlens.from_dict({"method": "specvlm", "draft": "me"})
        ... except draftlens.DraftlensError as error:
        ...     print(error)
        unknown draft 'me'; known: auto, model, self
    """


class ConfigError(DraftlensError, ValueError):
    """An option or name is unknown, or its value is not valid."""


class MediaError(DraftlensError):
    """A clip, image or page cannot be read."""


class UnsupportedModelError(DraftlensError):
    """A model lacks something that draftlens needs from every model family."""


class IncompatiblePairError(DraftlensError):
    """Target and draft cannot work together."""


class InputError(DraftlensError, ValueError):
    """The inputs do not fit the model, or the batch is not valid."""


class HostError(DraftlensError):
    """A rank that shares the reading of prompts has ended or does not answer."""


class TrainingDataError(DraftlensError, ValueError):
    """An entry of training data is wrong, or a file of training data cannot be read."""
