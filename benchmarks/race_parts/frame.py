"""A vision-language model of real text weights: SmolLM2-135M-Instruct in a LLaVA frame.

No vision-language weights can be installed by name. The vision tower, in the shape of CLIP
ViT-B/16, is random, and the connector is fitted to one picture, whose visual tokens it maps to the
embeddings of a text that describes it. So the language model reads what it has learned to read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import torch
from PIL import Image
from real_text import load_model, package_folder
from torch import nn
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

import draftlens

IMAGE = "<image>"
SIDE = 224
PATCH = 16
ECHO = 0.05
"""Share of its output that the echo of a layer adds."""

CLIP = Path(draftlens.__file__).parent / "embedded" / "clips" / "shapes.mp4"

CAPTION = (
    "A photo of a small wooden table beside a window. On the table stand a red cup, a blue ball"
    " and a green box. The cup is full of coffee, and steam rises from it. The ball lies on the"
    " left of the box, and its shadow falls to the right, as the light comes through the "
    "window. Behind the table hangs a picture of a river between mountains, with a boat in the "
    "middle and two people who hold a long rope. A grey cat sleeps on a chair in front of the "
    "table, and a dog with a brown coat sits on the floor and looks at the cat. On the wall on "
    "the left is a clock that shows ten minutes past four. There are three books on a shelf "
    "under the clock: a thick one about birds, a thin one about trees, and a dictionary. "
    "Through the window one can see a garden with an apple tree, a white fence, and a street "
    "with a yellow bus that waits at its stop. The sky is blue, with some clouds in the west, "
    "and it is autumn, since the leaves of the tree are red."
)

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>\n' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@torch.no_grad()
def write(folder: Path, echoes: int) -> None:
    """Write the model and its processor.

    Args:
        folder: for the files.
        echoes: copies after each layer that add a small share of what they compute, so that a
            larger model says nearly what the one without them does, which can draft for it.
    """
    if (folder / "config.json").exists():
        return
    text, tokenizer = load_model(package_folder())
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    model = _framed(text, tokenizer, echoes)
    pictures = CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    pixels = pictures(picture(), return_tensors="pt").pixel_values
    ids = tokenizer(CAPTION, return_tensors="pt").input_ids[0]
    _connect(model, pixels, ids)
    model.save_pretrained(folder)
    LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
        image_token=IMAGE,
    ).save_pretrained(folder)


def _framed(text: Any, tokenizer: Any, echoes: int) -> Any:
    """A LLaVA model with the weights of a language model."""
    settings = text.config
    del settings.quantization_config  # of the file that it is read from
    settings.vocab_size = len(tokenizer)
    settings.num_hidden_layers *= 1 + echoes
    vision = CLIPVisionConfig(image_size=SIDE, patch_size=PATCH)
    config = LlavaConfig(
        vision_config=vision,
        text_config=settings,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=(SIDE // PATCH) ** 2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    weights = {}
    for name, values in text.model.state_dict().items():
        head, found, rest = name.partition("layers.")
        if not found:
            weights[name] = values
            continue
        index, _, leaf = rest.partition(".")
        for copy in range(1 + echoes):
            place = f"{head}layers.{int(index) * (1 + echoes) + copy}.{leaf}"
            weights[place] = _echo(leaf, values) if copy else values
    embeddings = weights["embed_tokens.weight"]
    weights["embed_tokens.weight"] = nn.functional.pad(
        embeddings, (0, 0, 0, len(tokenizer) - len(embeddings))
    )
    model.get_decoder().load_state_dict(weights)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.eos_token_id
    return model


def _echo(leaf: str, values: torch.Tensor) -> torch.Tensor:
    """The weights of a copy of a layer. They differ a little from those of the layer, since equal
    ones would be one constant of a graph, which the caches still hold at the second time."""
    share = ECHO if leaf.startswith(("self_attn.o_proj", "mlp.down_proj")) else 1
    return share * values * (1 + 0.01 * torch.randn_like(values))


def _connect(model: Any, pixels: torch.Tensor, ids: torch.Tensor) -> None:
    """Fit the connector: a picture's visual tokens become the embeddings of a text, by least
    squares."""
    layer = model.model.multi_modal_projector.linear_2
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0][0]))
    model.get_image_features(pixels)
    handle.remove()
    features = seen[0].double()
    words = model.get_input_embeddings().weight[ids.repeat(2)[: len(features)]].double()
    layer.bias.copy_(words.mean(0))
    found = torch.linalg.lstsq(features, words - words.mean(0), driver="gelsd").solution
    layer.weight.copy_(found.T)
    error = (features.float() @ layer.weight.T + layer.bias - words).norm() / words.norm()
    print(f"visual tokens are {float(error):.1e} from the text", flush=True)


def picture() -> Image.Image:
    """The first frame of a clip in the package, in the size that the vision tower reads: nobody has
    to resize it."""
    with av.open(str(CLIP)) as clip:
        pixels = next(clip.decode(video=0)).to_ndarray(format="rgb24")
    return Image.fromarray(pixels).resize((SIDE, SIDE))
