"""Invalid models and data are refused before the first step; a config gives random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.train import train_draft
from draftlens_lab.train.collate import Collator
from draftlens_lab.train.data import Entry, read_data
from draftlens_lab.train.labels import AnswerProcessor
from draftlens_lab.train.models import load_draft
from draftlens_lab.train.stage import of_each_kind
from families import FAMILIES, Family, tokenizer
from transformers import AutoConfig, AutoModelForImageTextToText

from draftlens.core.errors import (
    ConfigError,
    DraftlensError,
    IncompatiblePairError,
    TrainingDataError,
)
from tests.unit.lab.train.drafts import ENDED, processor_of, same, save_model, talk, training

NAMED = {family.name: family for family in FAMILIES}
LLAVA = NAMED["llava"]


def save_tokenizer_with(folder: Path, **swapped: str) -> str:
    """A LLaVA with two tokens of its tokenizer exchanged."""
    model = save_model(LLAVA, folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    for one, other in swapped.items():
        vocab[one], vocab[other] = vocab[other], vocab[one]
    file.write_text(json.dumps(content))
    return model


def refused(kind: type[DraftlensError], sentence: str, options: Any) -> None:
    with pytest.raises(kind, match=sentence):
        train_draft(options)
    assert not options.out.exists()


def test_what_cannot_work_is_refused_before_training(
    llava: str, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    other = save_tokenizer_with(tmp_path / "other", A="B")
    refused(
        IncompatiblePairError,
        r"the tokenizers of .*other and .* differ: id \d+ is",
        training(data, out, llava, target=other),
    )
    refused(IncompatiblePairError, "differ: id", training(data, out, llava, distil=other))
    seeing = save_model(NAMED["llava_onevision"], tmp_path / "seeing")
    refused(
        IncompatiblePairError,
        "cannot see what the target .* can: video",
        training(data, out, llava, target=seeing),
    )
    refused(ConfigError, "there is no such folder", training(data, out, str(tmp_path / "nowhere")))
    refused(
        ConfigError,
        "there is no draft config",
        training(data, out, None, draft_config=tmp_path / "no.json"),
    )
    refused(
        ConfigError,
        "cannot be divided among 1 processes of 3",
        training(data, out, llava, device_batch=3),
    )
    text = tmp_path / "text.json"
    text.write_text(json.dumps([{"conversations": talk("hello", "hi")}]))
    refused(TrainingDataError, "contains no images or videos", training(text, out, llava))
    text.write_text(
        json.dumps([{"conversations": talk("hello <video>", "hi"), "video": "gone.mp4"}])
    )
    refused(
        TrainingDataError,
        r"entry 1 \(line 1\): cannot read .*gone\.mp4: there is no such file",
        training(text, out, llava),
    )


def test_a_batch_names_the_entry_to_blame(data: Path) -> None:
    """The error names the entry that the processor refuses, not the whole batch."""
    read = read_data(data)
    processor = processor_of(
        LLAVA,
        ENDED.replace(
            "{{ item['text'] }}",
            "{{ raise_exception('no') if item['text'] == 'what 3' }}{{ item['text'] }}",
        ),
    )
    with pytest.raises(
        TrainingDataError, match=r"entry 4 \(line \d+\): the chat template of tiny refuses"
    ):
        Collator(read, AnswerProcessor(processor, "tiny"), None, 2)(read.entries)


def test_targets_that_write_answers_otherwise_are_refused(data: Path) -> None:
    read = read_data(data)
    processor = processor_of(
        LLAVA,
        ENDED.replace("'assistant\\n'", "'assistant'").replace(
            "message['role'] + '\\n'", "message['role']"
        ),
    )
    spaced = processor_of(
        LLAVA, ENDED.replace("'assistant\\n'", "'assistant'").replace("+ '\\n'", "+ ' '")
    )
    collate = Collator(read, AnswerProcessor(processor, "one"), AnswerProcessor(spaced, "other"), 2)
    with pytest.raises(
        TrainingDataError,
        match="chat templates of one and other make different tokens of an answer",
    ):
        collate(read.entries[:1])


def config_of(family: Family, folder: Path, **changed: Any) -> Path:
    """A config.json with nothing beside it."""
    folder.mkdir()
    config = family.build().config
    for name, value in changed.items():
        setattr(config, name, value)
    config.save_pretrained(folder)
    return folder / "config.json"


def test_a_config_starts_from_random_weights(llava: str, data: Path, tmp_path: Path) -> None:
    config = config_of(LLAVA, tmp_path / "config")
    made = [
        load_draft(
            training(data, tmp_path / "out", source, draft_config=file, target=llava, seed=seed)
        ).model
        for source, file, seed in (
            (None, config, 1),
            (str(config.parent), None, 1),
            (None, config, 2),
        )
    ]
    states = [model.state_dict() for model in made]
    assert same(states[0], states[1])
    assert not same(states[0], states[2])
    with pytest.raises(ConfigError, match="needs a processor: name a target or a processor"):
        load_draft(training(data, tmp_path / "out", None, draft_config=config))
    assert load_draft(
        training(data, tmp_path / "out", None, draft_config=config, processor=llava)
    ).parts.projector


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"image_token_index": 5}, r"takes id 5 as its image token, but its processor writes \d+"),
        ({"model_type": "unheard-of"}, r"cannot load the draft '.*config\.json': .*`unheard-of`"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    llava: str, data: Path, tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    file = config_of(LLAVA, tmp_path / "config")
    content = json.loads(file.read_text())
    file.write_text(
        json.dumps({**{k: v for k, v in content.items() if k != "image_token_id"}, **changed})
    )
    refused(
        ConfigError,
        sentence,
        training(data, tmp_path / "out", None, draft_config=file, target=llava),
    )


def test_a_vocabulary_too_small_is_refused(llava: str, data: Path, tmp_path: Path) -> None:
    file = config_of(LLAVA, tmp_path / "config")
    content = json.loads(file.read_text())
    content["text_config"]["vocab_size"] = len(tokenizer()) - 1
    file.write_text(json.dumps(content))
    refused(
        ConfigError,
        rf"has {len(tokenizer()) - 1} token ids, "
        rf"but its processor makes ids up to {len(tokenizer()) - 1}$",
        training(data, tmp_path / "out", None, draft_config=file, target=llava),
    )


def of_other_patches(folder: Path) -> Path:
    """The config of a LLaVA that needs more tokens per picture than its processor writes."""
    file = config_of(LLAVA, folder)
    content = json.loads(file.read_text())
    content["vision_config"]["patch_size"] //= 2
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("stages", ["both", "instruct"])
def test_a_config_of_other_patches_is_refused_and_may_be_corrected(
    llava: str, data: Path, tmp_path: Path, stages: str
) -> None:
    """Nothing is written, so the corrected config is no other run."""
    file = of_other_patches(tmp_path / "config")
    options = training(
        data, tmp_path / "out", None, draft_config=file, target=llava, stages=stages, max_steps=1
    )
    refused(
        ConfigError,
        r"^the draft '.*config\.json' cannot take what its processor makes of "
        r".*data\.json, entry 1 \(line \d+\), so the two may not belong together: .*features",
        options,
    )
    content = json.loads(file.read_text())
    content["vision_config"]["patch_size"] *= 2
    file.write_text(json.dumps(content))
    assert train_draft(options).losses


def test_a_target_that_cannot_take_the_entries_is_refused(
    llava: str, data: Path, tmp_path: Path
) -> None:
    """The second stage uses it, but it is tried before the first."""
    file = of_other_patches(tmp_path / "config")
    target = tmp_path / "target"
    AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(file)).save_pretrained(
        target
    )
    processor_of(LLAVA).save_pretrained(target)
    sentence = (
        r"^the target '.*target' cannot take what its processor makes of .*, entry 1 \(line \d+\)"
    )
    refused(ConfigError, sentence, training(data, tmp_path / "out", llava, distil=str(target)))


def test_an_entry_that_shows_something_is_tried(llava: str, data: Path, tmp_path: Path) -> None:
    """One entry of each kind is tried, no matter how many entries of text precede it."""
    shown, hidden = json.loads(data.read_text())[0], {"conversations": talk("hello", "hi")}
    late = data.with_name("late.json")
    late.write_text("\n".join(map(json.dumps, [*[hidden] * 20, shown])))
    options = training(
        late,
        tmp_path / "out",
        None,
        draft_config=of_other_patches(tmp_path / "config"),
        target=llava,
        stages="instruct",
    )
    refused(ConfigError, r"of .*late\.json, entry 21 \(line 21\), so", options)
    text, image, video, both = (
        Entry(name, (), images, videos)
        for name, images, videos in (
            ("text", (), ()),
            ("image", ("a",), ()),
            ("video", (), ("b",)),
            ("both", ("a",), ("b",)),
        )
    )
    assert of_each_kind([text, image, image, video, both]) == [image, video]
    assert of_each_kind([text, both, image, video]) == [both]
    assert of_each_kind([text]) == []


def test_text_alone_needs_no_eyes(llava: str, tmp_path: Path) -> None:
    """There is nothing to try before the first step."""
    text = tmp_path / "text.json"
    text.write_text(json.dumps([{"conversations": talk("hello", "hi")}]))
    assert train_draft(
        training(text, tmp_path / "out", llava, distil=llava, stages="instruct", max_steps=1)
    ).losses


def cut_off(folder: Path) -> None:
    """Remove the end of the weights, like an interrupted copy."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("role", ["draft", "distil"])
def test_weights_that_were_cut_off_are_refused(
    llava: str, data: Path, tmp_path: Path, role: str
) -> None:
    cut = tmp_path / "cut"
    save_model(LLAVA, cut)
    cut_off(cut)
    what = "target" if role == "distil" else "draft"
    models = {"draft": llava, role: str(cut)}
    refused(
        ConfigError,
        rf"^cannot load the {what} '{cut}': .+$",
        training(data, tmp_path / "out", **models),
    )


def test_a_checkpoint_that_was_cut_off_is_named(llava: str, data: Path, tmp_path: Path) -> None:
    options = training(data, tmp_path / "out", llava, stages="instruct", max_steps=1)
    train_draft(options)
    checkpoint = options.out / "checkpoints" / "instruct" / "checkpoint-1"
    cut_off(checkpoint)
    with pytest.raises(ConfigError, match=rf"^cannot load the checkpoint '{checkpoint}': .+$"):
        train_draft(options)
