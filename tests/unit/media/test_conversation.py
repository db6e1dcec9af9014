"""Messages in, media and chat-template messages out."""

from __future__ import annotations

from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import TemplateError
from PIL import Image

from draftlens.core.errors import InputError, MediaError
from draftlens.media import Video, load_image, load_video
from draftlens.media.conversation import Conversation, ask, process, read, same_processing

CLIPS = Path(str(files("draftlens") / "embedded" / "clips"))
RED = Image.new("RGB", (8, 6), (255, 0, 0))


class FakeProcessor:
    """Records what it is called with."""

    chat_template = "template"
    image_token = "<image>"
    image_processor = None
    video_processor = None

    def apply_chat_template(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        return " ".join(
            item.get("text", f"<{item['type']}>") for m in messages for item in m["content"]
        )

    def __call__(self, **options: Any) -> dict[str, Any]:
        self.options = options
        return {"input_ids": [[1]]}


class TextOnlyProcessor(FakeProcessor):
    """Its chat template omits media."""

    def apply_chat_template(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, tokenize: bool
    ) -> str:
        return "".join(item.get("text", "") for message in messages for item in message["content"])


def test_a_prompt_becomes_one_user_message_media_first() -> None:
    (message,) = ask("What?", video="clip.mp4", images=[RED, "b.png"])
    assert message["role"] == "user"
    assert [item["type"] for item in message["content"]] == ["video", "image", "image", "text"]
    assert ask("What?", images=RED)[0]["content"][0] == {"type": "image", "image": RED}
    assert ask("What?")[0]["content"] == [{"type": "text", "text": "What?"}]


def test_media_are_taken_out_in_order_and_turns_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "blue.png"
    Image.new("RGB", (4, 4), (0, 0, 255)).save(file)
    turns = [
        {
            "role": "user",
            "content": [{"type": "image", "image": RED}, {"type": "text", "text": "This?"}],
        },
        {"role": "assistant", "content": "Red."},
        {
            "role": "user",
            "content": [{"type": "image", "path": file}, {"type": "text", "text": "And this?"}],
        },
    ]
    chat = read(turns, num_frames=4)
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "user"]
    assert chat.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "This?"}]
    assert [np.asarray(image)[0, 0].tolist() for image in chat.images] == [[255, 0, 0], [0, 0, 255]]
    assert turns[0]["content"][0]["image"] is RED


def test_openai_items_are_read() -> None:
    picture = (CLIPS / "shapes.png").read_bytes()
    data = f"data:image/png;base64,{b64encode(picture).decode()}"
    clip = f"data:video/mp4;base64,{b64encode((CLIPS / 'shapes.mp4').read_bytes()).decode()}"
    content = [
        {"type": "text", "text": "These?"},
        {"type": "image_url", "image_url": {"url": data, "detail": "low"}},
        {"type": "image_url", "image_url": str(CLIPS / "shapes.png")},
        {"type": "video_url", "video_url": {"url": clip}},
    ]
    chat = read([{"role": "user", "content": content}], num_frames=2)
    items = chat.messages[0]["content"]
    assert [item["type"] for item in items] == ["text", "image", "image", "video"]
    assert chat.images[0] == chat.images[1] == load_image(CLIPS / "shapes.png")
    local = load_video(CLIPS / "shapes.mp4", num_frames=2)
    assert np.array_equal(chat.videos[0].frames, local.frames)
    assert chat.videos[0].path == "data:video/mp4;base64,..."


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        *(
            ([{"role": "user", "content": [{"type": "image_url", **item}]}], "needs a string under")
            for item in ({}, {"image_url": {}}, {"image_url": 5}, {"image_url": {"url": ["a"]}})
        ),
        (["hello"], "a message is a dict with role and content"),
        ([{"role": "user"}], "a message is a dict with role and content"),
        ([{"role": "user", "content": [{"type": "audio", "path": "a.wav"}]}], "not 'audio'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "needs 'image' or 'path'"),
        ([{"role": "user", "content": None}], "a string or a list of items, not None"),
        ([{"role": "user", "content": ["hi"]}], r"a string or a list of items, not \['hi'\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "an item of type text needs a string"),
        (
            [{"role": "user", "content": [{"type": "video", "video": 5}]}],
            "the path of a file or its frames, not int",
        ),
    ],
)
def test_other_forms_are_refused(messages: list[Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(messages, num_frames=4)


def test_a_missing_file_names_itself() -> None:
    with pytest.raises(MediaError, match=r"gone\.png"):
        read(ask("What?", images="gone.png"), num_frames=4)


def test_one_chat_is_not_padded_and_a_batch_is() -> None:
    processor = FakeProcessor()
    chat = Conversation(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hi"}]}], [RED]
    )
    process(processor, [chat])
    assert processor.options == {"text": ["<image> Hi"], "return_tensors": "pt", "images": [[RED]]}
    process(processor, [chat, chat])
    assert processor.options["padding"]
    assert processor.options["images"] == [[RED], [RED]]


def test_a_processors_refusal_is_one_sentence() -> None:
    class Blind(FakeProcessor):
        def __call__(self, **options: Any) -> dict[str, Any]:
            raise TypeError("unexpected argument 'images'")

    with pytest.raises(InputError, match="Blind refused the input: unexpected argument"):
        process(Blind(), [Conversation([{"role": "user", "content": [{"type": "image"}]}], [RED])])


def test_the_options_of_a_conversations_template() -> None:
    class Asking(FakeProcessor):
        def apply_chat_template(self, messages: Any, tokenize: bool, **options: Any) -> str:
            self.template = options
            if options.get("tools") == "none":
                raise TemplateError("no tools at 0x7f")
            return super().apply_chat_template(messages, True, tokenize)

    processor = Asking()
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hi"}]}
    process(processor, [Conversation([message], [RED])])
    assert processor.template == {"add_generation_prompt": True}
    options = {"continue_final_message": True, "add_generation_prompt": False}
    process(processor, [Conversation([message], [RED], template=options)])
    assert processor.template == options
    with pytest.raises(InputError, match="the chat template refuses the conversation: no tools"):
        process(processor, [Conversation([message], template={"tools": "none"})])


def test_what_would_not_be_shown_is_refused() -> None:
    """A processor without videos, and a template that drops images."""
    shown = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "Hi"}]
    message = {"role": "user", "content": shown}
    clip = Video("clip.mp4", np.zeros((2, 4, 4, 3), np.uint8), (0.0, 1.0), (0, 1), 1.0, 2, 2.0)
    with pytest.raises(InputError, match="FakeProcessor takes no video: show its frames as images"):
        process(FakeProcessor(), [Conversation([message], [RED], [clip])])
    text = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    with pytest.raises(
        InputError, match="the chat template of TextOnlyProcessor leaves out every image"
    ):
        process(TextOnlyProcessor(), [Conversation([text]), Conversation([message], [RED])])
    assert process(TextOnlyProcessor(), [Conversation([text])]) == {"input_ids": [[1]]}
    seeing = FakeProcessor()
    seeing.video_processor = object()  # type: ignore[assignment]
    process(seeing, [Conversation([message], [RED], [clip])])
    assert len(seeing.options["videos"]) == 1


def test_processors_are_the_same_only_if_their_settings_are() -> None:
    class Settings:
        def __init__(self, size: int) -> None:
            self.size = size

        def to_dict(self) -> dict[str, int]:
            return {"size": self.size}

    first = FakeProcessor()
    second = FakeProcessor()
    assert same_processing(first, second)
    first.image_processor = Settings(8)  # type: ignore[assignment]
    second.image_processor = Settings(8)  # type: ignore[assignment]
    assert same_processing(first, second)
    second.image_processor = Settings(9)  # type: ignore[assignment]
    assert not same_processing(first, second)
    second.image_processor = None
    assert not same_processing(first, second)
    second.image_processor = Settings(8)  # type: ignore[assignment]
    assert same_processing(first, second)
    second.patch_size = 14  # type: ignore[attr-defined]
    assert not same_processing(first, second)
