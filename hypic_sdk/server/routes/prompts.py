"""Prompts looked at without an answer: explained, tokenised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypic_sdk.server.bodies import loaded, read_body
from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import desk_of, site_of
from hypic_sdk.service import Service
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.models import TokenizeReply
from hypic_sdk.wire.parse import parse

if TYPE_CHECKING:
    from aiohttp import web


def _chat_or_plain(raw: bytes) -> ChatRequest | CompletionRequest:
    """A body is a chat unless it has a prompt."""
    values = loaded(raw)
    is_plain = isinstance(values, dict) and "prompt" in values
    return parse(CompletionRequest, values) if is_plain else parse(ChatRequest, values)


def _explain(service: Service, raw: bytes) -> Explanation:
    return service.explain(_chat_or_plain(raw))


def _tokenize(service: Service, raw: bytes) -> TokenizeReply:
    body = _chat_or_plain(raw)
    if isinstance(body, ChatRequest):
        prepared = service.prepare_chat(body)
    else:
        prepared = service.prepare_completion(body)
    prompt = prepared.message.prompt
    return TokenizeReply(count=prompt.num_tokens, tokens=list(prompt.token_ids))


async def explain(request: web.Request) -> web.Response:
    """`POST /v1/prompts/explain`: the body of a chat or of a plain completion."""
    site, desk = site_of(request), await desk_of(request)
    raw = await read_body(request)
    # it asks the worker what is warm, so it waits with those that do
    return reply(await site.waiting.run(_explain, desk.service, raw))


async def tokenize(request: web.Request) -> web.Response:
    """`POST /v1/tokenize`: the body of a chat or of a plain completion."""
    site, desk = site_of(request), await desk_of(request)
    raw = await read_body(request)
    return reply(await site.prepare.run(_tokenize, desk.service, raw))
