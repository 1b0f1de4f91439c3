"""Fields of other servers that change an answer and are not offered: no caller is left to guess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

Neutral = Mapping[str, tuple[Any, ...]]
"""By field, the values that ask for what is done anyway; null always does."""

OF_ALL: Neutral = MappingProxyType(
    {
        # which tokens are drawn
        "allowed_token_ids": ([],),
        "bad_words": ([],),
        "logits_processors": ([],),
        "use_beam_search": (False,),
        "length_penalty": (1,),
        "guided_whitespace_pattern": (),
        "regex": (),
        "ebnf": (),
        # what of them is said
        "include_stop_str_in_output": (False,),
        "no_stop_trim": (False,),
        "skip_special_tokens": (True,),
        "return_tokens_as_token_ids": (False,),
        # what the prompt becomes
        "truncate_prompt_tokens": (),
        "prompt_embeds": (),
    }
)
OF_CHAT: Neutral = MappingProxyType(
    {
        "echo": (False,),
        "chat_template": (),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
        "include_reasoning": (True,),
        "separate_reasoning": (True,),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"], []),
        "audio": (),
    }
)
OF_COMPLETIONS: Neutral = MappingProxyType({"suffix": ("",), "add_special_tokens": (True,)})

OF_GENERATE: Neutral = MappingProxyType(
    {
        "input_ids": (),
        "input_embeds": (),
        "image_data": ([],),
        "video_data": ([],),
        "audio_data": ([],),
        "return_logprob": (False,),
        "return_hidden_states": (False,),
        "return_prompt_token_ids": (False,),
        "session_params": ({},),
        "lora_path": (),
        "custom_logit_processor": (),
        "require_reasoning": (False,),
        "max_thinking_tokens": (),
    }
)
OF_GENERATE_SAMPLING: Neutral = MappingProxyType(
    {
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "no_stop_trim": (False,),
        "stop_regex": ([], ""),
        "logit_bias": ({},),
        "custom_params": ({},),
        "ebnf": (),
        "structural_tag": (),
        "stream_interval": (1,),
    }
)


def not_offered(fields: Mapping[str, Any], *tables: Neutral) -> Iterator[str]:
    """Names of fields that ask for something else than what is done anyway."""
    for name, neutral in {name: one for table in tables for name, one in table.items()}.items():
        value = fields.get(name)
        if value is not None and not any(_same(value, one) for one in neutral):
            yield name


def _same(value: Any, neutral: Any) -> bool:
    # 1 == True in Python; in a body they are not the same
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
