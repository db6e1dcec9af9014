"""The words only: the view T of TABED."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import NO_READINGS
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.methods.tabed.text_view import text_ids
from draftlens.methods.tabed.views.base import Source, ViewError


@dataclass(frozen=True)
class TextView:
    """Each picture and each clip becomes a line break (TABED, App. I.2).

    Args:
        instead: stands in place of a picture or clip, where the prompt is made of messages. It must
            not be a placeholder of the draft: one without its features ruins the guesses.

    The prompt is made of the messages, by the draft's own processor and chat template. Callers that
    give tensors only give the view's inputs as ``draft_inputs["views"]["text"]``; without these
    they are made of the token ids, for the families for which that is safe.
    """

    instead: str = "\n"

    same_without_media = True
    rewriting = "text"
    needs_eyes = False
    readings = NO_READINGS

    def __post_init__(self) -> None:
        if not isinstance(self.instead, str):
            raise ConfigError(f"instead is a text, not {self.instead!r}")

    @property
    def label(self) -> str:
        """The name, with the text if it is not a line break."""
        return "text" if self.instead == "\n" else f"text({self.instead!r})"

    def read(self, source: Source) -> DraftPrompt:
        """See `View.read`."""
        make_inputs = source.made.get(self.label)
        if make_inputs is not None:
            return source.read(make_inputs())
        mask = source.inputs.get("attention_mask")
        config = source.config or source.backbone.model.config
        inputs = text_ids(config, source.inputs["input_ids"], mask)
        if inputs is None:
            raise ViewError(
                f"the token ids of {source.backbone.name} do not show which words belong to a "
                "picture: give messages, or the view's inputs as draft_inputs['views']['text']"
            )
        return source.read(inputs)
