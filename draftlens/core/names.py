"""Names of models that mean something to draftlens, where nothing heavy is imported."""

EMBEDDED = "embedded"
"""Name of the pair inside the package. It is trained on a procedural world of moving shapes and
loads without a network."""

READER = "reader"
"""Name of the document model inside the package. It knows the pages of one generator only."""

AUTO = "auto"
"""Name of the draft that is known for a target."""

IMAGE_PROMPT = "Describe the image."
VIDEO_PROMPT = "Describe the video."
"""What is asked about pictures and clips where nobody says anything else."""
