"""Special names of models; kept free of heavy imports."""

EMBEDDED = "embedded"
"""The toy pair inside the package, trained on a procedural world; loads without a network."""

READER = "reader"
"""The toy document model of draftlens-lab, trained on pages of one generator."""

LAB_INSTALLATION = "pip install ./lab in a checkout of draftlens"
"""How the package draftlens-lab is installed, for the errors where it is missing."""

AUTO = "auto"
"""Selects the known draft of a target."""

UNQUANTIZED = "none"
"""Leaves the weights of a model as they are, where they may be quantized by default."""

IMAGE_PROMPT = "Describe the image."
VIDEO_PROMPT = "Describe the video."
"""Default prompt about pictures and clips."""
