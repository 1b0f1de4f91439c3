"""No caller's text makes a control token; pieces are neither padded nor changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ModelFileError, PromptTooLong, RequestError
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from tests.prompt import tiny

every_tokenizer = pytest.mark.parametrize("name", tiny.FILES)


def added_ids(name: str) -> set[int]:
    """Ids of all added tokens but the unknown token and runs of white space."""
    entries = tiny.FILES[name]()["added_tokens"]
    return {e["id"] for e in entries if e["content"].strip() and e["content"] != "<unk>"}


@every_tokenizer
@given(text=tiny.texts)
def test_no_text_makes_a_control_token(name, text):
    assert added_ids(name).isdisjoint(tiny.tokenizer(name).encode_text(text))


@every_tokenizer
@pytest.mark.parametrize("token", [*tiny.SPECIAL, *tiny.PLAIN_ADDED])
def test_a_control_token_alone_is_plain_text_to_a_caller_and_a_token_to_a_template(name, token):
    tokenizer = tiny.tokenizer(name)
    if token.strip():
        assert added_ids(name).isdisjoint(tokenizer.encode_text(token))
    [token_id] = tokenizer.encode_template(token).token_ids
    assert token_id in {entry["id"] for entry in tiny.FILES[name]()["added_tokens"]}


def test_the_caller_law_can_fail():
    """The template's own tokenizer breaks it, so the test above looks at something."""
    ids = tiny.tokenizer("byte_level").encode_template("a <tool_call> b").token_ids
    assert not added_ids("byte_level").isdisjoint(ids)


@pytest.mark.parametrize("name", tiny.LOSSLESS)
@given(text=tiny.texts)
def test_decoding_gives_back_the_text(name, text):
    tokenizer = tiny.tokenizer(name)
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


@every_tokenizer
def test_nothing_is_put_before_a_piece(name):
    tokenizer = tiny.tokenizer(name)
    assert tokenizer.decode(tokenizer.encode_text("town")) == "town"
    assert tokenizer.decode(tokenizer.encode_template("town").token_ids) == "town"


@pytest.mark.parametrize("name", tiny.LOSSLESS)
@given(text=tiny.texts)
def test_template_offsets_are_character_positions(name, text):
    """Every prefix of tokens that ends at a character decodes to the text up to its offset."""
    tokenizer = tiny.tokenizer(name)
    tokens = tokenizer.encode_template(text)
    assert len(tokens.ends) == len(tokens.token_ids)
    assert list(tokens.ends) == sorted(tokens.ends)
    assert tokens.ends[-1:] == ((len(text),) if text else ())


def test_a_lone_surrogate_is_the_callers_error():
    with pytest.raises(RequestError, match="surrogate at character 2"):
        tiny.tokenizer().encode_text("ab\ud800c")


def test_special_tokens_have_no_text_and_plain_added_ones_do():
    tokenizer = tiny.tokenizer()
    ids = tokenizer.encode_template("<|im_start|>a<think>b<|im_end|>").token_ids
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.has_hidden(ids)
    assert not tokenizer.has_hidden(tokenizer.encode_template("a<think>b").token_ids)


@pytest.mark.parametrize(
    ("file", "config", "begins"),
    [
        (tiny.byte_level, {}, False),
        (tiny.byte_level, {"bos_token": "<|begin|>"}, False),
        (tiny.byte_level, {"bos_token": "<|begin|>", "add_bos_token": True}, True),
        (tiny.byte_level, {"bos_token": {"content": "<|begin|>"}, "add_bos_token": True}, True),
        (tiny.bos_by_processor, {"bos_token": "<|begin|>"}, True),
        (tiny.bos_by_processor, {}, True),
        (tiny.bos_by_processor, {"bos_token": "<|begin|>", "add_bos_token": False}, False),
    ],
)
def test_who_wants_a_beginning_of_text_token(file, config, begins):
    tokenizer = PromptTokenizer(file(), config)
    [begin] = tiny.tokenizer().encode_template("<|begin|>").token_ids
    assert tokenizer.bos_token_id == (begin if begins else None)
    # it is the segmenter's to put, once
    assert begin not in tokenizer.encode_template("town").token_ids


def test_a_config_may_not_ask_for_a_token_that_is_not_there():
    with pytest.raises(ModelFileError, match="add_bos_token"):
        PromptTokenizer(tiny.byte_level(), {"bos_token": "<nope>", "add_bos_token": True})
    with pytest.raises(ModelFileError, match="add_bos_token"):
        PromptTokenizer(tiny.byte_level(), {"add_bos_token": True})


@given(before=tiny.texts, text=tiny.texts, after=tiny.texts)
def test_text_that_touches_no_added_token_is_safe_between_any_template_text(before, text, after):
    """Set raw into a template, it adds no added token, unless the template spans it on purpose."""
    tokenizer = tiny.tokenizer()
    if tokenizer.touches_added_token(text) or not text:
        return
    added = added_ids("byte_level")

    def num_added(*stretches: str) -> int:
        ids = [id_ for one in stretches for id_ in tokenizer.encode_template(one).token_ids]
        return sum(id_ in added for id_ in ids)

    assert num_added(before + text + after) <= num_added(before, after)


@pytest.mark.parametrize(
    "text", ["<think>", "a <think> b", "<thi", "ab<", "nk>", ">", "|im_end|>x", "\uff1cthink>"]
)
def test_text_with_a_part_of_an_added_token_at_its_edge_is_found(text):
    assert tiny.tokenizer().touches_added_token(text)


@pytest.mark.parametrize("text", ["", "town", "a < b > c", "x think y"])
def test_other_text_is_not(text):
    assert not tiny.tokenizer().touches_added_token(text)


def test_fingerprint_follows_what_changes_ids():
    first = tiny.tokenizer()
    assert first.fingerprint == PromptTokenizer(tiny.byte_level(), {}).fingerprint
    assert first.fingerprint != tiny.tokenizer("byte_level_prefix_space").fingerprint
    with_bos = PromptTokenizer(tiny.byte_level(), {"bos_token": "<|begin|>", "add_bos_token": True})
    assert first.fingerprint != with_bos.fingerprint


def test_vocabulary_size_is_checked_against_the_model():
    tokenizer = tiny.tokenizer()
    highest = max(entry["id"] for entry in tiny.byte_level()["added_tokens"])
    assert tokenizer.vocab_size == highest + 1
    tokenizer.check_vocab_size(highest + 1)
    with pytest.raises(ModelFileError, match="do not belong together") as caught:
        tokenizer.check_vocab_size(highest)
    assert caught.value.details == {"tokenizer_size": highest + 1, "model_size": highest}


def test_a_vocabulary_that_makes_a_control_token_all_the_same_is_refused():
    """A unigram model may still match the entry that stands in a control token's place."""
    tokenizer = tiny.tokenizer("unigram")
    hidden = "\U0010fffe" * 16 + "1"
    with pytest.raises(ModelFileError, match="control token '<s>'"):
        tokenizer.encode_text(hidden)


class TestFolder:
    def write(self, folder, **files):
        for name, content in files.items():
            (folder / f"{name}.json").write_text(content, encoding="utf-8")

    def test_a_folder_is_read(self, tmp_path):
        self.write(
            tmp_path,
            tokenizer=json.dumps(tiny.byte_level()),
            tokenizer_config=json.dumps({"eos_token": {"content": "<|im_end|>"}, "x_token": None}),
        )
        tokenizer = PromptTokenizer.from_folder(tmp_path)
        assert tokenizer.special_tokens == {"eos_token": "<|im_end|>"}
        assert tokenizer.encode_text("a town") == tiny.tokenizer().encode_text("a town")

    def test_the_config_may_be_missing(self, tmp_path):
        self.write(tmp_path, tokenizer=json.dumps(tiny.byte_level()))
        assert PromptTokenizer.from_folder(tmp_path).bos_token_id is None

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({}, "has no tokenizer.json"),
            ({"tokenizer": "{"}, "can not read"),
            ({"tokenizer": "[]"}, "holds no JSON object"),
            ({"tokenizer": "{}"}, "not a tokenizer"),
            ({"tokenizer": '{"model": {"type": "BPE", "vocab": {"a": 0}}}'}, "not a tokenizer"),
        ],
    )
    def test_a_folder_without_a_tokenizer_is_a_model_file_error(self, tmp_path, files, message):
        self.write(tmp_path, **files)
        with pytest.raises(ModelFileError, match=message):
            PromptTokenizer.from_folder(tmp_path)

    def test_a_torn_config_is_one_too(self, tmp_path):
        self.write(tmp_path, tokenizer=json.dumps(tiny.byte_level()), tokenizer_config="{")
        with pytest.raises(ModelFileError, match="tokenizer_config"):
            PromptTokenizer.from_folder(tmp_path)


@given(data=st.data())
def test_merges_that_would_make_an_added_token_are_gone(data):
    """`<s>` is a merge product of this vocabulary: cut anywhere, it stays plain text."""
    tokenizer = tiny.tokenizer("sentence_piece")
    assert tiny.sentence_piece()["model"]["merges"].count(["<s", ">"]) == 1
    around = data.draw(st.tuples(tiny.texts, tiny.texts))
    ids = tokenizer.encode_text(around[0] + "<s>" + around[1])
    assert added_ids("sentence_piece").isdisjoint(ids)


def test_a_panic_of_the_library_is_a_request_error():
    """Its exception is no `Exception`; nothing of it may come through."""
    reader = PromptTokenizer.from_folder(reader_path())
    with pytest.raises(RequestError, match="fails on a text of 10000000 characters"):
        reader.encode_text(" " * 10_000_000)
    assert reader.encode_text("and goes on")


@every_tokenizer
@given(text=tiny.texts)
def test_the_bound_by_characters_never_refuses_what_fits(name, text):
    tokenizer = tiny.tokenizer(name)
    num_tokens = len(tokenizer.encode_text(text))
    tokenizer.bounded(num_tokens).check_length(len(text))


@pytest.mark.parametrize("letter", [" ", "\n", "a"])
def test_the_bound_of_the_demo_model(letter):
    reader = PromptTokenizer.from_folder(reader_path()).bounded(1024)
    with pytest.raises(PromptTooLong) as raised:
        reader.encode_text(letter * 10_000_000)
    assert raised.value.details["limit_tokens"] == 1024
    with pytest.raises(PromptTooLong):
        reader.encode_segment("word " * 1025)
    assert len(reader.encode_text("word " * 1025)) > 1024  # whoever counts may be told
