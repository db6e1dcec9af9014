"""Export of the reader as a folder that ``from_pretrained`` loads without a network."""

from pathlib import Path
from typing import Any

from recipes.pair.export import export as export_folder
from recipes.reader.model import build_processor


def export(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write float16 weights, configuration, generation config, processor and tokenizer.

    Files of other names in the folder, such as the model card, stay.
    """
    export_folder(model, build_processor(tokenizer), folder)
