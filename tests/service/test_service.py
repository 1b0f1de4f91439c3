"""The road from a body to a reply, over a worker that says what it is told to."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hypic_sdk.errors import (
    EmptyPrompt,
    PoolExhausted,
    RequestCancelled,
    RequestError,
    UnknownModel,
    UnsupportedOption,
    WorkerLost,
)
from hypic_sdk.prompt.segment import BorderKind, Role, segment_id
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.transport.messages import SamplingParams
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from tests.prompt import tiny
from tests.service.fake_worker import FakeWorker, LostWorker
from tests.service.services import saying, service, template_ids, text_ids

DOCUMENTS = ("Ada Lindqvist lives in Norwick.", "Norwick lies on the river Ash.")


def chat(question: str = "Where?", **fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": [{"role": "user", "content": question}], **fields})


def with_documents(documents: tuple[str, ...] = DOCUMENTS, **fields: Any) -> ChatRequest:
    return chat(documents=[{"text": text} for text in documents], **fields)


def plain(prompt: Any, **fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, {"prompt": prompt, **fields})


class TestPrompt:
    def test_the_layout_of_documents(self):
        """The one the demo model is trained on, piece by piece."""
        worker = saying("On the Ash.")
        body = parse(ChatRequest, {
            "messages": [{"role": "system", "content": "Be brief."},
                         {"role": "user", "content": "Where?"}],
            "documents": [{"text": text} for text in DOCUMENTS],
        })  # fmt: skip
        service(worker).chat(body)
        prompt = worker.last.prompt
        expected = [
            template_ids("<|im_start|>system\n") + text_ids("Be brief.")
            + template_ids("<|im_end|>\n<|im_start|>user\n"),
            text_ids(DOCUMENTS[0]), text_ids("\n\n"), text_ids(DOCUMENTS[1]),
            text_ids("\n\n", "Where?") + template_ids("<|im_end|>\n<|im_start|>assistant\n"),
        ]  # fmt: skip
        assert [list(part.token_ids) for part in prompt.parts] == expected
        assert [part.role for part in prompt.parts] == [
            Role.LEADING, Role.INNER, Role.GLUE, Role.INNER, Role.TRAILING,
        ]  # fmt: skip
        assert [border.kind for border in prompt.borders] == [
            BorderKind.MESSAGE, BorderKind.LEADING, BorderKind.PROMPT,
        ]  # fmt: skip

    def test_numbers_stand_before_the_segments_and_not_in_them(self):
        """So a citation costs no hit when the documents come in another order."""
        worker = saying("x")
        over = service(worker)
        for documents in (DOCUMENTS, DOCUMENTS[::-1]):
            over.chat(with_documents(documents, documents_numbering="brackets"))
            parts = worker.last.prompt.parts
            assert [list(part.token_ids) for part in parts[1:-1]] == [
                text_ids(documents[0]), text_ids("\n\n", "[2] "), text_ids(documents[1]),
            ]  # fmt: skip
            assert list(parts[0].token_ids)[-len(text_ids("[1] ")) :] == text_ids("[1] ")
        reply = over.chat(with_documents(documents_numbering="brackets"))
        assert [one.status for one in reply.cache.segments] == ["hit", "hit"]
        assert [one.document for one in reply.cache.segments] == [0, 1]

    def test_a_plain_prompt_is_its_parts(self):
        worker = saying("x")
        service(worker).complete(
            plain(["Read: ", {"type": "segment", "text": "A town"}, {"type": "text", "text": "?"}])
        )
        prompt = worker.last.prompt
        assert [list(part.token_ids) for part in prompt.parts] == [
            text_ids("Read: "), text_ids("A town"), text_ids("?"),
        ]  # fmt: skip
        assert prompt.parts[1].segment_id == segment_id("A town")

    def test_a_plain_text_has_the_beginning_of_text_if_the_model_wants_one(self):
        worker = saying("x")
        with_bos = PromptTokenizer(tiny.bos_by_processor(), {})
        service(worker, tokenizer=with_bos).complete(plain("A town"))
        assert worker.last.prompt.token_ids[0] == with_bos.bos_token_id

    def test_an_empty_prompt_is_refused(self):
        with pytest.raises(EmptyPrompt):
            service(saying("x")).complete(plain(""))

    def test_tools_and_template_options_reach_the_template(self):
        worker = saying("x")
        tools = [{"type": "function", "function": {"name": "look_up"}}]
        over = service(worker, template=tiny.REASONING)
        over.chat(chat(tools=tools, chat_template_kwargs={"enable_thinking": False}))
        text = "".join(map(tiny.tokenizer().token_text, worker.last.prompt.token_ids))
        assert '{"type": "function", "function": {"name": "look_up"}}' in text
        assert text.endswith("<think>\n\n</think>\n\n")
        over.chat(chat(tools=tools, tool_choice="none"))
        text = "".join(map(tiny.tokenizer().token_text, worker.last.prompt.token_ids))
        assert "look_up" not in text

    def test_a_model_without_a_template_has_no_chats(self):
        with pytest.raises(UnsupportedOption, match="plain completions"):
            service(saying("x"), template=None).chat(chat())


class TestMessageToTheEngine:
    def test_what_is_left_out_is_the_default(self):
        worker = saying("x")
        service(worker).chat(chat())
        assert worker.last.sampling == SamplingParams()
        assert worker.last.reuse
        assert worker.last.session_id is None

    def test_sampling_fields(self):
        worker = saying("x")
        service(worker).chat(
            chat(max_tokens=9, max_completion_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=5,
                 stop_token_ids=[1], ignore_eos=True, logprobs=True, top_logprobs=2)
        )  # fmt: skip
        assert worker.last.sampling == SamplingParams(
            max_tokens=7, temperature=0.5, top_k=3, top_p=0.9, seed=5, stop_token_ids=(1,),
            ignore_eos=True, logprobs=2,
        )  # fmt: skip
        service(worker).chat(chat(logprobs=True, top_k=-1))
        assert (worker.last.sampling.logprobs, worker.last.sampling.top_k) == (0, 0)
        service(worker).complete(plain("x", logprobs=3))
        assert worker.last.sampling.logprobs == 3

    def test_our_own_options(self):
        worker = saying("x")
        service(worker).chat(chat(hypic={"mode": "off", "session_id": "s"}))
        assert not worker.last.reuse
        assert worker.last.session_id == "s"

    def test_sampling_beyond_openai(self):
        worker = saying("x")
        fields = {"min_tokens": 2, "min_p": 0.1, "repetition_penalty": 1.2,
                  "presence_penalty": -1.5, "frequency_penalty": 0.5}  # fmt: skip
        service(worker).chat(chat(**fields, logit_bias={"5": 1, 7: -100}))
        wanted = SamplingParams(**fields, logit_bias=((5, 1.0), (7, -100.0)))
        assert worker.last.sampling == wanted
        assert worker.last.num_replies == 1

    @pytest.mark.parametrize(
        "fields",
        [{"n": 0}, {"n": 65}, {"frequency_penalty": 2.5}, {"presence_penalty": -3},
         {"logit_bias": {"x": 1}}, {"logit_bias": {"5": 101}}, {"logit_bias": {-1: 1}},
         {"logit_bias": {True: 1}}, {"min_p": 1.5},
         {"repetition_penalty": 0}, {"prompt_logprobs": 21}, {"min_tokens": -1},
         {"response_format": {"type": "xml"}}, {"response_format": {"type": "json_schema"}},
         {"structured_outputs": {}}, {"structured_outputs": {"regex": "a", "choice": ["a"]}},
         {"structured_outputs": {"regexp": "a"}}, {"guided_choice": []},
         {"tool_choice": "required"}, {"tool_choice": "any"},
         {"tool_choice": {"type": "function", "function": {"name": "f"}}}],
    )  # fmt: skip
    def test_a_value_outside_of_its_limits_is_told_with_its_place(self, fields):
        with pytest.raises(RequestError) as caught:
            chat(**fields)
        assert str(caught.value).startswith(next(iter(fields)))

    @pytest.mark.parametrize("fields", [{"best_of": 2}, {"suffix": "x"}])
    def test_an_option_that_would_change_the_answer_is_not_ignored(self, fields):
        with pytest.raises(UnsupportedOption, match=next(iter(fields))) as caught:
            service(saying("x")).complete(plain("x", **fields))
        assert caught.value.details["param"] == next(iter(fields))

    def test_an_effort_goes_to_the_template_that_reads_it_and_to_no_other(self):
        worker = saying("x")
        template = tiny.CHATML.replace("{%- if add", "{{- reasoning_effort or '' }}{%- if add")
        service(worker, template=template).chat(chat(reasoning_effort="low"))
        told = tiny.tokenizer().decode(worker.last.prompt.token_ids)
        assert told.endswith("\nlowassistant\n")
        with pytest.raises(UnsupportedOption) as caught:
            service(worker).chat(chat(reasoning_effort="low"))
        assert caught.value.details["param"] == "reasoning_effort"

    def test_log_probabilities_of_the_prompt_want_all_of_it_computed(self):
        worker = saying("x")
        service(worker).chat(chat(prompt_logprobs=2))
        assert (worker.last.sampling.prompt_logprobs, worker.last.reuse) == (2, False)
        service(worker).complete(plain("x", echo=True, logprobs=1))
        assert (worker.last.sampling.prompt_logprobs, worker.last.reuse) == (1, False)
        service(worker).complete(plain("x", echo=True))
        assert (worker.last.sampling.prompt_logprobs, worker.last.reuse) == (None, True)

    def test_one_that_asks_for_what_is_done_anyway_is_fine(self):
        body = chat(n=1, frequency_penalty=0, logit_bias={}, response_format={"type": "text"},
                    tool_choice="auto", user="me", store=False)  # fmt: skip
        assert service(saying("yes")).chat(body).choices[0].message.content == "yes"

    def test_another_model_is_refused(self):
        assert service(saying("x")).chat(chat(model="tiny")).model == "tiny"
        with pytest.raises(UnknownModel):
            service(saying("x")).chat(chat(model="huge"))


class TestReply:
    def test_a_whole_reply(self):
        worker = saying("On the river Ash.")
        reply = service(worker).chat(with_documents())
        assert reply.object == "chat.completion"
        assert reply.choices[0].message.content == "On the river Ash."
        assert reply.choices[0].finish_reason == "stop"
        assert reply.created == 1_800_000_000
        assert reply.request_id == worker.last.request_id
        prompt_tokens = worker.last.prompt.num_tokens
        assert reply.usage.prompt_tokens == prompt_tokens
        assert reply.usage.completion_tokens == len(text_ids("On the river Ash."))
        assert reply.usage.total_tokens == prompt_tokens + reply.usage.completion_tokens

    def test_the_cache_report_of_a_miss_and_then_of_hits(self):
        over = service(saying("x"))
        cold = over.chat(with_documents())
        assert [one.status for one in cold.cache.segments] == ["cold", "cold"]
        assert cold.usage.prompt_tokens_details.cached_tokens == 0
        warm = over.chat(with_documents(DOCUMENTS[::-1]))
        assert [one.status for one in warm.cache.segments] == ["hit", "hit"]
        assert [one.document for one in warm.cache.segments] == [0, 1]
        assert [one.part for one in warm.cache.segments] == [None, None]
        details = warm.usage.prompt_tokens_details
        assert details.cached_tokens == sum(one.reused_tokens for one in warm.cache.segments)
        assert details.cached_tokens == (
            details.prefix_cached_tokens + details.segment_cached_tokens
        )
        assert warm.cache.live_tokens + warm.cache.segment_tokens == warm.usage.prompt_tokens
        assert warm.cache.exactness == "composed"
        assert warm.cache.timing_ms.ttft == 7.5

    def test_a_segment_in_a_message_is_told_where_it_stands(self):
        body = parse(ChatRequest, {"messages": [
            {"role": "system", "content": [{"type": "text", "text": "S"},
                                           {"type": "segment", "text": "A town"}]},
            {"role": "user", "content": "Q"},
        ]})  # fmt: skip
        [use] = service(saying("x")).chat(body).cache.segments
        assert (use.part, use.document) == ((0, 1), None)
        assert use.start == len(template_ids("<|im_start|>system\n") + text_ids("S"))

    @pytest.mark.parametrize(
        ("level", "has_report", "has_segments"),
        [("segments", True, True), ("summary", True, False), ("none", False, False)],
    )
    def test_how_much_is_reported(self, level, has_report, has_segments):
        reply = service(saying("x")).chat(with_documents(hypic={"report": level}))
        assert (reply.cache is not None) == has_report
        assert (has_report and reply.cache.segments is not None) == has_segments
        assert reply.usage.prompt_tokens > 0

    def test_the_body_says_every_number_also_zero(self):
        body = service(saying("x")).chat(chat()).model_dump(mode="json")
        assert body["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 0, "prefix_cached_tokens": 0, "segment_cached_tokens": 0,
            "seam_tokens": 0, "cache_write_tokens": 0,
        }  # fmt: skip
        assert body["hypic"]["segments"] == []
        assert body["hypic"]["exactness"] == "exact"

    def test_a_limit_of_no_tokens_prepares_and_says_nothing(self):
        reply = service(saying("never said")).chat(with_documents(max_tokens=0))
        assert reply.choices[0].message.content == ""
        assert reply.choices[0].finish_reason == "length"
        assert reply.cache.cold_tokens > 0

    def test_stop_strings_cut_and_finish_and_the_report_still_comes(self):
        worker = saying("a town. And so on, and so on.")
        reply = service(worker).chat(with_documents(stop=[". And", "never"]))
        assert reply.choices[0].message.content == "a town"
        assert reply.choices[0].finish_reason == "stop"
        assert worker.finished == [reply.request_id]
        assert worker.cancelled == []
        assert reply.cache.cold_tokens > 0
        assert reply.usage.completion_tokens < len(text_ids("a town. And so on, and so on."))

    def test_log_probabilities(self):
        reply = service(saying("a town")).chat(chat(logprobs=True, top_logprobs=2))
        told = reply.choices[0].logprobs.content
        assert "".join(one.token for one in told) == "a town"
        assert b"".join(bytes(one.bytes) for one in told) == b"a town"
        assert [len(one.top_logprobs) for one in told] == [2] * len(told)
        assert told[0].top_logprobs[0].token == told[0].token
        assert service(saying("a town")).chat(chat()).choices[0].logprobs is None

    def test_log_probabilities_of_plain_prompts(self):
        reply = service(saying("a town")).complete(plain("x", logprobs=1))
        told = reply.choices[0].logprobs
        assert "".join(told.tokens) == "a town"
        assert [
            "a town"[offset : offset + len(token)]
            for offset, token in zip(told.text_offset, told.tokens, strict=True)
        ] == told.tokens


class TestStream:
    def test_chunks_join_to_the_reply(self):
        chunks = list(service(saying("a town 🙂 there")).chat_chunks(chat()))
        assert chunks[0].choices[0].delta.role == "assistant"
        contents = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(contents) == "a town 🙂 there"
        assert len([content for content in contents if content]) > 1
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
        assert {chunk.id for chunk in chunks} == {chunks[0].request_id}

    def test_the_last_chunk_tells_usage_and_report(self):
        *before, last = service(saying("a town")).chat_chunks(with_documents())
        assert all(chunk.usage is None and chunk.hypic is None for chunk in before)
        assert last.choices[0].finish_reason == "stop"
        assert last.usage.completion_tokens == len(text_ids("a town"))
        assert len(last.cache.segments) == 2

    def test_or_one_more_where_usage_is_asked_for(self):
        body = with_documents(stream_options={"include_usage": True})
        *before, last = service(saying("a town")).chat_chunks(body)
        assert before[-1].choices[0].finish_reason == "stop"
        assert before[-1].usage is None
        assert last.choices == []
        assert last.usage.completion_tokens == len(text_ids("a town"))
        assert len(last.cache.segments) == 2

    def test_plain_prompts_stream_too(self):
        chunks = list(service(saying("a town there")).complete_chunks(plain("x", logprobs=0)))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "a town there"
        offsets = [o for chunk in chunks for o in chunk.choices[0].logprobs.text_offset]
        assert offsets == sorted(set(offsets))
        assert chunks[-1].usage.completion_tokens == len(text_ids("a town there"))
        *_, last = service(saying("a")).complete_chunks(
            plain("x", stream_options={"include_usage": True})
        )
        assert last.choices == []

    def test_it_is_on_its_way_before_the_first_chunk_is_asked_for(self):
        worker = saying("x")
        service(worker).chat_chunks(chat())
        assert len(worker.messages) == 1

    def test_what_is_wrong_with_a_request_is_told_before_it_streams(self):
        with pytest.raises(UnsupportedOption):
            service(saying("x")).chat_chunks(chat(best_of=3))

    def test_leaving_it_early_cancels(self):
        worker = saying("a town there")
        with service(worker).chat_chunks(chat()) as stream:
            next(stream)
        assert worker.cancelled == [stream.request_id]
        assert list(stream) == []
        with pytest.raises(RequestCancelled):
            stream.get_final_completion()

    def test_also_before_its_first_chunk(self):
        worker = saying("a town there")
        stream = service(worker).chat_chunks(chat())
        stream.close()
        stream.close()
        assert worker.cancelled == [stream.request_id]

    def test_a_whole_stream_cancels_nothing(self):
        worker = saying("a town there")
        with service(worker).chat_chunks(chat()) as stream:
            list(stream)
        assert worker.cancelled == []

    def test_the_whole_reply_after_some_chunks(self):
        body = chat(logprobs=True)
        stream = service(saying("a town there")).chat_chunks(body)
        for _ in range(3):
            next(stream)
        final = stream.get_final_completion()
        assert final.choices[0].message.content == "a town there"
        assert len(final.choices[0].logprobs.content) == final.usage.completion_tokens


class TestFailures:
    def test_an_error_of_the_engine_is_raised(self):
        worker = saying("a town")
        worker.failure = PoolExhausted("no room", needed_bytes=9)
        with pytest.raises(PoolExhausted) as caught:
            service(worker).chat(chat())
        assert caught.value.request_id == worker.last.request_id

    def test_in_a_stream_after_what_was_said(self):
        worker = saying("a town there")
        worker.failure = PoolExhausted("no room")
        stream = service(worker).chat_chunks(chat())
        said = [next(stream).choices[0].delta for _ in range(2)]
        assert [delta.role for delta in said] == ["assistant", None]
        assert said[1].content
        with pytest.raises(PoolExhausted):
            next(stream)
        assert worker.cancelled == []

    def test_a_worker_that_falls_silent_is_lost(self):
        worker = LostWorker(text_ids("a"))
        with pytest.raises(WorkerLost):
            service(worker).chat(chat())


class TestSessions:
    def turn(self, reply: str, *, session: str | None = "s", worker: FakeWorker, over: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "Q"},
                             {"role": "assistant", "content": reply},
                             {"role": "user", "content": "R"}]}  # fmt: skip
        over.chat(parse(ChatRequest, {**body, "hypic": {"session_id": session}}))
        return worker.last.prompt.token_ids

    def other_spelling(self) -> list[int]:
        """A reply in other tokens than the tokenizer would choose: one a letter."""
        ids = [id_ for letter in "a town" for id_ in text_ids(letter)]
        assert ids != text_ids("a town")
        return ids

    def contains(self, ids: tuple[int, ...], part: list[int]) -> bool:
        return any(list(ids[i : i + len(part)]) == part for i in range(len(ids)))

    def test_the_next_turn_says_a_reply_in_its_own_tokens(self):
        ids = self.other_spelling()
        worker = FakeWorker(ids)
        over = service(worker)
        first = over.chat(chat("Q", hypic={"session_id": "s"}))
        assert first.choices[0].message.content == "a town"
        before = worker.last.prompt.token_ids
        after = self.turn("a town", worker=worker, over=over)
        assert after[: len(before) + len(ids)] == (*before, *ids)

    @pytest.mark.parametrize(
        ("reply", "session"), [("a town", "t"), ("a town", None), ("A town", "s")]
    )
    def test_another_session_or_text_does_not(self, reply, session):
        ids = self.other_spelling()
        worker = FakeWorker(ids)
        over = service(worker)
        over.chat(chat("Q", hypic={"session_id": "s"}))
        after = self.turn(reply, session=session, worker=worker, over=over)
        assert not self.contains(after, ids)
        assert self.contains(after, text_ids(reply))

    def test_a_cut_reply_is_not_remembered(self):
        ids = self.other_spelling()
        worker = FakeWorker(ids)
        over = service(worker)
        over.chat(chat("Q", stop=["wn"], hypic={"session_id": "s"}))
        after = self.turn("a to", worker=worker, over=over)
        assert self.contains(after, text_ids("a to"))

    def test_nor_one_with_tokens_that_its_text_does_not_show(self):
        hidden = template_ids("<|im_start|>")
        worker = FakeWorker([*text_ids("a town"), *hidden])
        over = service(worker)
        over.chat(chat("Q", hypic={"session_id": "s"}))
        after = self.turn("a town", worker=worker, over=over)
        assert not self.contains(after, [*text_ids("a town"), *hidden])


def test_many_threads_share_one_service():
    worker = FakeWorker(lambda message: text_ids(str(message.sampling.seed)))
    over = service(worker)
    replies: dict[int, str] = {}

    def ask(seed: int) -> None:
        replies[seed] = over.chat(with_documents(seed=seed)).choices[0].message.content

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {seed: str(seed) for seed in range(16)}
