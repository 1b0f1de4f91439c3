"""One folder, examined: config, headers, tokenizer and template; no weight is read."""

from __future__ import annotations

import dataclasses
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from hypic_sdk.config import MIB, EngineConfig
from hypic_sdk.doctor.laws import check_laws
from hypic_sdk.doctor.memory import memory_plan
from hypic_sdk.doctor.prompts import template_facts, tokenizer_facts
from hypic_sdk.doctor.report import (
    DoctorReport,
    Identity,
    MemoryPlan,
    Placement,
    SamplingFacts,
    TemplateFacts,
)
from hypic_sdk.doctor.trial import run_trial
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.engine.settings import EngineSettings, resolve_settings
from hypic_sdk.errors import ModelFileError, NumericsError
from hypic_sdk.models.base import ModelSpec
from hypic_sdk.models.headers import StoredTensor
from hypic_sdk.models.hub import HubId, hub_headers, model_folder
from hypic_sdk.models.loader import (
    Checkpoint,
    ModelFiles,
    match_headers,
    model_files,
    open_checkpoint,
)
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.sampling_defaults import FILE_NAME, ignored_wishes, sampling_defaults
from hypic_sdk.store.layout import StoreLayout


def examine_model(
    model: str | Path,
    config: EngineConfig,
    *,
    cache: Path | None = None,
    endpoint: str | None = None,
) -> DoctorReport:
    """A folder, or an id of the hub; of the latter no shard is fetched that is not there.

    Args:
        cache, endpoint: huggingface_hub's own where none is given.
    Raises:
        HypicError: as `examine`, and `models.hub.model_folder`.
    """
    folder = model_folder(model, weights=False, cache=cache, endpoint=endpoint)
    hub_id = None if folder == Path(model) else HubId.parse(str(model))
    if hub_id is None or _has_every_shard(folder):
        return examine(folder, config)
    stored = hub_headers(hub_id, endpoint=endpoint)
    shards = sorted({tensor.path for copies in stored.values() for tensor in copies})
    files = ModelFiles(folder, folder / "config.json", tuple(shards), None)
    return examine_headers(files, stored, config)


def _has_every_shard(folder: Path) -> bool:
    """Whether a folder of the hub's cache is whole; a fetch may have been broken off."""
    try:
        model_files(folder)
    except ModelFileError:
        return False
    return True


def examine_headers(
    files: ModelFiles, stored: Mapping[str, Sequence[StoredTensor]], config: EngineConfig
) -> DoctorReport:
    """A folder whose shards are elsewhere, by their headers.

    Raises:
        HypicError: as `examine`.
    """
    return _report(match_headers(files, stored), config)


def examine(folder: Path, config: EngineConfig) -> DoctorReport:
    """Everything that can be told before loading.

    Raises:
        ModelFileError: a folder that can not be served, for the reason that loading it would give
            (values apart: only loading reads them).
        ConfigError: settings that do not fit the model or this machine.
        NumericsError: a law does not hold on this machine.
    """
    return _report(open_checkpoint(model_files(folder)), config)


def _report(checkpoint: Checkpoint, config: EngineConfig) -> DoctorReport:
    folder = checkpoint.files.folder
    device = usable_device(config.device)
    dtype = _run_dtype(checkpoint, device, config)
    with torch.device("meta"):
        model = checkpoint.build(dtype)
    settings = resolve_settings(model, dtype, device, "", config)
    layout = StoreLayout.of(
        model.spec,
        dtype=settings.dtype,
        state_dtype=settings.state_dtype,
        pair=settings.pair,
    )
    tokenizer = _tokenizer(folder, model.spec)
    sampling = _sampling(folder)
    template = ChatTemplate.from_folder(folder, tokenizer)
    told = None if template is None else template_facts(template, tokenizer)
    memory = memory_plan(
        layout,
        config.store,
        config.reuse,
        weights_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        max_context_tokens=settings.max_context_tokens,
        device=device,
    )
    ops, warm_is_cold = run_trial(checkpoint, dtype, device, config)
    laws = check_laws(checkpoint.loaded.config.family, layout, device=device)
    report = DoctorReport(
        identity=_identity(checkpoint, sum(p.numel() for p in model.parameters())),
        placement=_placement(settings),
        tokenizer=tokenizer_facts(tokenizer),
        template=told,
        sampling=sampling,
        ops=ops,
        memory=memory,
        laws=laws if warm_is_cold is None else (*laws, warm_is_cold),
        notes=tuple(_notes(checkpoint, memory, told, tokenizer)),
    )
    _raise_broken(report)
    return report


def _tokenizer(folder: Path, spec: ModelSpec) -> PromptTokenizer:
    """The folder's tokenizer, held against the model."""
    tokenizer = PromptTokenizer.from_folder(folder)
    tokenizer.check_vocab_size(spec.vocab_size)
    tokenizer.check_end_tokens(spec.eos_token_ids)
    return tokenizer


def _sampling(folder: Path) -> SamplingFacts:
    """As a server of this folder would have it, refusals included."""
    params = sampling_defaults(folder)
    names = [field.name for field in dataclasses.fields(SamplingFacts)]
    return SamplingFacts(**{name: getattr(params, name) for name in names})


def _run_dtype(checkpoint: Checkpoint, device: torch.device, config: EngineConfig) -> torch.dtype:
    """As `load_engine` has it: fp32 on a CPU, the checkpoint's own elsewhere, unless told."""
    if config.dtype != "auto":
        named: torch.dtype = getattr(torch, config.dtype)
        return named
    return torch.float32 if device.type == "cpu" else checkpoint.dtype


def _identity(checkpoint: Checkpoint, num_parameters: int) -> Identity:
    config = checkpoint.loaded.config
    spec, stored = config.spec(), Counter[str]()
    for tensor in checkpoint.found.values():
        stored[tensor.dtype] += tensor.num_bytes
        if tensor.scale is not None:
            stored[tensor.scale.dtype] += tensor.scale.num_bytes
    attention = spec.attention
    return Identity(
        folder=str(checkpoint.files.folder),
        model_type=checkpoint.loaded.model_type,
        family=config.family,
        transition=spec.linear.transition.value,
        num_layers=len(spec.layers),
        num_linear=spec.num_linear,
        num_attention=spec.num_attention,
        num_heads=spec.linear.num_heads,
        key_size=spec.linear.key_size,
        value_size=spec.linear.value_size,
        num_query_heads=None if attention is None else attention.num_query_heads,
        num_kv_heads=None if attention is None else attention.num_kv_heads,
        head_size=None if attention is None else attention.head_size,
        more=config.describe(),
        vocab_size=spec.vocab_size,
        max_context_tokens=spec.max_context_tokens,
        end_token_ids=spec.eos_token_ids,
        num_parameters=num_parameters,
        stored_bytes=dict(sorted(stored.items())),
        num_shards=len(checkpoint.files.shards),
    )


def _placement(settings: EngineSettings) -> Placement:
    def name(dtype: torch.dtype) -> str:
        return str(dtype).removeprefix("torch.")

    device = settings.device
    processor = platform.processor() or platform.machine()
    return Placement(
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        dtype=name(settings.dtype),
        state_dtype=name(settings.state_dtype),
        pair=settings.pair,
        determinism=settings.determinism.value,
    )


def _notes(
    checkpoint: Checkpoint,
    memory: MemoryPlan,
    template: TemplateFacts | None,
    tokenizer: PromptTokenizer,
) -> list[str]:
    """What works, and may still surprise."""
    notes, ends = [], checkpoint.loaded.config.eos_token_ids
    if not memory.fits and memory.available_bytes is not None:
        needed = memory.weights_bytes + memory.budget_bytes
        notes.append(
            f"weights and cache take {needed / MIB:,.0f} MiB, "
            f"{memory.available_bytes / MIB:,.0f} MiB are free here now"
        )
    ignored = ignored_wishes(checkpoint.files.folder)
    if ignored:
        notes.append(f"{FILE_NAME} asks for {', '.join(ignored)}, which is not done")
    if not ends:
        notes.append("the model names no end token: replies end at max_tokens or a stop string")
    if template is None:
        return [*notes, "no chat template: plain prompts only (completions, no chat)"]
    end = template.ends_reply_with
    if end is not None and ends and end not in map(tokenizer.token_text, ends):
        named = ", ".join(repr(tokenizer.token_text(id_)) for id_ in ends)
        notes.append(
            f"the template ends a reply with {end!r}, the model ends its text with {named}"
        )
    if "user" not in template.segments_in:
        notes.append("the template does not show a segment in a user message whole and once")
    return notes


def _raise_broken(report: DoctorReport) -> None:
    """A law that does not hold here is our fault, and nothing may be served with it."""
    broken = [law for law in report.laws if not law.holds]
    if broken:
        told = "; ".join(f"{law.law}: {law.error:.1e}, bound {law.bound:.1e}" for law in broken)
        raise NumericsError(f"a law does not hold on this machine: {told}")
