"""`LocalHypic`: the client's calls over a service in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypic_sdk.errors import ModelFileError, SegmentNotFound
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
