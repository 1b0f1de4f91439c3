"""Train the reader's byte-level BPE and write its tokenizer files.

    python -m hypic_sdk.demo.build_tokenizer --out DIR [--prose FILE ...]

Prose files hold one sentence a line; the shipped tokenizer used WordNet glosses.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hypic_sdk.demo.questions import make_example
from hypic_sdk.demo.worlds import WorldSpec

VOCAB_SIZE = 8192
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|reserved_{i}|>" for i in range(7)),
)
PLAIN_ADDED_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
#: as Qwen's, save that a word with a capital never takes the space before it, so that a name has
#: the same tokens in a sentence and alone
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{Ll}\p{Lm}\p{Lo}\p{M}][\p{L}\p{M}]*"
    r"|\p{L}[\p{L}\p{M}]*"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}{%- for part in content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- macro show_tools() -%}
{{- '# Tools\\n\\nThese functions may be called:\\n\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\n\\nA call is written like this:\\n\\n<tool_call>\\n<function=name>\\n' -}}
{{- '<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' -}}
{%- endmacro -%}
{%- macro show_call(call) -%}
{{- '<tool_call>\\n<function=' + call.name + '>\\n' -}}
{%- if call.arguments is mapping -%}
{%- for key, value in call.arguments | items -%}
{{- '<parameter=' + key + '>\\n' -}}
{%- if value is string -%}{{- value -}}{%- else -%}{{- value | tojson -}}{%- endif -%}
{{- '\\n</parameter>\\n' -}}
{%- endfor -%}
{%- elif call.arguments -%}{{- call.arguments -}}{{- '\\n' -}}{%- endif -%}
{{- '</function>\\n</tool_call>' -}}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools and messages[0].role != 'system' -%}
{{- '<|im_start|>system\\n' + show_tools() + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' and message.reasoning_content and loop.index0 > ns.last_user -%}
{{- '<think>\\n' -}}{{- message.reasoning_content -}}{{- '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- text(message.content) -}}
{%- if tools and loop.first and message.role == 'system' -%}
{{- '\\n\\n' + show_tools() -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- show_call(call.function) -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking -%}{{- '<think>\\n' -}}{%- endif -%}
{%- endif -%}
"""


def corpus(num_worlds: int, prose: Sequence[str]) -> Iterator[str]:
    """Yield texts to train on: documents, questions, answers, then prose."""
    rng = random.Random(0)
    for seed in range(num_worlds):
        spec = WorldSpec(4, rng.choice((40, 100, 200)), num_questions=6, updates=2, events=1)
        example = make_example(spec, seed)
        yield from example.documents
        yield from (q.text for q in example.questions)
        yield from (q.answer for q in example.questions)
    yield from prose


def train_tokenizer(num_worlds: int, prose: Sequence[str]) -> Tokenizer:
    """Train the vocabulary; added tokens take the last ids."""
    num_added = len(SPECIAL_TOKENS) + len(PLAIN_ADDED_TOKENS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - num_added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(num_worlds, prose), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in PLAIN_ADDED_TOKENS]
    )
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 8192,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "do_sample": False,
        "eos_token_id": [
            tokenizer.token_to_id("<|im_end|>"),
            tokenizer.token_to_id("<|endoftext|>"),
        ],
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "max_new_tokens": 64,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prose", type=Path, nargs="*", default=())
    parser.add_argument("--num-worlds", type=int, default=8000)
    args = parser.parse_args(argv)
    prose = [line for path in args.prose for line in path.read_text().splitlines()]
    tokenizer = train_tokenizer(args.num_worlds, prose)
    write_tokenizer(tokenizer, args.out)
    sys.stdout.write(f"{args.out}: {tokenizer.get_vocab_size()} entries\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
