"""`LocalHypic`: the client's calls over a service in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ModelFileError, PromptTooLong, SegmentNotFound, WorkerLost
from hypic_sdk.offline import LocalHypic
from hypic_sdk.prompt.segment import segment_id
from tests.prompt import tiny
from tests.service.services import saying, service

ASK = [{"role": "user", "content": "Where?"}]


def local(text: str = "On the Ash.") -> LocalHypic:
    return LocalHypic.over(service(saying(text)))


class TestSegments:
    def test_create_and_find_again(self):
        hypic = local()
        made = hypic.segments.create("A town", external_id="doc", title="T", metadata={"page": 1})
        assert made.created
        assert hypic.segments.retrieve(made.id) == hypic.segments.retrieve(made)
        assert hypic.segments.find("doc").title == "T"
        assert hypic.segments.list().data[0].id == segment_id("A town")

    def test_create_many_in_order_and_in_any_number(self):
        hypic = local()
        texts = [f"town {number}" for number in range(600)]
        made = hypic.segments.create_many(text for text in texts)
        assert [one.id for one in made] == [segment_id(text) for text in texts]
        assert len(hypic.segments.list(limit=1000).data) == 600
        [again, other] = hypic.segments.create_many([texts[0], {"text": "new", "title": "N"}])
        assert (again.created, other.created, other.title) == (False, True, "N")
        assert hypic.segments.create_many([]) == ()

    def test_external_ids_move_on_purpose_only(self):
        hypic = local()
        hypic.segments.create("A", external_id="doc")
        hypic.segments.create("B", external_id="doc", replace_external=True)
        assert hypic.segments.find("doc").id == segment_id("B")

    def test_lookup_and_delete(self):
        hypic = local()
        made = hypic.segments.create("A town", warm="wait")
        assert hypic.segments.lookup([made])[made.id].state == "warm"
        assert hypic.segments.delete(made).deleted
        assert hypic.segments.lookup([made.id])[made.id].state == "unknown"
        with pytest.raises(SegmentNotFound):
            hypic.segments.delete(made)

    def test_warming(self):
        hypic = local()
        made = hypic.segments.create_many(["A town", "B town"])
        seen = []
        job = hypic.segments.warm.create(made)
        assert job.wait(timeout_s=10, on_progress=seen.append).counts.done == 2
        assert seen[-1].status == "succeeded"
        again = hypic.segments.warm.create([one.id for one in made])
        assert again.wait(timeout_s=10).counts.already_warm == 2
        hypic.segments.create("C town", warm="async")


class TestChat:
    def test_a_chat_over_documents(self):
        hypic = local()
        made = hypic.segments.create("Norwick lies on the Ash.", warm="wait")
        reply = hypic.chat.completions.create(
            messages=ASK, documents=[made, "Ada lives there."], temperature=0.0, max_tokens=50
        )
        assert reply.choices[0].message.content == "On the Ash."
        assert [one.status for one in reply.cache.segments] == ["hit", "cold"]
        assert reply.usage.prompt_tokens_details.cached_tokens > 0
        assert reply.request_id == hypic.service._worker.last.request_id

    def test_segments_as_parts_of_a_message(self):
        hypic = local()
        made = hypic.segments.create("Norwick lies on the Ash.")
        reply = hypic.chat.completions.create(
            messages=[{"role": "user", "content": [made, "\n\n", "Where?"]}]
        )
        assert [one.part for one in reply.cache.segments] == [(0, 0)]

    def test_streaming_both_ways(self):
        hypic = local()
        chunks = list(hypic.chat.completions.create(messages=ASK, stream=True))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert said == "On the Ash."
        with hypic.chat.completions.stream(messages=ASK) as stream:
            next(stream)
            assert stream.get_final_completion().choices[0].message.content == "On the Ash."

    def test_plain_prompts(self):
        hypic = local()
        made = hypic.segments.create("Norwick lies on the Ash.")
        reply = hypic.completions.create(prompt=[made, " Where? ", "There: "])
        assert reply.choices[0].text == "On the Ash."
        assert hypic.completions.create(prompt="x").choices[0].text == "On the Ash."
        chunks = list(hypic.completions.create(prompt="x", stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "On the Ash."

    def test_a_misspelt_keyword_is_a_type_error(self):
        with pytest.raises(TypeError, match="max_token"):
            local().chat.completions.create(messages=ASK, max_token=3)


class TestLife:
    def test_leaving_the_block_closes_once(self):
        closed = []
        with LocalHypic.over(service(saying("x")), lambda: closed.append(1)) as hypic:
            assert not closed
        hypic.close()
        assert closed == [1]

    def test_it_is_closed_also_when_the_block_fails(self):
        closed = []
        hypic = LocalHypic.over(service(saying("x")), lambda: closed.append(1))
        with pytest.raises(SegmentNotFound), hypic:
            hypic.segments.retrieve(segment_id("nothing"))
        assert closed == [1]


class TestFolders:
    def test_a_folder_without_a_tokenizer_is_no_model(self, tmp_path):
        with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
            LocalHypic(tmp_path)

    def test_nor_one_without_weights(self, tmp_path: Path):
        (tmp_path / "tokenizer.json").write_text(json.dumps(tiny.byte_level()))
        with pytest.raises(ModelFileError, match=r"config\.json"):
            LocalHypic(tmp_path)


DOCUMENTS = (
    "Ada Lindqvist is a baker. Ada Lindqvist lives in Norwick. In the mornings the streets there "
    "are quiet, and the ovens of the bakery are the first to be lit. People come from the hills "
    "for the bread. On market days the queue reaches the bridge, and nobody minds the wait.",
    "Norwick lies on the river Ash. The river is slow there and carries barges with timber. In "
    "spring the water stands high, and the children of the town sail boats of bark on the "
    "meadows. The old mill was built by the mayor, who wished for flour that was ground at home.",
)


@pytest.fixture(scope="module")
def demo():
    """The model that comes with the package, on its own engine."""
    with LocalHypic() as hypic:
        yield hypic


def ask(over: LocalHypic, documents: tuple[str, ...] = DOCUMENTS, **options):
    """One question on documents."""
    messages = [
        {"role": "system", "content": "Answer from the documents."},
        {"role": "user", "content": "Where does Ada Lindqvist live?"},
    ]
    return over.chat.completions.create(
        messages=messages, documents=documents, max_tokens=12, **options
    )


def statuses(reply) -> list[str]:
    return [one.status for one in reply.cache.segments]


class TestTheDemoModel:
    def test_a_miss_and_hits_in_any_order(self, demo):
        """Warm equals cold; another order is all hits; the books balance each time."""
        for segment in demo.segments.create_many(DOCUMENTS):
            demo.segments.delete(segment)
        cold = ask(demo)
        warm = ask(demo)
        other = ask(demo, DOCUMENTS[::-1])
        assert statuses(cold) == ["cold", "cold"]
        assert set(statuses(warm)) <= {"hit", "prefix"}
        assert statuses(other) == ["hit", "hit"]
        assert cold.choices == warm.choices
        assert "Norwick" in cold.choices[0].message.content
        assert other.choices[0].message.content == cold.choices[0].message.content
        for reply in (cold, warm, other):
            cache, usage = reply.cache, reply.usage
            assert usage.prompt_tokens == (
                cache.prefix_tokens + cache.segment_tokens + cache.live_tokens
            )
            assert usage.prompt_tokens_details.cached_tokens == cache.cached_tokens
        assert cold.cache.cached_tokens < warm.cache.cached_tokens
        assert cold.cache.cold_tokens == sum(one.tokens for one in cold.cache.segments)
        assert other.cache.timing_ms.ttft > 0

    def test_off_uses_and_keeps_nothing(self, demo):
        text = DOCUMENTS[0] + " So it goes."
        reply = ask(demo, (text,), hypic={"mode": "off"})
        [use] = reply.cache.segments
        assert (use.status, use.miss_reason) == ("live", "policy_off")
        assert reply.cache.cached_tokens == 0
        segment = demo.segments.create(text)
        assert demo.segments.lookup([segment])[segment.id].state == "registered"

    def test_a_stream_says_what_the_whole_reply_says(self, demo):
        whole = ask(demo)
        chunks = list(ask(demo, stream=True))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert said == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    def test_a_stop_string_cuts_and_the_report_comes_all_the_same(self, demo):
        reply = ask(demo, stop="wick")
        assert reply.choices[0].finish_reason == "stop"
        assert "wick" not in reply.choices[0].message.content
        assert reply.choices[0].message.content.endswith("Nor")
        assert reply.cache.prompt_tokens == reply.usage.prompt_tokens

    def test_warming_ahead_of_need(self, demo):
        texts = [f"{text} That was number {n}." for n, text in enumerate(DOCUMENTS)]
        segments = demo.segments.create_many(texts)
        job = demo.segments.warm.create(segments).wait(timeout_s=60)
        assert (job.status, job.counts.done) == ("succeeded", 2)
        assert {one.state for one in demo.segments.lookup(segments).values()} == {"warm"}
        assert statuses(ask(demo, segments)) == ["hit", "hit"]

    def test_a_limit_of_no_tokens_warms_a_whole_prompt(self, demo):
        text = DOCUMENTS[1] + " This one is new."
        messages = [{"role": "user", "content": "Where?"}]
        options = {"messages": messages, "documents": [text]}
        prepared = demo.chat.completions.create(**options, max_tokens=0)
        assert (prepared.usage.completion_tokens, statuses(prepared)) == (0, ["cold"])
        asked = demo.chat.completions.create(**options, max_tokens=1)
        assert asked.cache.cold_tokens == 0

    @pytest.mark.parametrize("n", [1, 3])
    @pytest.mark.parametrize("limit", [0, 1])
    def test_as_many_replies_as_were_asked_for_however_short(self, demo, n, limit):
        limits = {"n": n, "max_tokens": limit, "ignore_eos": True}
        chat = demo.chat.completions.create(messages=ASK, **limits)
        plain = demo.completions.create(prompt="Where?", prompt_logprobs=1, **limits)
        for reply in (chat, plain):
            assert [choice.index for choice in reply.choices] == list(range(n))
            assert {choice.finish_reason for choice in reply.choices} == {"length"}
            assert reply.usage.completion_tokens == n * limit
        with demo.chat.completions.stream(messages=ASK, **limits) as stream:
            assert len(stream.get_final_completion().choices) == n

    def test_a_session_goes_on_from_where_it_stood(self, demo):
        """The second turn finds the chain that ends with the first reply."""
        messages = [{"role": "user", "content": "Where does Ada Lindqvist live?"}]
        options = {"documents": DOCUMENTS, "max_tokens": 12, "hypic": {"session_id": "s"}}
        first = demo.chat.completions.create(messages=messages, **options)
        messages += [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "Where does Norwick lie?"},
        ]
        second = demo.chat.completions.create(messages=messages, **options)
        turn_one = first.usage.prompt_tokens + first.usage.completion_tokens
        # the last token that was said has not been through the model when the reply ends
        assert second.cache.prefix_tokens >= turn_one - 1
        assert statuses(second) == ["prefix", "prefix"]

    def test_log_probabilities(self, demo):
        reply = ask(demo, logprobs=True, top_logprobs=2)
        told = reply.choices[0].logprobs.content
        assert "".join(one.token for one in told) == reply.choices[0].message.content
        assert all(one.logprob <= 0 for one in told)
        # greedy: the chosen token is the best one
        assert all(one.top_logprobs[0].token == one.token for one in told)

    def test_a_prompt_that_can_not_fit_is_told_with_both_numbers(self, demo):
        with pytest.raises(PromptTooLong) as caught:
            demo.completions.create(prompt="town " * 200_000)
        assert caught.value.details["num_tokens"] > caught.value.details["limit_tokens"]


def test_after_closing_there_is_no_worker():
    hypic = LocalHypic(model_name="mine")
    assert hypic.service.model_name == "mine"
    hypic.close()
    hypic.close()
    with pytest.raises(WorkerLost):
        ask(hypic)


ENDS_EARLY = """
from hypic_sdk import LocalHypic

local = LocalHypic()
stream = local.chat.completions.stream(messages=[{"role": "user", "content": "Where?"}], %s)
next(iter(stream))
"""


def test_a_program_may_end_without_closing_anything():
    program = ENDS_EARLY % "max_tokens=4000, ignore_eos=True"
    for _ in range(3):  # where the other thread stands when it ends is luck
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def larger(file: dict[str, Any]) -> None:
    file["added_tokens"].append({**file["added_tokens"][-1], "id": 9000, "content": "<more>"})


def permuted(file: dict[str, Any]) -> None:
    vocab = file["model"]["vocab"]
    words = [word for word, id_ in vocab.items() if id_ > 1000]
    ids = [vocab[word] for word in words]
    vocab.update(zip(words, ids[1:] + ids[:1], strict=True))


def lower_case(file: dict[str, Any]) -> None:
    file["normalizer"] = {"type": "Lowercase"}


def without_merges(file: dict[str, Any]) -> None:
    file["model"]["merges"] = []


def beside_other_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The demo model's folder with its tokenizer changed."""
    for path in reader_path().iterdir():
        if path.name != "tokenizer.json":
            (folder / path.name).symlink_to(path)
    file = json.loads((reader_path() / "tokenizer.json").read_text())
    change(file)
    (folder / "tokenizer.json").write_text(json.dumps(file))
    return folder


@pytest.mark.parametrize("change", [larger, permuted, lower_case, without_merges])
def test_a_tokenizer_of_another_model_is_refused(tmp_path, change):
    with pytest.raises(ModelFileError, match="do not belong together"):
        LocalHypic(beside_other_weights(tmp_path, change))


def test_one_that_is_too_large_is_refused_also_where_no_index_names_it(tmp_path):
    folder = beside_other_weights(tmp_path, larger)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["metadata"]
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="do not belong together") as caught:
        LocalHypic(folder)
    assert caught.value.details["tokenizer_size"] > caught.value.details["model_size"]


def test_the_same_tokenizer_in_another_layout_is_the_same(tmp_path):
    folder = beside_other_weights(tmp_path, lambda file: file.update(version=file.pop("version")))
    with LocalHypic(folder) as hypic:
        assert hypic.tokenize(prompt="town").count > 0
