"""The model that a measurement is about, and how its prompts are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hypic_sdk.bench.probe import Probe
from hypic_sdk.config import (
    MIB,
    MODES,
    PAIRS,
    Determinism,
    EngineConfig,
    ReuseConfig,
    SeamRule,
    StoreConfig,
)
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.loader import load_model, model_files, open_checkpoint
from hypic_sdk.offline import find_model
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.pieces import CallerText, Message
from hypic_sdk.prompt.segment import SegmentedPrompt, segment_id
from hypic_sdk.prompt.segmenter import parts_prompt, segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer

BUDGET_BYTES = 96 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A loaded model with its tokenizer; the weights are shared by all probes over it."""

    name: str
    family: str
    model: CausalLM
    fingerprint: str
    tokenizer: PromptTokenizer
    template: ChatTemplate | None
    device: torch.device
    budget_bytes: int = BUDGET_BYTES

    def prompt(
        self,
        system: str | None,
        documents: Sequence[str],
        glue: Sequence[str],
        question: str,
        *,
        with_borders: bool = False,
    ) -> SegmentedPrompt:
        """One question over documents, each followed by its glue; the documents are segments.

        Args:
            with_borders: let prefixes be kept; else nothing but segments is.
        """
        texts = []
        for document, joiner in zip(documents, glue, strict=True):
            texts += [CallerText(document, segment_id(document)), CallerText(joiner)]
        texts = [text for text in (*texts, CallerText(question)) if text.text]
        if self.template is None:
            rendered = parts_prompt(texts)
        else:
            head = [Message("system", (CallerText(system),))] if system else []
            rendered = self.template.render([*head, Message("user", tuple(texts))])
        prompt = segment_prompt(rendered, self.tokenizer)
        return prompt if with_borders else replace(prompt, borders=())

    def probe(
        self, mode: str = "transition_rope_recompute", seam: SeamRule = SeamRule(), *,
        pair: str = PAIRS[0], min_segment_tokens: int = 64, attends: bool = True,
        anchored: bool = False, determinism: Determinism | None = None,
    ) -> Probe:  # fmt: skip
        """An engine over these weights, in a mode of `config.MODES`."""
        config = EngineConfig(
            device=str(self.device),
            determinism=determinism,
            graphs="off",  # what is looked at in a forward is not in a replay of it
            reuse=ReuseConfig(MODES[mode], seam, min_segment_tokens, anchored),
            store=StoreConfig(self.budget_bytes, 128, pair),
        )
        return Probe(self.model, self.fingerprint, config, attends=attends)


def load_subject(model: str | None, device_name: str = "auto") -> Subject:
    """A checkpoint folder or hub id; none is the packaged reader.

    Raises:
        ModelFileError: no whole model with a tokenizer.
        ConfigError: no such device.
    """
    device = usable_device(device_name)
    folder, name = find_model(model)
    dtype = torch.float32 if device.type == "cpu" else None
    loaded = load_model(folder, device=device, dtype=dtype)
    family: str = open_checkpoint(model_files(folder)).loaded.config.family
    tokenizer = PromptTokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder, tokenizer)
    return Subject(name, family, loaded.model, loaded.fingerprint, tokenizer, template, device)


def check_reads(subject: Subject) -> None:
    """Raises ModelFileError for a model whose answers would mean nothing here."""
    if subject.template is None:
        raise ModelFileError(
            f"{subject.name} has no chat template, so it can not be asked about documents"
        )
