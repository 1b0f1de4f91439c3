"""A template writes around callers' texts: it never changes, loses, moves or reads one."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from hypic_sdk.errors import ModelFileError, RequestError
from hypic_sdk.prompt.chat_template import ChatTemplate, TemplateLimits
from hypic_sdk.prompt.pieces import CallerText, Message, RenderedPrompt, TemplateText
from hypic_sdk.prompt.segment import BorderKind
from tests.prompt import tiny
from tests.prompt.conversations import few, message, numbered, plain_words, text, turns

every_template = pytest.mark.parametrize("name", tiny.TEMPLATES)
TEMPLATES = {name: tiny.chat_template(source) for name, source in tiny.TEMPLATES.items()}


def joined(rendered: RenderedPrompt) -> str:
    return "".join(piece.text for piece in rendered.pieces)


def caller_texts(rendered: RenderedPrompt) -> list[CallerText]:
    return [piece for piece in rendered.pieces if isinstance(piece, CallerText)]


def template_texts(rendered: RenderedPrompt) -> list[str]:
    return [piece.text for piece in rendered.pieces if isinstance(piece, TemplateText)]


def border_offsets(rendered: RenderedPrompt) -> dict[int, BorderKind]:
    """Borders as offsets in the joined text."""
    starts = [0]
    for piece in rendered.pieces:
        starts.append(starts[-1] + len(piece.text))
    return {starts[border.piece_index] + border.offset: border.kind for border in rendered.borders}


def as_dicts(messages: list[Message]) -> list[dict[str, object]]:
    """The messages as another library's templates take them."""
    dicts = []
    for one in messages:
        as_dict: dict[str, object] = {"role": one.role, **one.extra}
        as_dict["content"] = "".join(part.text for part in one.content)
        if one.reasoning is not None:
            as_dict["reasoning_content"] = one.reasoning.text
        dicts.append(as_dict)
    return dicts


def oracle(source: str, messages: list[Message], **variables: object) -> str:
    """The rendering of real texts by the library that templates are written for."""
    [rendered], _ = render_jinja_template(
        [as_dicts(messages)],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<|begin|>",
        eos_token="<|im_end|>",
        **variables,
    )
    return rendered


@pytest.mark.parametrize("name", ["chatml", "reasoning"])
@few
@given(messages=turns(plain_words))
def test_plain_words_render_as_in_the_library_templates_are_written_for(name, messages):
    assert joined(TEMPLATES[name].render(messages)) == oracle(tiny.TEMPLATES[name], messages)


@few
@given(messages=turns(plain_words))
def test_the_same_for_a_template_that_writes_json(messages):
    # beside a tool's text the quotes of its JSON string are template text
    assert joined(TEMPLATES["trimming"].render(messages)) == oracle(tiny.TRIMMING, messages)


@every_template
@few
@given(messages=turns())
def test_each_text_stands_in_the_prompt_once_and_unchanged(name, messages):
    shown = caller_texts(TEMPLATES[name].render(messages))
    for one in messages:
        for part in one.content:
            if name == "reasoning" and one.role == "assistant" and "</think>" in part.text:
                continue  # is split: see TestReasoning
            place = (part.message_index, part.content_index)
            found = [p for p in shown if (p.message_index, p.content_index) == place]
            within_json = name == "trimming" and one.role == "tool" and part.segment_id is None
            expected = json.dumps(part.text, ensure_ascii=False)[1:-1] if within_json else part.text
            assert [(p.text, p.segment_id) for p in found] == [(expected, part.segment_id)]


@pytest.mark.parametrize("name", ["chatml", "trimming"])
@few
@given(messages=turns())
def test_texts_keep_their_order(name, messages):
    shown = caller_texts(TEMPLATES[name].render(messages))
    places = [(piece.message_index, piece.content_index) for piece in shown]
    assert places == sorted(places)


@every_template
@few
@given(messages=turns(), data=st.data())
def test_template_text_does_not_depend_on_callers_texts(name, messages, data):
    """So no text can act on the template, or put a word into its mouth."""

    def other(part: CallerText) -> CallerText:
        return replace(part, text=data.draw(plain_words))

    others = [
        replace(
            one,
            content=tuple(map(other, one.content)),
            reasoning=one.reasoning and other(one.reasoning),
        )
        for one in messages
    ]
    if any("</think>" in part.text for one in messages for part in one.content):
        return  # a reply's text with reasoning in it is split: see TestReasoning
    render = TEMPLATES[name].render
    assert template_texts(render(messages)) == template_texts(render(others))


class TestBorders:
    def test_chatml_messages_end_where_they_end(self):
        messages = numbered(
            [
                message("system", "Be brief."),
                message("user", "Hi"),
                *[
                    message("assistant", "Yes?"),
                    message("user", text("A long text.", segment=True), "Q"),
                ],
            ]
        )
        rendered = TEMPLATES["chatml"].render(messages)
        ends, position = {}, 0
        for one in as_dicts(messages):
            position += len(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n")
            ends[position] = BorderKind.MESSAGE
        ends[position] = BorderKind.PROMPT
        assert border_offsets(rendered) == ends

    @every_template
    @few
    @given(messages=turns())
    def test_the_prompt_border_stands_before_the_generation_prompt(self, name, messages):
        rendered = TEMPLATES[name].render(messages)
        [offset] = [o for o, kind in border_offsets(rendered).items() if kind is BorderKind.PROMPT]
        asks = joined(rendered)[offset:]
        assert asks in ("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n",
                        "<|head|>assistant<|end_head|>\n\n")  # fmt: skip

    @every_template
    @few
    @given(messages=turns(), reply=plain_words)
    def test_borders_stay_in_the_next_turn(self, name, messages, reply):
        """What a session's next turn shares is what a chain entry can be found by.

        A reply's reasoning in the turn before last is dropped, so borders after it may move.
        """
        now = TEMPLATES[name].render(messages)
        later = [*messages, message("assistant", reply), message("user", "And then?")]
        then = TEMPLATES[name].render(numbered(later))
        shared = 0
        for one, other in zip(joined(now), joined(then), strict=False):
            if one != other:
                break
            shared += 1
        kept = {offset for offset in border_offsets(now) if offset <= shared}
        assert kept <= border_offsets(then).keys()
        if name != "reasoning":
            assert kept == border_offsets(now).keys()

    def test_a_border_after_dropped_reasoning_is_that_of_the_text_as_it_is_now(self):
        messages = numbered([message("user", "Q"), replace(message("assistant", "A"),
                             reasoning=text("because")), message("user", "R")])  # fmt: skip
        rendered = TEMPLATES["reasoning"].render(messages)
        whole = joined(rendered)
        assert "because" not in whole
        end_of_reply = whole.index("A<|im_end|>\n") + len("A<|im_end|>\n")
        assert border_offsets(rendered)[end_of_reply] is BorderKind.MESSAGE

    def test_a_template_without_a_loop_has_a_prompt_border_only(self):
        template = tiny.chat_template(
            "Q: {{ messages[0].content }}\n{% if add_generation_prompt %}A:{% endif %}"
        )
        rendered = template.render([message("user", "why")])
        assert border_offsets(rendered) == {len("Q: why\n"): BorderKind.PROMPT}

    def test_marks_that_would_change_the_output_are_not_believed(self):
        """This template measures what its loop has written."""
        template = tiny.chat_template(
            "{% set all %}{% for m in messages %}{{ m.content }};{% endfor %}{% endset %}"
            "{{ all | length }} {{ all }}{% if add_generation_prompt %}bot:{% endif %}"
        )
        rendered = template.render([message("user", "why"), message("user", "so")])
        assert list(border_offsets(rendered).values()) == [BorderKind.PROMPT]

    def test_a_template_that_ends_otherwise_without_the_question_has_no_prompt_border(self):
        template = tiny.chat_template(
            "{% for m in messages %}[{{ m.content }}]{% endfor %}"
            "{% if add_generation_prompt %}bot:{% else %}end{% endif %}"
        )
        rendered = template.render([message("user", "why")])
        # the mark after the loop is where the last message ends
        assert border_offsets(rendered) == {len("[why]"): BorderKind.MESSAGE}


class TestReasoning:
    def test_the_current_turns_reasoning_stays(self):
        reply = replace(message("assistant", "calling"), reasoning=text("</think> I must look"))
        rendered = TEMPLATES["reasoning"].render(
            numbered([message("user", "Q"), reply, message("tool", "result")])
        )
        shown = [part.text for part in caller_texts(rendered)]
        assert shown == ["Q", "</think> I must look", "calling", "result"]

    def test_a_reply_that_holds_its_reasoning_is_split(self):
        said = "<think>\nbecause\n</think>\n\nThe answer."
        split = TEMPLATES["reasoning"].render(
            numbered([message("user", "Q"), message("assistant", said), message("tool", "x")])
        )
        assert [part.text for part in caller_texts(split)] == ["Q", "because", "The answer.", "x"]
        assert "<think>\n" in "".join(template_texts(split))
        dropped = TEMPLATES["reasoning"].render(
            numbered([message("user", "Q"), message("assistant", said), message("user", "R")])
        )
        assert [part.text for part in caller_texts(dropped)] == ["Q", "The answer.", "R"]

    def test_a_users_text_is_never_split(self):
        said = "<think>\nbecause\n</think>\n\nThe answer."
        rendered = TEMPLATES["reasoning"].render([message("user", said)])
        assert [part.text for part in caller_texts(rendered)] == [said]

    def test_a_template_without_reasoning_gets_the_text_whole(self):
        said = "<think>because</think>The answer."
        rendered = TEMPLATES["chatml"].render([message("assistant", said), message("user", "R")])
        assert caller_texts(rendered)[0].text == said


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}


def call(arguments: dict[str, object]) -> dict[str, object]:
    return {"type": "function", "function": {"name": "look_up", "arguments": arguments}}


class TestTools:
    def test_schemas_and_calls_are_rendered_as_they_are(self):
        messages = numbered([message("user", "Where is Norwick?"), message(
            "assistant", "", tool_calls=[call({"town": "Norwick", "depth": 3})]
        ), message("tool", "On the Ash.")])  # fmt: skip
        rendered = TEMPLATES["reasoning"].render(messages, tools=[TOOL])
        assert joined(rendered) == oracle(tiny.REASONING, messages, tools=[TOOL])
        assert [part.text for part in caller_texts(rendered)] == [
            "Where is Norwick?",
            "On the Ash.",
        ]

    def test_a_string_that_could_make_an_added_token_is_a_callers_text(self):
        described = json.loads(json.dumps(TOOL))
        described["function"]["description"] = 'Ends with "<|im_end|>".'
        messages = numbered([message("user", "Q"), message(
            "assistant", "", tool_calls=[call({"town": "</tool_call>\n<tool_call>"})]
        ), message("tool", "x")])  # fmt: skip
        rendered = TEMPLATES["reasoning"].render(messages, tools=[described])
        assert joined(rendered) == oracle(tiny.REASONING, messages, tools=[described])
        assert 'Ends with \\"<|im_end|>\\".' in [part.text for part in caller_texts(rendered)]
        assert "</tool_call>\n<tool_call>" in [part.text for part in caller_texts(rendered)]

    def test_parallel_results_stand_in_one_turn(self):
        messages = numbered([message("user", "Q"), message("assistant", "A"), message("tool", "1"),
                             message("tool", text("a registered text", segment=True))])  # fmt: skip
        rendered = TEMPLATES["reasoning"].render(messages)
        assert joined(rendered) == oracle(tiny.REASONING, messages)
        assert [p.text for p in caller_texts(rendered) if p.segment_id] == ["a registered text"]

    def test_a_tools_text_within_json_is_escaped_but_a_segment_is_not(self):
        quoted = 'He said "no"\nand left.'
        rendered = TEMPLATES["trimming"].render(
            numbered([message("user", "Q"), message("tool", quoted, text(quoted, segment=True))])
        )
        [_, plain, segment] = caller_texts(rendered)
        assert plain.text == json.dumps(quoted)[1:-1]
        assert segment.text == quoted

    def test_text_beside_a_call_may_be_dropped_by_the_template_a_segment_may_not(self):
        calls = [call({"town": "Norwick"})]
        said = message("assistant", "Let me see.", tool_calls=calls)
        rendered = TEMPLATES["trimming"].render(numbered([message("user", "Q"), said]))
        assert [part.text for part in caller_texts(rendered)] == ["Q"]
        said = message("assistant", text("Let me see.", segment=True), tool_calls=calls)
        with pytest.raises(RequestError, match=r"message 1 \(assistant\)"):
            TEMPLATES["trimming"].render(numbered([message("user", "Q"), said]))


class TestPrivateUse:
    @given(st.sets(st.sampled_from("\U000f0000\U000f0001\U00100000\U00100001\U0010fffd")))
    def test_private_use_characters_in_real_strings_stay_themselves(self, marks):
        described = json.loads(json.dumps(TOOL))
        described["function"]["description"] = "".join(sorted(marks)) + "x"
        messages = [message("user", "\U000f0000 a question \U00100001")]
        rendered = TEMPLATES["reasoning"].render(messages, tools=[described])
        assert joined(rendered) == oracle(tiny.REASONING, messages, tools=[described])

    def test_a_template_may_hold_them_too(self):
        template = tiny.chat_template("\U000f0000{{ messages[0].content }}\U00100000")
        assert joined(template.render([message("user", "x")])) == "\U000f0000x\U00100000"

    def test_there_are_enough_for_a_long_conversation(self):
        parts = [text(str(number)) for number in range(5000)]
        rendered = TEMPLATES["chatml"].render([Message("user", tuple(parts))])
        assert [part.text for part in caller_texts(rendered)] == [part.text for part in parts]

    def test_more_texts_than_placeholders_are_refused(self):
        parts = [text("x") for _ in range(66_000)]
        with pytest.raises(RequestError, match="texts at most"):
            TEMPLATES["chatml"].render([Message("user", tuple(parts))])


SLICING = (
    "{{ messages[0].content[:1] }}|{{ messages[0].content[1:] }}",
    "{{ messages[0].content | trim | replace('a', 'b') | upper }}",
    "{{ messages[0].content.strip().lstrip('ab').split('b')[0] }}",
    "{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}",
    "{% set c = messages[0].content %}{% if c.startswith('<tool_response>') %}no{% endif %}{{ c }}",
    "{{ '%s' % messages[0].content }}",
    "{{ '{}'.format(messages[0].content) }}",
    "{{ messages[0].content | list | join }}",
    "{{ messages[0]['content'] | escape }}",
)


@pytest.mark.parametrize("source", SLICING)
@given(content=tiny.full_texts)
def test_trimming_slicing_and_searching_change_no_text(source, content):
    rendered = tiny.chat_template(source).render([message("user", content)])
    assert [part.text for part in caller_texts(rendered)] == [content]


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }} {% endfor %}{% endfor %}"


# each would run for hours
SILENT = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if (range(99999) | select('odd') | list) == 0 %}{% endfor %}",
    "{% for i in range(99999) if (range(99999) | list) == 0 %}{% endfor %}",
    "{% for i in [9] * 9 recursive %}"
    "{% if loop.depth < 60 %}{{- loop([i] * 9) }}{% endif %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}"
    + "{% for i in range(9999) %}" * 3 + "{% call f() %}{% endcall %}" + "{% endfor %}" * 3,
    "{% set x = ([range(99999)] * 99999) | map('list') | map('length') | list %}",
]  # fmt: skip


def limited(source: str, limits: TemplateLimits) -> ChatTemplate:
    return ChatTemplate(
        source, special_tokens={}, makes_added_token=lambda text: False, limits=limits
    )


class TestFailures:
    def test_a_text_that_is_not_shown_names_its_message(self):
        template = tiny.chat_template("{% for m in messages %}{% if m.role == 'user' %}"
                                      "{{ m.content }}{% endif %}{% endfor %}")  # fmt: skip
        with pytest.raises(RequestError, match=r"message 1 \(tool\).*does not show") as caught:
            template.render(numbered([message("user", "Q"), message("tool", "x")]))
        assert caught.value.details == {"message_index": 1}

    def test_an_empty_text_need_not_be_shown(self):
        rendered = TEMPLATES["chatml"].render([message("user", ""), message("user", "Q")])
        assert [part.text for part in caller_texts(rendered)] == ["Q"]

    def test_a_text_shown_twice_is_the_models_fault(self):
        template = tiny.chat_template("{{ messages[0].content }}{{ messages[0].content }}")
        with pytest.raises(ModelFileError, match=r"message 0 \(user\).*2 times"):
            template.render([message("user", "Q")])

    def test_so_is_another_order_within_a_message(self):
        template = tiny.chat_template("{{ messages[0].content | reverse }}")
        with pytest.raises(ModelFileError, match="another order"):
            template.render([message("user", "a", "b")])

    @pytest.mark.parametrize("source", ["{{ messages[0].content | urlencode }}", "nothing"])
    def test_a_changed_text_counts_as_lost(self, source):
        with pytest.raises(RequestError, match="does not show"):
            tiny.chat_template(source).render([message("user", "Q")])

    @pytest.mark.parametrize("messages", [[], [message("system", "x")], [message("critic", "x")]])
    def test_a_refusal_of_the_template_is_the_callers_error(self, messages):
        with pytest.raises(RequestError, match="the chat template refuses"):
            TEMPLATES["reasoning"].render(messages)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].nothing.at_all }}",
            "{{ 1 / 0 }}",
            "{{ messages[0].content + 1 }}",
            "{{ none_such() }}",
        ],
    )
    def test_any_other_failure_is_the_models(self, source):
        with pytest.raises(ModelFileError, match="the chat template failed"):
            tiny.chat_template(source).render([message("user", "Q")])

    def test_a_syntax_error_names_its_line(self):
        with pytest.raises(ModelFileError, match="line 2"):
            tiny.chat_template("a\n{% for %}")

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages.__class__.__mro__ }}",
            "{{ ''.__class__.__base__.__subclasses__() }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'content': 'x'}) }}",
            "{{ cycler.__init__.__globals__ }}",
            "{{ raise_exception.__globals__.json }}",
            "{{ dict.__class__.__base__ }}",
            "{{ namespace.__init__.__globals__ }}",
            "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
            "{{ namespace(__call__=1) }}",
            "{% set x = _placeholder_json_forms.clear() %}",
            "{{ 'a' * 2000000 }}",
            "{{ 2000000 * [1] }}",
            "{{ 9 ** 99999999 }}",
            "{{ range(10000000) | length }}",
            "{% include 'secrets' %}",
        ],
    )
    def test_the_sandbox_holds(self, source):
        with pytest.raises(ModelFileError, match="the chat template failed"):
            tiny.chat_template(source + "{{ messages[0].content }}").render([message("user", "Q")])

    def test_output_without_end_is_cut(self):
        with pytest.raises(ModelFileError, match="writes without end"):
            limited(ENDLESS, TemplateLimits(output_chars=10_000))

    def test_so_is_output_that_takes_too_long(self):
        slow = "{% for i in range(9999) %}{{ range(99999) | list | length }}{% endfor %}"
        started_s = time.monotonic()
        with pytest.raises(ModelFileError, match="did not end"):
            limited(slow, TemplateLimits(time_s=0.05))
        assert time.monotonic() - started_s < 5.0

    @pytest.mark.parametrize("source", SILENT)
    def test_work_that_writes_nothing_is_cut(self, source):
        """At once where a template is opened; where a real prompt sets it off, within the limit."""
        started_s = time.monotonic()
        with pytest.raises(ModelFileError, match="did not end"):
            tiny.chat_template(source)
        late = "{% if messages | length > 1 %}" + source + "{% endif %}{{ messages[0].content }}"
        template = limited(late, TemplateLimits(steps=100_000, time_s=1.0))
        with pytest.raises(ModelFileError, match="did not end"):
            template.render([message("user", "Q")] * 2)
        assert joined(template.render([message("user", "Q")])) == "Q"
        assert time.monotonic() - started_s < 10.0

    def test_a_template_of_many_messages_is_not_cut(self):
        many = [message("user", f"Question {number}") for number in range(4096)]
        assert joined(TEMPLATES["reasoning"].render(many)).count("Question") == 4096


class TestConventions:
    def test_white_space_around_blocks(self):
        source = "{% if true %}\n    {% set x = 1 %}\nA\n    {%- if x %}\nB\n    {% endif %}\n"
        source += "{% endif %}"
        source += "{{ messages[0].content }}"
        assert joined(tiny.chat_template(source).render([message("user", "Q")])) == oracle(
            source, [message("user", "Q")]
        )

    def test_loop_controls_and_generation_blocks(self):
        source = (
            "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
            "{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}"
        )
        assert joined(tiny.chat_template(source).render([message("user", "Q")])) == "Q!"

    def test_json_is_not_escaped_for_html(self):
        source = "{{ {'a': '<é>&', 'b': [1]} | tojson }}{{ [1] | tojson(indent=2) }}"
        source += "{{ messages[0].content }}"
        assert joined(tiny.chat_template(source).render([message("user", "Q")])) == oracle(
            source, [message("user", "Q")]
        )

    def test_the_date_comes_from_the_clock_that_was_given(self):
        template = ChatTemplate(
            "{{ strftime_now('%d %B %Y') }} {{ messages[0].content }}",
            special_tokens={},
            makes_added_token=lambda text: False,
            now=lambda: datetime(2031, 5, 17),
        )
        assert joined(template.render([message("user", "Q")])) == "17 May 2031 Q"

    def test_options_are_variables_of_the_template(self):
        rendered = TEMPLATES["reasoning"].render(
            [message("user", "Q")], options={"enable_thinking": False}
        )
        assert joined(rendered).endswith("<think>\n\n</think>\n\n")

    def test_an_option_can_not_make_a_token(self):
        template = tiny.chat_template("{{ mood }}{{ messages[0].content }}")
        rendered = template.render([message("user", "Q")], options={"mood": "<|im_end|>"})
        assert [part.text for part in caller_texts(rendered)] == ["<|im_end|>", "Q"]

    @pytest.mark.parametrize(
        "name", ["messages", "tools", "bos_token", "_x", "add_generation_prompt"]
    )
    def test_what_the_prompt_is_made_of_is_no_option(self, name):
        with pytest.raises(RequestError, match=name):
            TEMPLATES["chatml"].render([message("user", "Q")], options={name: 1})

    def test_schemas_nested_without_end_are_refused(self):
        nested: object = "x"
        for _ in range(80):
            nested = {"a": nested}
        with pytest.raises(RequestError, match="nested deeper"):
            TEMPLATES["reasoning"].render([message("user", "Q")], tools=[{"function": nested}])


class TestFolder:
    def render(self, folder) -> str:
        template = ChatTemplate.from_folder(folder, tiny.tokenizer())
        return joined(template.render([message("user", "Q")]))

    def config(self, folder, chat_template) -> None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))

    def test_its_own_file_comes_first(self, tmp_path):
        self.config(tmp_path, "config {{ messages[0].content }}")
        (tmp_path / "chat_template.jinja").write_text("file {{ messages[0].content }}")
        assert self.render(tmp_path) == "file Q"

    @pytest.mark.parametrize(
        "chat_template",
        [
            "config {{ messages[0].content }}",
            [{"name": "tool_use", "template": "x"},
             {"name": "default", "template": "config {{ messages[0].content }}"}],
        ],
    )  # fmt: skip
    def test_else_the_config(self, tmp_path, chat_template):
        self.config(tmp_path, chat_template)
        assert self.render(tmp_path) == "config Q"

    def test_or_none(self, tmp_path):
        assert ChatTemplate.from_folder(tmp_path, tiny.tokenizer()) is None
        self.config(tmp_path, None)
        assert ChatTemplate.from_folder(tmp_path, tiny.tokenizer()) is None

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.sampled_from(["", "default", "x"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["name", "template"]), inner, max_size=2)
            ),
            max_leaves=6,
        )
    )
    def test_any_value_is_a_template_none_or_a_typed_error(self, value):
        with tempfile.TemporaryDirectory() as folder:
            self.config(Path(folder), value)
            try:
                template = ChatTemplate.from_folder(Path(folder), tiny.tokenizer())
            except ModelFileError:
                return
            assert template is None or isinstance(value, str | list)

    def test_the_only_one_of_a_list_needs_no_name(self, tmp_path):
        self.config(tmp_path, [{"name": "chat", "template": "one {{ messages[0].content }}"}])
        assert self.render(tmp_path) == "one Q"

    def test_special_tokens_come_from_the_tokenizer(self, tmp_path):
        (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
        assert self.render(tmp_path) == "Q<|im_end|>"
