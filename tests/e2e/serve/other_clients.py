"""What clients of other environments get from a server, as JSON: `other_clients.py CLIENT URL`.

It runs in the environment of `make clients`, which has neither draftlens nor its tests.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

ASKED = [{"role": "user", "content": "Describe the image."}]
NEW = 24
LONG = 200


class Thing(BaseModel):
    model_config = ConfigDict(extra="forbid")

    shape: Literal["circle", "square", "triangle"]
    colour: Literal["red", "green", "blue"]


class Picture(BaseModel):
    model_config = ConfigDict(extra="forbid")

    things: tuple[Thing, Thing]
    is_dark: bool


def instructor(url: str) -> dict[str, Any]:
    """Models by a schema, and by a call of a tool."""
    import openai
    from instructor import Mode, from_openai

    answers = {}
    for mode in (Mode.JSON_SCHEMA, Mode.TOOLS):
        client = from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="-"), mode=mode)
        picture = client.chat.completions.create(
            model="embedded",
            messages=ASKED,
            response_model=Picture,
            max_retries=0,
            max_tokens=LONG,
            temperature=0,
        )
        answers[mode.name] = picture.model_dump_json()
    return answers


def litellm(url: str) -> dict[str, Any]:
    """A text, a stream, log probabilities, a model and a response."""
    import litellm

    to = {"model": "openai/embedded", "api_base": f"{url}/v1", "api_key": "-", "temperature": 0}
    ask = {**to, "messages": ASKED}
    whole = litellm.completion(**ask, max_tokens=NEW, logprobs=True, top_logprobs=2)
    stream = litellm.completion(**ask, max_tokens=NEW, stream=True)
    form = litellm.completion(**ask, max_tokens=LONG, response_format=Picture)
    response = litellm.responses(**to, input=ASKED[0]["content"], max_output_tokens=NEW)
    logprobs = whole.choices[0].logprobs.content
    return {
        "whole": whole.choices[0].message.content,
        "stream": "".join(part.choices[0].delta.content or "" for part in stream),
        "logprobs": [[entry.logprob, len(entry.top_logprobs)] for entry in logprobs],
        "form": Picture.model_validate_json(form.choices[0].message.content).model_dump_json(),
        "response": response.output[-1].content[0].text,
    }


def mineru(url: str, picture: str) -> dict[str, Any]:
    """The text of a picture, as the pipeline of MinerU asks for it."""
    from mineru_vl_utils import MinerUClient
    from mineru_vl_utils.mineru_client import MinerUSamplingParams
    from PIL import Image

    client = MinerUClient(backend="http-client", server_url=url)
    penalties = {"presence_penalty": 1.0, "frequency_penalty": 0.05}
    sampling = MinerUSamplingParams(**penalties, max_new_tokens=LONG)
    with Image.open(picture) as opened:
        text = client.client.predict(opened, "\nText Recognition:", sampling)
        blocks = client.layout_detect(opened)
    return {"text": text, "blocks": len(blocks)}


if __name__ == "__main__":
    clients = {"instructor": instructor, "litellm": litellm, "mineru": mineru}
    print(json.dumps(clients[sys.argv[1]](*sys.argv[2:])))
