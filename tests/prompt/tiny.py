"""Small tokenizers and chat templates, made at test time, with the quirks of real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.tokenizer import PromptTokenizer

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|end_head|>")
PLAIN_ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "  ")

CORPUS = (
    "The town of Norwick lies on the river Ash, and Ada Lindqvist works for Brenholt Foods there.",
    "system user assistant tool\n\nWho works for whom? <|im_start|> <tool_call> <think>  spaces",
    "日本語 and Ελληνικά and 🙂 stand here; numbers like 1984 and 3.14 too.\n",
)


def _added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PLAIN_ADDED])
    return tokenizer


def _file(tokenizer: Tokenizer) -> dict[str, Any]:
    loaded = json.loads(tokenizer.to_str())
    assert isinstance(loaded, dict)
    return loaded


@cache
def _byte_level(prefix_space: bool) -> str:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        # the trained vocabulary itself has two of the added tokens, as Llama's does
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 5, trainer)
    return _added(tokenizer).to_str()


def byte_level(*, prefix_space: bool = False) -> dict[str, Any]:
    """A byte-level BPE: decoding gives back any text byte for byte."""
    return dict(json.loads(_byte_level(prefix_space)))


def bos_by_processor() -> dict[str, Any]:
    """The same, whose own steps put `<|begin|>` before each text, as Llama 3's do."""
    tokenizer = Tokenizer.from_str(_byte_level(False))
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    return _file(tokenizer)


def sentence_piece() -> dict[str, Any]:
    """A BPE with byte fallback and a space put before each text, as Llama 2's has."""
    symbols = sorted({char for text in CORPUS for char in text.replace(" ", "▁")} - set("日本🙂"))
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *symbols]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("<", "s"), ("<s", ">"), ("o", "r")]
    vocab = {word: number for number, word in enumerate(words)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>"])
    return _file(_added(tokenizer))


def unigram() -> dict[str, Any]:
    """A unigram model with a word mark, whose vocabulary lists its control tokens."""
    symbols = sorted({char for text in CORPUS for char in text.replace(" ", "▁")})
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁the", -3.0), ("or", -4.0)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((char, -9.0) for char in symbols)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>"])
    return _file(_added(tokenizer))


def word_level() -> dict[str, Any]:
    """Whole words, among them the control tokens themselves."""
    words = ["<unk>", "<s>", "</s>", "the", "town", "of"]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<unk>"])
    return _file(_added(tokenizer))


FILES: Mapping[str, Any] = {
    "byte_level": byte_level,
    "byte_level_prefix_space": lambda: byte_level(prefix_space=True),
    "sentence_piece": sentence_piece,
    "unigram": unigram,
    "word_level": word_level,
}
# those that give back every text
LOSSLESS = ("byte_level", "byte_level_prefix_space", "sentence_piece")


@cache
def tokenizer(name: str = "byte_level") -> PromptTokenizer:
    """One of the small tokenizers, by name."""
    return PromptTokenizer(FILES[name](), {"eos_token": "<|im_end|>"})


@cache
def chat_template(source: str, over: PromptTokenizer | None = None) -> ChatTemplate:
    """A template with the tokens of the small tokenizers."""
    over = over or tokenizer()
    return ChatTemplate(
        source,
        special_tokens={"bos_token": "<|begin|>", "eos_token": "<|im_end|>"},
        makes_added_token=over.touches_added_token,
    )


CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# trims every text, writes its own beginning of text, holds the system message outside of its loop
TRIMMING = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- if system_message %}
    {{- '<|head|>system<|end_head|>\\n\\n' + system_message + '<|im_end|>' }}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'tool' %}
        {{- '<|head|>ipython<|end_head|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|im_end|>' }}
    {%- elif message.tool_calls %}
        {{- '<|head|>assistant<|end_head|>\\n\\n' }}
        {%- for call in message.tool_calls %}
            {{- {'name': call.function.name, 'parameters': call.function.arguments} | tojson }}
        {%- endfor %}
        {{- '<|im_end|>' }}
    {%- else %}
        {{- '<|head|>' + message['role'] + '<|end_head|>\\n\\n' + message['content'] | trim }}
        {{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|end_head|>\\n\\n' }}
{%- endif %}
"""

# drops the reasoning of earlier turns, groups tool results, looks into texts, refuses odd prompts
REASONING = """\
{%- macro shown(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable %}
        {%- for item in content %}{{- item.text }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('No messages provided.') }}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>' }}
    {%- if messages[0].role == 'system' %}
        {{- '\\n\\n' + shown(messages[0].content) | trim }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + shown(messages[0].content) | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(looking=true, last_query=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.looking and message.role == 'user' %}
        {%- set content = shown(message.content) | trim %}
        {%- if not content.startswith('<tool_response>') %}
            {%- set ns.looking = false %}
            {%- set ns.last_query = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.looking %}
    {{- raise_exception('No user query found in messages.') }}
{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content | trim }}
            {{- '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function or tool_call %}
            {{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- for name, value in call.arguments | items %}
                {{- '<parameter=' + name + '>\\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""

TEMPLATES: Mapping[str, str] = {"chatml": CHATML, "trimming": TRIMMING, "reasoning": REASONING}

_FRAGMENTS = (
    *SPECIAL,
    *PLAIN_ADDED,
    "</tool_response>",
    "<tool_response>\nx\n</tool_response>",
    "<<PIC_SEP>>",
    "<unk>",
    "the town",
    " ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\ufffd",
    "{{ bos_token }}",
    "{% raw %}",
    '"quotes" and \\backslashes\\',
    "\U000f0000",
    "\U000f0001",
    "\U00100000",
    "\U0010fffd",
    "\ue000",
    "🙂",
    "日本",
    "e\u0301",
    "\x00",
)

fragments = st.sampled_from(_FRAGMENTS) | st.text(
    # the word mark is a space to SentencePiece, whoever writes it
    st.characters(exclude_categories=["Cs"], exclude_characters="▁"),
    max_size=8,
)
texts = st.lists(fragments, max_size=6).map("".join)
"""Any text a caller may send, rich in what could be taken for structure."""

full_texts = texts.filter(bool)
"""The same, not empty."""
