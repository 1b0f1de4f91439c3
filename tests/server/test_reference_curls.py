"""The reference implementation's own three commands, as its README has them, against a process."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from tests.cli.test_serve import server
from tests.server.served import call

COMMANDS = r"""
curl localhost:30000/generate -H 'Content-Type: application/json' -d '{
  "text": "The Eiffel Tower is in Paris, France.",
  "sampling_params": {"temperature": 0, "max_new_tokens": 1}
}'
curl localhost:30000/generate -H 'Content-Type: application/json' -d '{
  "text": "Mount Fuji is the tallest mountain in Japan.",
  "sampling_params": {"temperature": 0, "max_new_tokens": 1}
}'
curl localhost:30000/generate -H 'Content-Type: application/json' -d '{
  "text": "You are a helpful assistant.<<PIC_SEP>>The Eiffel Tower is in Paris, France.<<PIC_SEP>>Mount Fuji is the tallest mountain in Japan.<<PIC_SEP>>Question: In which country is the Eiffel Tower?",
  "sampling_params": {"temperature": 0, "max_new_tokens": 512}
}'
"""  # noqa: E501  as it stands there
# the same where only the counts are looked at
SHORT_ANSWER = COMMANDS.replace('"max_new_tokens": 512', '"max_new_tokens": 4')
SENTENCES = (
    "The Eiffel Tower is in Paris, France.",
    "Mount Fuji is the tallest mountain in Japan.",
)
TOKENIZER = PromptTokenizer.from_folder(reader_path())


def curl(url: str, words: list[str]) -> dict[str, Any]:
    """What a curl command would get; it names the port of the test's server instead of 30000."""
    port = url.rpartition(":")[2]
    address, *rest = words
    host, path = address.replace(":30000", f":{port}").split("/", 1)
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    name, _, value = options["-H"].partition(": ")
    answer = call(f"http://{host}", "POST", f"/{path}", options["-d"].encode(),
                  headers={name: value})  # fmt: skip
    assert answer.status == 200, answer.text
    return dict(answer.json)


def run(url: str, commands: str) -> list[dict[str, Any]]:
    words = [word for word in shlex.split(commands) if word]
    starts = [place for place, word in enumerate(words) if word == "curl"]
    stops = [*starts[1:], len(words)]
    return [curl(url, words[start + 1 : stop]) for start, stop in zip(starts, stops, strict=True)]


def uses(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return list(reply["meta_info"]["hypic"]["segments"])


def test_with_the_defaults(tmp_path: Path) -> None:
    with server(cache=tmp_path) as (_, url):
        its_own_sentences_are_too_short_to_be_kept(url)
        documents_of_a_hundred_tokens_count_their_interiors(url)


def its_own_sentences_are_too_short_to_be_kept(url: str) -> None:
    *warmed, asked = run(url, COMMANDS)
    assert [reply["meta_info"]["completion_tokens"] for reply in warmed] == [1, 1]
    assert asked["meta_info"]["cached_tokens"] == 0
    assert {one["miss_reason"] for one in uses(asked)} == {"below_min_tokens"}
    assert len(uses(asked)) == 3
    assert isinstance(asked["text"], str)


def documents_of_a_hundred_tokens_count_their_interiors(url: str) -> None:
    texts = [of_tokens(text, 100) for text in list(DOCUMENTS.values())[:2]]
    commands = SHORT_ANSWER
    for sentence, text in zip(SENTENCES, texts, strict=True):
        commands = commands.replace(sentence, json.dumps(text)[1:-1].replace("'", "'\\''"))
    asked = run(url, commands)[-1]
    _, *documents = uses(asked)
    assert [one["status"] for one in documents] == ["hit", "hit"]
    assert [one["tokens"] for one in documents] == [100, 100]
    # a head seam of 8 tokens is recomputed in place
    assert asked["meta_info"]["cached_tokens"] == 2 * (100 - 8)


def test_with_no_seam_and_no_minimum_both_count_whole(tmp_path: Path) -> None:
    words = ("--mode", "transition_rope", "--min-segment-tokens", "1")
    with server(*words, cache=tmp_path) as (_, url):
        asked = run(url, SHORT_ANSWER)[-1]
    lengths = [len(TOKENIZER.encode_text(text)) for text in SENTENCES]
    assert asked["meta_info"]["cached_tokens"] == sum(lengths)
    _, *documents = uses(asked)
    assert [one["status"] for one in documents] == ["hit", "hit"]
    assert [one["reused_tokens"] for one in documents] == lengths


def of_tokens(text: str, num_tokens: int) -> str:
    """The beginning of a text that has exactly so many tokens."""
    ids = TOKENIZER.encode_text(text * 3)[:num_tokens]
    cut = TOKENIZER.decode(ids)
    assert TOKENIZER.encode_text(cut) == ids
    return cut
