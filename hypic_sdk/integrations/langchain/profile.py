"""What LangChain's agents ask of a model before they use it: core's `ModelProfile`."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.language_models.model_profile import ModelProfile

from hypic_sdk.wire.models import ModelObject


def profile_of_any() -> ModelProfile:
    """What is true of every model that is served; nobody is asked."""
    return ModelProfile(
        text_inputs=True,
        image_inputs=False,
        image_url_inputs=False,
        pdf_inputs=False,
        audio_inputs=False,
        video_inputs=False,
        image_tool_message=False,
        pdf_tool_message=False,
        text_outputs=True,
        image_outputs=False,
        audio_outputs=False,
        video_outputs=False,
        tool_call_streaming=True,
        structured_output=True,  # also beside tools: a reply is a call, or of the form
        attachment=False,
        temperature=True,
    )


def served_profile(models: Iterable[ModelObject], name: str | None) -> ModelProfile:
    """What a server tells of one of its models; without a name of the first.

    Nothing of one that is not there: a request for it is refused, with the reason.
    """
    found = [one for one in models if name is None or one.id == name][:1]
    told = ModelProfile()
    for one in found:
        able = one.hypic
        told = ModelProfile(name=one.id, tool_calling=able.tools, tool_choice=able.tools)
        if able.max_context_tokens is not None:
            told["max_input_tokens"] = able.max_context_tokens
    return told
