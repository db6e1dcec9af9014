"""Models of text only: drafts that read words, and no targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import CLASSES, OWN_TEMPLATE, embedded_tokenizer, save_language_model
from PIL import Image
from text_tokenizers import sentencepiece
from transformers import Qwen2Config, Qwen2VLConfig

import draftlens
from draftlens.core.errors import (
    ConfigError,
    IncompatiblePairError,
    InputError,
    UnsupportedModelError,
)
from draftlens.media.conversation import Conversation
from draftlens.models.known_pairs import EMBEDDED
from draftlens.models.load import load_model, load_pair
from draftlens.models.loading import LoadOptions, PairOptions, TextProcessor

CPU = LoadOptions(device="cpu")
ON_CPU = PairOptions(CPU, CPU)
CHAIN = {"method": "speculative", "num_speculative_tokens": 3}
RED = Image.new("RGB", (32, 32), (255, 0, 0))


def test_a_target_of_text_only_is_refused(tmp_path: Path) -> None:
    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as error:
        load_model(str(tmp_path), "target", CPU)
    assert f"the target '{tmp_path}' is a model of text only (qwen2)" in str(error.value)
    assert "name a vision-language model" in str(error.value)
    assert "Unrecognized" not in str(error.value)


def test_other_faults_keep_their_own_messages(tmp_path: Path) -> None:
    Qwen2VLConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as error:
        load_model(str(tmp_path), "draft", CPU)
    assert "text only" not in str(error.value)
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_model(str(tmp_path / "nowhere" / "model"), "draft", CPU)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_draft_of_text_only_drafts_for_a_target_that_sees(kind: str, tmp_path: Path) -> None:
    engine = draftlens.Engine(*load_pair(EMBEDDED, save_language_model(tmp_path, kind), ON_CPU))
    assert engine.draft is not None
    assert engine.draft.backbone.modalities == {"text"}
    inputs = engine.read("What is this?", images=RED)
    result = engine.answer(inputs, method=CHAIN, max_new_tokens=12).run()
    plain = engine.answer(inputs, method="plain", max_new_tokens=12).run()
    assert result.tokens == plain.tokens
    assert result.stats.drafted > 0


def test_its_own_inputs_have_line_breaks_in_place_of_media(tmp_path: Path) -> None:
    """In the template of the target, whose tokenizer is the same."""
    engine = draftlens.Engine(*load_pair(EMBEDDED, save_language_model(tmp_path), ON_CPU))
    inputs = engine.read("What is this?", images=[RED, RED])
    wanted = engine.read("\n\nWhat is this?").target
    assert inputs.draft is not None
    assert inputs.draft.keys() == {"input_ids", "attention_mask"}
    assert torch.equal(inputs.draft["input_ids"], wanted["input_ids"])
    assert "pixel_values" in inputs.target
    assert inputs.chats[0].images


def test_a_ragged_batch_of_a_draft_without_padding_token(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path, template=OWN_TEMPLATE, padding=False)
    engine = draftlens.Engine(*load_pair(EMBEDDED, folder, ON_CPU))
    chats = [
        [{"role": "user", "content": [{"type": "image", "image": RED}]}],
        [{"role": "user", "content": "Where is the red ball?"}],
    ]
    inputs = engine.read(messages=chats)
    result = engine.answer(inputs, method=CHAIN, max_new_tokens=8).run()
    assert result.tokens == engine.answer(inputs, method="plain", max_new_tokens=8).run().tokens


def test_it_drafts_by_the_default_method_and_is_refused_where_it_would_be_pruned(
    tmp_path: Path,
) -> None:
    engine = draftlens.load(EMBEDDED, save_language_model(tmp_path), device="cpu", calibrate=False)
    plain = engine.generate("Where is it?", images=RED, method="plain", max_new_tokens=8)
    assert engine.generate("Where is it?", images=RED, max_new_tokens=8).tokens == plain.tokens
    with pytest.raises(
        IncompatiblePairError,
        match=r"'specvlm' prunes visual tokens, and the draft Qwen2ForCausalLM takes none: method "
        r"'speculative' with schedule 'serial' lets it draft from the words",
    ):
        engine.generate("Hello", method="specvlm", max_new_tokens=2)


def test_another_tokenizer_is_noticed_and_what_it_writes_is_tokenized_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads the prompt by its own tokenizer, also where no words of it are the target's."""
    folder = save_language_model(tmp_path)
    letters = sentencepiece()
    letters.chat_template = OWN_TEMPLATE
    letters.save_pretrained(folder)
    target, draft = load_pair(EMBEDDED, folder, ON_CPU)
    assert re.search(
        "the tokenizers of embedded and .* differ: .* what the draft writes is", caplog.text
    )
    engine = draftlens.Engine(target, draft)
    plain = engine.generate("Where is it?", images=RED, method="plain", max_new_tokens=8)
    result = engine.generate("Where is it?", images=RED, max_new_tokens=8)
    assert result.tokens == plain.tokens
    assert result.stats.draft_forwards > 0
    with pytest.raises(IncompatiblePairError, match="has another tokenizer than the target"):
        engine.generate("Hello", method={"method": "tabed", "views": ["text"]}, max_new_tokens=2)


def test_without_any_template_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="has no tokenizer with a chat template"):
        load_model(save_language_model(tmp_path), "draft", CPU)


def chat(*items: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(items)}]


def test_its_own_template_takes_strings() -> None:
    processor = TextProcessor(embedded_tokenizer(OWN_TEMPLATE), None, "model")
    assert processor.chat_template == OWN_TEMPLATE
    messages = chat({"type": "text", "text": "One "}, {"type": "text", "text": "two"})
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    assert text == "[user] One two\n[assistant] "
    plain = [{"role": "user", "content": "Hello"}]
    assert processor.apply_chat_template(plain) == "[user] Hello\n"
    assert processor.apply_chat_template(plain, continue_final_message=True) == "[user] Hello"
    assert TextProcessor(embedded_tokenizer(OWN_TEMPLATE), processor, "model").apply_chat_template(
        plain
    ) == processor.apply_chat_template(plain)


def test_another_template_takes_items_of_text() -> None:
    class Items:
        chat_template = "items"

        def apply_chat_template(self, messages: Any, **_: Any) -> str:
            return " ".join(item["text"] for item in messages[0]["content"])

    processor = TextProcessor(embedded_tokenizer(), Items(), "model")
    assert processor.chat_template == "items"
    mixed = chat(
        {"type": "text", "text": "One"}, {"type": "image"}, {"type": "text", "text": "two"}
    )
    assert processor.apply_chat_template(mixed) == "One two"
    assert processor.apply_chat_template([{"role": "user", "content": "Hello"}]) == "Hello"


def test_a_start_token_in_the_text_is_not_doubled() -> None:
    class Starting:
        """A tokenizer that puts a start token in front."""

        chat_template = OWN_TEMPLATE
        bos_token = "<s>"
        pad_token = "<s>"

        def __call__(self, text: list[str], add_special_tokens: bool, **_: Any) -> Any:
            front = [1] if add_special_tokens else []
            ids = front + [1 if piece == "<s>" else 2 for piece in text[0].split()]
            return {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": []}

    processor = TextProcessor(Starting(), None, "model")
    assert processor(["<s> a b"])["input_ids"] == [1, 2, 2]
    assert processor(["a b"])["input_ids"] == [1, 2, 2]
    assert processor(["a b"]).keys() == {"input_ids", "attention_mask"}


def test_pictures_are_refused_in_words(tmp_path: Path) -> None:
    loaded = load_model(save_language_model(tmp_path, template=OWN_TEMPLATE), "draft", CPU)
    engine = draftlens.Engine(loaded, None)
    with pytest.raises(InputError, match="TextProcessor takes no image"):
        engine.process([Conversation(chat({"type": "image"}), [RED])])
