"""Captions in place of pictures and clips."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from chats import PICTURE, Template, one_text, talk, text, user
from draftlens_lab.plugins.caption_media import media_of, with_captions

from draftlens.core.errors import InputError
from draftlens.media.conversation import Conversation, process


def test_captions_stand_on_lines_of_their_own() -> None:
    chat = with_captions(talk(), ["A cat.", "It runs.", "A dog."])
    assert one_text(chat) == "image: A cat.\nCompare\nvideo: It runs.\nand tell."
    assert one_text(chat, 2) == "image: A dog."
    assert not chat.images
    assert not chat.videos


@pytest.mark.parametrize(
    ("items", "joined"),
    [
        ((PICTURE, text("\nWhat?")), "image: A.\nWhat?"),
        ((PICTURE, text(" What?")), "image: A. What?"),
        ((text("What? "), PICTURE), "What? image: A."),
        ((text(""), PICTURE, text("")), "image: A."),
        ((text("Look: "), text("there"), PICTURE), "Look: there\nimage: A."),
    ],
)
def test_no_space_is_doubled_and_the_users_own_words_stay(items: Any, joined: str) -> None:
    chat = Conversation([user(*items)], images=["one"])
    assert one_text(with_captions(chat, ["A."])) == joined


def test_a_chat_without_media_stays_as_it_is() -> None:
    chat = Conversation([user(text("One"), text("two")), {"role": "assistant", "content": "Yes."}])
    assert with_captions(chat, []) == chat


def test_the_conversation_itself_is_not_changed() -> None:
    chat = talk()
    before = deepcopy(chat)
    with_captions(chat, ["1", "2", "3"])
    assert chat == before


@pytest.mark.parametrize("captions", [[], ["1", "2"], ["1", "2", "3", "4"]])
def test_other_numbers_of_captions_are_refused(captions: list[str]) -> None:
    with pytest.raises(InputError, match=f"{len(captions)} captions are given for 3 pictures"):
        with_captions(talk(), captions)


def test_media_come_in_order_of_appearance() -> None:
    found = [(medium.kind, medium.content) for medium in media_of(talk())]
    assert found == [("image", "one"), ("video", "a clip"), ("image", "two")]


def test_media_that_the_messages_do_not_mention_are_refused() -> None:
    with pytest.raises(InputError, match="mention an item of type image that is not there"):
        media_of(Conversation([user(PICTURE, PICTURE)], images=["one"]))
    with pytest.raises(InputError, match="do not mention every item of type image"):
        media_of(Conversation([user(PICTURE)], images=["one", "two"]))


def test_captions_survive_a_template_that_trims_and_joins_items() -> None:
    chat = Conversation([user(text("Before"), PICTURE, text("behind"))], images=["one"])
    captioned = process(Template(), [with_captions(chat, ["A cat."])])
    assert captioned["text"] == ["Before\nimage: A cat.\nbehind"]
