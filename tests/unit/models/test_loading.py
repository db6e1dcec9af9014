"""Words for how models are loaded, and the arguments of transformers that they become."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import embedded_tokenizer, language_model
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

import draftlens
from draftlens.cli.options import ModelOptions
from draftlens.core.errors import ConfigError, IncompatiblePairError, UnsupportedModelError
from draftlens.load_engine import open_models
from draftlens.models.known_pairs import EMBEDDED, path_of
from draftlens.models.load import known_draft, load_model, load_pair
from draftlens.models.loading import LoadOptions, LoadWords, PairOptions, pair_options

CPU = LoadOptions(device="cpu")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("auto", "auto"),
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        (torch.bfloat16, "bfloat16"),
        ("half", "float16"),
        (torch.float32, "float32"),
        (None, None),
    ],
)
def test_words_for_dtypes(word: Any, name: str | None) -> None:
    assert LoadOptions(dtype=word).dtype == name


def test_the_command_line_and_python_know_the_same_options() -> None:
    names = [field.name for field in fields(LoadOptions)]
    assert [field.name for field in fields(ModelOptions)] == names
    words = {"device", "dtype", *LoadWords.__annotations__}
    assert words == {
        *names,
        "torch_dtype",
        "draft_torch_dtype",
        *(f"draft_{name}" for name in names),
    }


def test_a_draft_is_loaded_like_its_target_but_for_what_belongs_to_one_checkpoint() -> None:
    options = pair_options(
        {
            "device": "cpu",
            "torch_dtype": "bf16",
            "revision": "v2",
            "quantization": "4bit",
            "cache_dir": "downloads",
            "trust_remote_code": True,
            "attn_implementation": "eager",
            "draft_dtype": "fp32",
            "draft_revision": None,
        }
    )
    assert options.target.dtype == "bfloat16"
    assert options.draft == LoadOptions(
        device="cpu", dtype="float32", cache_dir="downloads", attn_implementation="eager"
    )
    spread = pair_options({"device_map": "auto"})
    assert spread.draft.device_map == "auto"
    here = pair_options({"device_map": "auto", "draft_device": "cpu"})
    assert (here.draft.device, here.draft.device_map) == ("cpu", None)
    by_parts = pair_options({"device_map": {"": "cpu"}})
    assert by_parts.draft.device_map is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"revison": "v2"}, "there is no option 'revison'; a model is loaded with device, dtype"),
        ({"draft_bits": 4}, "there is no option 'draft_bits'"),
        ({"dtype": "int3"}, "unknown dtype 'int3'; known: auto, float32, bfloat16, float16"),
        ({"dtype": "bf16", "torch_dtype": "fp32"}, "dtype and torch_dtype contradict each other"),
        ({"attn_implementation": "flash_attention_2"}, "takes no tree mask; known: sdpa, eager"),
        ({"quantization": "3bit"}, "unknown quantization '3bit'; known: 4bit, 8bit, int8, int4"),
        ({"quantization": {"bits": 4}}, "needs quant_method"),
        ({"quantization": 4}, "a quantization is one of 4bit, 8bit, int8, int4"),
        ({"device_map": "everywhere"}, "unknown device_map 'everywhere'; known: auto, balanced"),
        ({"device_map": "auto", "device": "cpu"}, "contradict each other: name one of them"),
        ({"trust_remote_code": "yes"}, "trust_remote_code must be true or false, not 'yes'"),
    ],
)
def test_bad_words_are_refused_before_anything_is_loaded(words: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        draftlens.load("/no/such/model", **words)


def test_weights_go_straight_to_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LoadOptions(device="cuda:1").model_arguments() == {
        "dtype": "auto",
        "attn_implementation": "sdpa",
        "device_map": {"": "cuda:1"},
    }
    assert CPU.model_arguments()["device_map"] is None
    assert LoadOptions(device="auto").model_arguments()["device_map"] == "auto"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert LoadOptions().model_arguments()["device_map"] == {"": "cuda"}


def test_options_reach_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    read = AutoModelForImageTextToText.from_pretrained

    def note(path: str, **arguments: Any) -> Any:
        seen.append(arguments)
        return read(path, **arguments)

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", note)
    loaded = load_model(
        EMBEDDED,
        "draft",
        LoadOptions(
            device="cpu",
            dtype="bf16",
            attn_implementation="eager",
            trust_remote_code=True,
            cache_dir=tmp_path,
        ),
    )
    assert seen[0]["trust_remote_code"]
    assert seen[0]["cache_dir"] == str(tmp_path)
    assert loaded.backbone.dtype is torch.bfloat16
    assert loaded.backbone.attention == "eager"


def with_code(name: str, role: str, folder: Path) -> Path:
    """A copy of a checkpoint with code of its own, which leaves a file where it is run."""
    shutil.copytree(path_of(name, role), folder)
    (folder / "code.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / 'was_run')!r}).touch()\n"
        "from transformers import AutoConfig, PretrainedConfig\n"
        "class OwnConfig(PretrainedConfig):\n"
        "    pass\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "code.OwnConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("by_auto", [False, True])
def test_code_of_a_draft_is_not_run_because_that_of_its_target_may_be(
    by_auto: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nobody named the draft."""
    draft = with_code(EMBEDDED, "draft", tmp_path / "draft")
    monkeypatch.setattr("draftlens.models.load.draft_for", lambda target: str(draft))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    name = "auto" if by_auto else str(draft)
    options = {"device": "cpu", "trust_remote_code": True}
    loaded = load_pair(EMBEDDED, name, pair_options(options))
    assert loaded[1] is not None
    assert not (draft / "was_run").exists()
    with pytest.raises(ConfigError, match="cannot load the draft"):  # no model has this class
        load_pair(EMBEDDED, name, pair_options({**options, "draft_trust_remote_code": True}))
    assert (draft / "was_run").exists()


def test_a_quantization_without_its_package_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(**_: Any) -> None:
        raise ImportError("No package metadata was found for bitsandbytes")

    monkeypatch.setattr("draftlens.models.loading.BitsAndBytesConfig", missing)
    with pytest.raises(ConfigError, match="'4bit' needs a package that is not installed"):
        load_model(EMBEDDED, "draft", LoadOptions(device="cpu", quantization="4bit"))


def test_configurations_of_transformers_pass_through() -> None:
    config = BitsAndBytesConfig(load_in_8bit=True)
    assert LoadOptions(quantization=config).model_arguments()["quantization_config"] is config
    named = LoadOptions(quantization={"quant_method": "gptq", "bits": 4}).model_arguments()
    assert named["quantization_config"].bits == 4
    with pytest.raises(ConfigError, match="is refused"):
        LoadOptions(quantization={"quant_method": "magic"}).model_arguments()


def test_an_engine_from_loaded_objects_says_what_a_loaded_one_says() -> None:
    chain = {"num_speculative_tokens": 3}
    engine = draftlens.load(device="cpu", method=chain)
    assert engine.draft is not None
    target, draft = engine.target.backbone.model, engine.draft.backbone.model
    processor = engine.target.processor
    own = draftlens.Engine(target=target, processor=processor, draft=draft, method=chain)
    expected = engine.generate("Hello", max_new_tokens=12)
    result = own.generate("Hello", max_new_tokens=12)
    assert result.tokens == expected.tokens
    assert result.stats.drafted > 0
    assert own.draft is not None
    assert own.draft.processor is processor
    with pytest.raises(ConfigError, match="needs its processor"):
        draftlens.Engine(target=target)
    with pytest.raises(UnsupportedModelError, match="a transformers model is needed"):
        draftlens.Engine(target="embedded", processor=processor)
    with pytest.raises(UnsupportedModelError, match=r"processor of the target .* is a tokenizer"):
        draftlens.Engine(target=target, processor=processor.tokenizer)


def test_a_draft_of_text_only_comes_without_a_processor() -> None:
    engine = draftlens.load(device="cpu", draft=None)
    target, processor = engine.target.backbone.model, engine.target.processor
    method = {"method": "tabed", "views": ["text"]}
    own = draftlens.Engine(target, language_model(), method, processor=processor)
    result = own.generate("Hello", max_new_tokens=8)
    assert result.tokens == engine.generate("Hello", max_new_tokens=8).tokens
    other = embedded_tokenizer("x")
    other.add_tokens([f"word{number}" for number in range(2000)])
    with pytest.raises(IncompatiblePairError, match="tokens"):
        draftlens.Engine(target, language_model(), processor=processor, draft_processor=other)


def test_without_a_known_draft_lookup_stands_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = path_of(EMBEDDED, "draft")
    opened = open_models(stranger, options=PairOptions(CPU, CPU))
    assert opened.method is None
    assert opened.draft is None
    assert "no draft is known for" in opened.notice
    assert "method 'lookup' drafts from the text instead" in caplog.text
    with pytest.raises(ConfigError, match=r"no draft is known .* and the method needs one"):
        open_models(stranger, method="speculative", options=PairOptions(CPU, CPU))
    assert known_draft(path_of(EMBEDDED, "target"), CPU) == EMBEDDED


@pytest.mark.parametrize("method", ["specvlm", "parallelvlm", "tabed", draftlens.SpecVLM()])
def test_without_a_known_draft_a_method_with_a_use_for_one_lets_the_target_draft(
    method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = path_of(EMBEDDED, "draft")
    opened = open_models(stranger, method=method, options=PairOptions(CPU, CPU))
    assert opened.draft is None
    assert opened.method == method
    assert opened.notice == f"no draft is known for {stranger!r}; the target drafts for itself"
    assert opened.notice in caplog.text
    needing = {"method": "specvlm", "draft": "model"}
    with pytest.raises(ConfigError, match=r"no draft is known .* and the method needs one"):
        open_models(stranger, method=needing, options=PairOptions(CPU, CPU))


@pytest.mark.parametrize("method", ["lookup", "plain", {"method": "specvlm", "draft": "self"}])
def test_a_method_without_a_use_for_a_draft_looks_for_none(method: Any) -> None:
    opened = open_models(path_of(EMBEDDED, "draft"), method=method, options=PairOptions(CPU, CPU))
    assert (opened.draft, opened.notice) == (None, "")


def test_a_known_draft_that_cannot_be_loaded_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("draftlens.load_engine.known_draft", lambda *_: "/no/such/draft")
    opened = open_models(EMBEDDED, options=PairOptions(CPU, CPU))
    assert opened.draft is None
    assert opened.notice.startswith("cannot load the draft '/no/such/draft': there is no such")
    with pytest.raises(ConfigError, match="cannot load the draft"):
        open_models(EMBEDDED, method="speculative", options=PairOptions(CPU, CPU))


@pytest.mark.parametrize("method", ["speculative", {"method": "specvlm", "draft": "model"}])
def test_a_method_that_needs_a_draft_is_refused_before_loading(method: Any) -> None:
    with pytest.raises(ConfigError, match="the method needs a draft model: name one"):
        draftlens.load("/no/such/model", draft=None, method=method)
