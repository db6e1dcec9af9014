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

SYNONYMS = (
    ("image", "images"),
    ("picture", "images"),
    ("pictures", "images"),
    ("videos", "video"),
    ("clip", "video"),
    ("chat", "messages"),
    ("question", "prompt"),
    ("text", "prompt"),
    ("frames", "num_frames"),
    ("nframes", "num_frames"),
    ("max_tokens", "max_new_tokens"),
    ("max_completion_tokens", "max_new_tokens"),
    ("max_output_tokens", "max_new_tokens"),
    ("min_tokens", "min_new_tokens"),
    ("n", "num_return_sequences"),
    ("num_samples", "num_return_sequences"),
    ("beams", "num_beams"),
    ("beam_size", "num_beams"),
    ("sample", "do_sample"),
    ("sampling", "do_sample"),
    ("temp", "temperature"),
    ("timeout", "max_time"),
    ("stop_sequences", "stop"),
    ("stop_words", "stop"),
    ("stop", "stop_strings"),
    ("stop_token_ids", "eos_token_id"),
    ("random_seed", "seed"),
    ("draft_model", "draft"),
    ("response_format", "form"),
    ("json_schema", "form"),
    ("guided_json", "form"),
)
"""Names in other libraries, and the names here."""
