"""Tools and schemas as the wire has them, and what is read out of the replies to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    PydanticToolsParser,
)
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

Tool = Mapping[str, Any] | type | Callable[..., Any] | BaseTool
Method = Literal["json_schema", "function_calling", "json_mode"]


def tool_options(
    tools: Sequence[Tool], tool_choice: Any, *, strict: bool | None, parallel: bool | None
) -> dict[str, Any]:
    """The options of a request that offers tools.

    Args:
        tool_choice: "auto", "none", "any" (also "required" or True), the name of a tool, or
            OpenAI's object; none: left out, which is "auto".
        parallel: whether several calls may be made at once; none: left out.
    """
    options: dict[str, Any] = {
        "tools": [convert_to_openai_tool(tool, strict=strict) for tool in tools]
    }
    if tool_choice:
        options["tool_choice"] = _choice(tool_choice)
    if parallel is not None:
        options["parallel_tool_calls"] = parallel
    return options


def _choice(tool_choice: Any) -> Any:
    if tool_choice is True or tool_choice == "any":
        return "required"
    if isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
        return {"type": "function", "function": {"name": tool_choice}}
    return tool_choice


def structured(
    chat: BaseChatModel,
    schema: dict[str, Any] | type,
    *,
    method: Method,
    include_raw: bool,
    strict: bool | None,
) -> Runnable[LanguageModelInput, Any]:
    """A chat model whose answers are values of a schema.

    Args:
        method: "json_schema" lets the server say nothing else; "function_calling" has the model
            call the schema as a tool; "json_mode" asks for any JSON, which the prompt describes.
    Raises:
        ValueError: a method that there is not.
    """
    told = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    is_model = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: BaseOutputParser[Any]
    if method == "function_calling":
        name = convert_to_openai_tool(schema)["function"]["name"]
        options = tool_options([schema], name, strict=strict, parallel=False)
        if is_model:
            parser = PydanticToolsParser(tools=[schema], first_tool_only=True)
        else:
            parser = JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
    elif method in ("json_schema", "json_mode"):
        options = {"response_format": _response_format(schema, method, strict)}
        parser = PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
    else:
        raise ValueError(
            f"there is no method {method!r}: json_schema, function_calling or json_mode"
        )
    asked = chat.bind(**options, ls_structured_output_format=told)
    return _with_raw(asked, parser) if include_raw else asked | parser


def _response_format(
    schema: dict[str, Any] | type, method: str, strict: bool | None
) -> dict[str, Any]:
    if method == "json_mode":
        return {"type": "json_object"}
    written = convert_to_json_schema(schema, strict=strict)
    wanted = {"name": written.get("title", "answer"), "schema": written}
    if strict is not None:
        wanted["strict"] = strict
    return {"type": "json_schema", "json_schema": wanted}


def _with_raw(
    asked: Runnable[LanguageModelInput, Any], parser: BaseOutputParser[Any]
) -> Runnable[LanguageModelInput, Any]:
    """`raw`, `parsed` and `parsing_error`; what can not be parsed is told, not raised."""
    parsing = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asked) | parsing.with_fallbacks([failed], exception_key="parsing_error")
