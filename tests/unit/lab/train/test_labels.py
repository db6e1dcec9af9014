"""Which tokens are trained on, for the real processors of all families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from draftlens_lab.train.data import parse_entry
from draftlens_lab.train.labels import IGNORE, AnswerProcessor, UnmarkedText, spans_of
from families import FAMILIES, Family

from draftlens.core.errors import InputError, UnsupportedModelError
from draftlens.media.conversation import Conversation, read
from tests.unit.lab.train.drafts import CLIPS, ENDED, UNENDED, processor_of, talk

PICTURE, CLIP = "shapes.png", "drift.mp4"
LLAVA = FAMILIES[0]


def chat(conversations: list[dict[str, str]], **media: Any) -> Conversation:
    entry = parse_entry({**media, "conversations": conversations}, "here")
    return read(entry.messages(CLIPS), num_frames=3)


def chats(family: Family) -> list[tuple[Conversation, list[str]]]:
    """Chats and their answers."""
    system = [{"from": "system", "value": "answer me"}]
    made = [
        (
            chat(
                talk("<image>\nwhat is it?", "a ring", "sure?", "yes, a ring\nan image"),
                image=PICTURE,
            ),
            ["a ring", "yes, a ring\nan image"],
        ),
        (chat(system + talk("hello", "hi")), ["hi"]),
        (
            chat(
                talk("one <image> and <image>\n?", "both", "and <image>", "it"), image=[PICTURE] * 3
            ),
            ["both", "it"],
        ),
    ]
    # SmolVLM has its own template for chats with videos, whose end token this tokenizer does not
    # have as one.
    if family.video and family.name != "smolvlm":
        made.append((chat(talk("<video>\nwhat", "a video"), video=CLIP), ["a video"]))
    return made


@pytest.mark.parametrize("template", [ENDED, UNENDED], ids=["ended", "unended"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_labels_are_the_answers_and_their_ends(family: Family, template: str) -> None:
    processor = processor_of(family, template)
    conversations, answers = zip(*chats(family), strict=True)
    together = AnswerProcessor(processor, "tiny")(conversations)
    for row, (conversation, told) in enumerate(zip(conversations, answers, strict=True)):
        labels, ids = together["labels"][row], together["input_ids"][row]
        said = labels[labels != IGNORE]
        assert processor.tokenizer.decode(said) == "".join(f"{answer}</s>" for answer in told)
        if template is ENDED:
            assert torch.equal(said, ids[labels != IGNORE])
        alone = AnswerProcessor(processor, "tiny")([conversation])
        length = alone["labels"].shape[1]
        assert torch.equal(labels[:length], alone["labels"][0])
        assert (labels[length:] == IGNORE).all()
        assert torch.equal(ids[:length], alone["input_ids"][0])


def test_a_clip_of_smolvlm() -> None:
    processor = processor_of(next(f for f in FAMILIES if f.name == "smolvlm"))
    labels = AnswerProcessor(processor, "tiny")(
        [chat(talk("<video>\nwhat", "a video"), video=CLIP)]
    )["labels"]
    assert (
        processor.tokenizer.decode(labels[labels != IGNORE]) == " a video</s>"
    )  # its prompt ends with the colon


def test_a_prompt_in_training_is_the_prompt_in_use() -> None:
    """Up to each answer, tokens are those that the processor makes of the question."""
    for template in (ENDED, UNENDED):
        processor = processor_of(LLAVA, template)
        whole = chat(talk("<image>\nwhat?", "ring", "sure?", "yes"), image=PICTURE)
        batch = AnswerProcessor(processor, "tiny")([whole])
        labels, ids = batch["labels"][0], batch["input_ids"][0]
        for turns in (1, 3):
            prompt = processor.apply_chat_template(
                whole.messages[:turns], add_generation_prompt=True, tokenize=False
            )
            asked = processor(text=[prompt], images=[whole.images], return_tensors="pt")[
                "input_ids"
            ][0]
            assert torch.equal(ids[: len(asked)], asked)
            assert labels[len(asked)] == ids[len(asked)] != IGNORE
            # In the chat of two turns, the label before is the prompt's end, or the end of the
            # answer before it.
            assert labels[len(asked) - 1] == IGNORE


def test_without_an_end_token_the_end_is_learnt_where_the_next_question_begins() -> None:
    processor = processor_of(LLAVA, UNENDED)
    batch = AnswerProcessor(processor, "tiny")([chat(talk("what", "ring", "more", "yes"))])
    labels, ids = batch["labels"][0], batch["input_ids"][0]
    end = processor.tokenizer.eos_token_id
    first, last = (labels == end).nonzero().flatten().tolist()
    assert processor.tokenizer.decode(ids[first : first + 6]) == " user:"
    assert ids[last] == end  # nothing comes after the last answer, so its end is written
    assert last == len(ids) - 1


def test_the_processor_is_left_as_it_is() -> None:
    processor = processor_of(LLAVA)
    before = dict(vars(processor))
    AnswerProcessor(processor, "tiny")([chat(talk("what", "ring"))])
    assert vars(processor) == before


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (
            "{{ messages | length }}" + UNENDED,
            "does not write a longer chat as a continuation of a shorter one",
        ),
        (
            UNENDED.replace("{% if add", "!{% if add"),
            "does not write a longer chat as a continuation",
        ),
        (
            UNENDED.replace("assistant: ", "next: "),
            "does not write a longer chat as a continuation",
        ),
        (
            UNENDED.replace("item['text'] }}", "item['text'] | upper }}"),
            "the chat template of tiny changes the answer 'ring'",
        ),
        ("{{ raise_exception('no system here') }}", "refuses the conversation: no system here"),
    ],
)
def test_templates_that_hide_answers_are_refused(template: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        AnswerProcessor(processor_of(LLAVA, template), "tiny")(
            [chat(talk("what", "ring", "more", "yes"))]
        )


def test_processors_that_cannot_tell_are_refused() -> None:
    processor = processor_of(LLAVA)
    processor.chat_template = None
    with pytest.raises(UnsupportedModelError, match="the processor of tiny has no chat template"):
        AnswerProcessor(processor, "tiny")

    class Slow:
        chat_template, tokenizer = "x", type("Slow", (), {"is_fast": False})()

    with pytest.raises(UnsupportedModelError, match="no fast tokenizer"):
        AnswerProcessor(Slow(), "tiny")


def test_a_processor_that_makes_its_own_ids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = processor_of(LLAVA)
    right = type(processor).__call__
    monkeypatch.setattr(
        type(processor),
        "__call__",
        lambda self, **o: {k: v + 1 for k, v in right(self, **o).items()},
    )
    with pytest.raises(
        UnsupportedModelError, match="LlavaProcessor does not take its token ids from its tokenizer"
    ):
        AnswerProcessor(processor, "tiny")([chat(talk("what", "ring"))])


def test_a_truncated_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = processor_of(LLAVA)
    right = type(processor).__call__
    monkeypatch.setattr(
        type(processor),
        "__call__",
        lambda self, **o: right(self, **o, truncation=True, max_length=20),
    )
    with pytest.raises(InputError, match="cuts off an answer"):
        AnswerProcessor(processor, "tiny")([chat(talk("what", "a ring that is long"))])


def test_marks_come_out_where_they_were() -> None:
    assert spans_of("ab\ufdd0cd\ufdd1e\ufdd0f\ufdd1") == UnmarkedText("abcdef", [(2, 4), (5, 6)])
    assert spans_of("plain") == UnmarkedText("plain", [])


def test_media_paths_reach_the_processor(tmp_path: Path) -> None:
    """The pictures of a chat are those of its entry, in order."""
    made = chat(talk("<image><image>", "two"), image=[PICTURE, PICTURE])
    assert len(made.images) == 2
    assert AnswerProcessor(processor_of(LLAVA), "tiny")([made])["pixel_values"].shape[0] == 2
