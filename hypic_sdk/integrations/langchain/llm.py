"""`HypicLLM`: plain prompts, without a chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import GenerationChunk, LLMResult

from hypic_sdk.integrations.asking import chunks, plain_prompts, whole
from hypic_sdk.integrations.contract import Cut
from hypic_sdk.integrations.langchain.errors import core_errors
from hypic_sdk.integrations.langchain.replies import PlainReader, generations, llm_result
from hypic_sdk.integrations.langchain.served import ServedModel
from hypic_sdk.integrations.parts import PartCutter, text_part
from hypic_sdk.integrations.served import one_reply


class HypicLLM(ServedModel, BaseLLM):
    """Continues prompts over cached documents; arguments as those of `ChatHypic`.

    What a reply tells stands in its `generation_info`.
    """

    @property
    def _llm_type(self) -> str:
        return "hypic-llm"

    def _request(
        self, prompt: str, stop: list[str] | None, given: dict[str, Any]
    ) -> tuple[list[Cut], dict[str, Any]]:
        """The arguments of the client's call, and how the prompt was cut."""
        cutter = PartCutter(self._known())
        written = cutter.content([text_part(prompt)])
        return cutter.cuts, {"prompt": written, **self._call_options(stop, given)}

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        made = []
        with core_errors():
            for prompt in prompts:
                cuts, request = self._request(prompt, stop, kwargs)
                made.append(generations(self.calls().completions.create(**request), cuts))
        return llm_result(made)

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        with core_errors():
            requests = [self._request(prompt, stop, kwargs) for prompt in prompts]
            replies = await asyncio.gather(
                *(whole(self, plain_prompts, request) for _, request in requests)
            )
        cuts = [cuts for cuts, _ in requests]
        return llm_result([generations(*one) for one in zip(replies, cuts, strict=True)])

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        with core_errors():
            cuts, request = self._request(prompt, stop, kwargs)
            one_reply(request)
            reader = PlainReader()
            with self.calls().completions.stream(**request) as stream:
                for chunk in stream:
                    for said in reader.feed(chunk):
                        if run_manager is not None:
                            run_manager.on_llm_new_token(said.text, chunk=said)
                        yield said
            yield reader.last(cuts)

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        with core_errors():
            cuts, request = self._request(prompt, stop, kwargs)
            one_reply(request)
            reader = PlainReader()
            async with aclosing(chunks(self, plain_prompts, request)) as stream:
                async for chunk in stream:
                    for said in reader.feed(chunk):
                        if run_manager is not None:
                            await run_manager.on_llm_new_token(said.text, chunk=said)
                        yield said
            yield reader.last(cuts)
