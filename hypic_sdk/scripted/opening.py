"""A scripted worker with the tokenizer, template and numbers of the packaged model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.tokenizer import PromptTokenizer, read_json
from hypic_sdk.prompt.tool_calls import ToolFormat, tool_format
from hypic_sdk.scripted.author import Author
from hypic_sdk.scripted.grammars import GrammarDesk
from hypic_sdk.scripted.rules import Script
from hypic_sdk.scripted.worker import ScriptedWorker
from hypic_sdk.transport.control import EngineReady


@dataclass(frozen=True, slots=True)
class Opened:
    """A worker, what it says of itself, and what it reads and writes prompts with."""

    worker: ScriptedWorker
    ready: EngineReady
    config: EngineConfig
    tokenizer: PromptTokenizer
    template: ChatTemplate | None


def scripted_path() -> Path:
    """The folder whose tokenizer, template and numbers are used."""
    return reader_path()


def open_scripted(script: Script | None = None, config: EngineConfig | None = None) -> Opened:
    """Start a worker.

    Args:
        script: none is what is built in.
    Raises:
        ModelFileError: the packaged files can not be read.
    """
    script, config = script or Script(), config or EngineConfig()
    folder = scripted_path()
    tokenizer = PromptTokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder, tokenizer)
    model = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json")
    eos_token_ids = tuple(generation["eos_token_id"])
    limit = min(model["max_position_embeddings"], config.max_context_tokens or 1 << 62)
    form = ToolFormat.JSON if template is None else tool_format(template.source)
    author = Author(script, tokenizer, form, GrammarDesk(folder, tokenizer, eos_token_ids))
    worker = ScriptedWorker(
        author,
        config,
        conv_width=model["linear_conv_kernel_dim"],
        max_context_tokens=limit,
        vocab_size=model["vocab_size"],
        token_s=script.token_ms / 1e3,
    )
    ready = EngineReady(
        model_fingerprint="scripted",
        vocab_size=model["vocab_size"],
        max_context_tokens=limit,
        eos_token_ids=eos_token_ids,
        conv_width=model["linear_conv_kernel_dim"],
        load_s=0.0,
    )
    return Opened(worker, ready, config, tokenizer, template)
