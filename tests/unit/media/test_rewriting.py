"""Words in place of pictures and clips."""

from __future__ import annotations

from copy import deepcopy

import pytest
from chats import PICTURE, Template, one_text, talk, text, user

from draftlens.media.conversation import Conversation, process
from draftlens.media.rewriting import without_media


@pytest.mark.parametrize(
    ("instead", "first", "last"),
    [
        ("\n", "\nCompare\nand tell.", "\n"),
        ("<image>", "<image>Compare<image>and tell.", "<image>"),
        ("", "Compareand tell.", ""),
    ],
)
def test_the_three_ways_to_leave_media_out(instead: str, first: str, last: str) -> None:
    chat = without_media(talk(), instead)
    assert one_text(chat, 0) == first
    assert one_text(chat, 2) == last
    assert chat.messages[1] == talk().messages[1]
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user"]
    assert not chat.images
    assert not chat.videos


def test_a_line_break_is_the_default_and_several_pictures_become_several() -> None:
    options = {"continue_final_message": True}
    chat = Conversation(
        [user(PICTURE, PICTURE, text("Which?"))], images=["one", "two"], template=options
    )
    assert one_text(without_media(chat)) == "\n\nWhich?"
    assert without_media(chat).template == options


def test_a_chat_without_media_stays_as_it_is() -> None:
    chat = Conversation([user(text("One"), text("two")), {"role": "assistant", "content": "Yes."}])
    assert without_media(chat) == chat


def test_the_conversation_itself_is_not_changed() -> None:
    chat = talk()
    before = deepcopy(chat)
    without_media(chat)
    assert chat == before


def test_words_survive_a_template_that_trims_and_joins_items() -> None:
    chat = Conversation([user(text("Before"), PICTURE, text("behind"))], images=["one"])
    assert process(Template(), [without_media(chat)])["text"] == ["Before\nbehind"]
