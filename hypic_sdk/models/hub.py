"""A model's folder by what people call it: a path, or an id of the Hugging Face hub.

Fetching, its cache, its tokens and its offline mode (`HF_HUB_OFFLINE`) are huggingface_hub's own.
Only files that are read here are fetched: weights as safetensors, JSON, the chat template.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.headers import StoredTensor

if TYPE_CHECKING:
    from hypic_sdk.models.weights import OnProgress

logger = logging.getLogger(__name__)

_MAX_ERROR_CHARS = 400
_SMALL_FILES = ("*.json", "*.jinja")
_WEIGHTS = ("*.safetensors",)
# folders of a repository hold other models or other formats of the same one
_SUBFOLDERS = ("*/*",)
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[\w./-]{{1,200}}))?")


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository of the hub, pinned to a revision where one is named: `owner/name@revision`."""

    name: str
    revision: str | None = None  # a branch, a tag or a commit; none is the main branch

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        """Read `owner/name` or `owner/name@revision`; none for anything else."""
        match = _HUB_ID.fullmatch(text)
        if match is None or ".." in text:
            return None
        return cls(match["name"], match["revision"])

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def model_folder(
    model: str | Path,
    *,
    weights: bool = True,
    on_progress: OnProgress | None = None,
    cache: Path | None = None,
    endpoint: str | None = None,
) -> Path:
    """The folder of a model, fetched from the hub if need be.

    A folder that is there wins over a hub id of the same text; a `Path` is never a hub id.

    Args:
        weights: fetch the shards too; else what else there is.
        on_progress: told of bytes as they come, from threads of the download.
        cache, endpoint: huggingface_hub's own where none is given.
    Raises:
        ModelFileError: no such folder; or a hub id that is not found, gated, not reachable or, in
            offline mode, not in the cache.  `details` hold `repository`, `revision` and `reason`
            (`not_found`, `no_such_revision`, `gated`, `offline`, `unreachable` or `refused`).
    """
    if isinstance(model, str) and not model.strip():
        raise ModelFileError("the model's name is empty: give a folder or an id of the hub")
    folder = Path(model).expanduser()
    if folder.is_dir() or not isinstance(model, str):
        return folder
    hub_id = HubId.parse(model)
    if hub_id is None:
        raise ModelFileError(
            f"no such model folder: {model} (an id of the hub is written owner/name or "
            "owner/name@revision)",
            path=model,
        )
    wanted = _SMALL_FILES + (_WEIGHTS if weights else ())
    return _fetch(hub_id, wanted, on_progress, cache, endpoint)


def hub_headers(hub_id: HubId, *, endpoint: str | None = None) -> dict[str, list[StoredTensor]]:
    """The tensors of a repository's shards by name, by their headers alone.

    Raises:
        ModelFileError: as `model_folder`; or there are no safetensors, or their headers are torn.
    """
    import huggingface_hub

    try:
        found = huggingface_hub.HfApi(endpoint=endpoint).get_safetensors_metadata(
            hub_id.name, revision=hub_id.revision
        )
    except Exception as error:
        raise _refusal(hub_id, error) from error
    tensors: dict[str, list[StoredTensor]] = {}
    for file, metadata in sorted(found.files_metadata.items()):
        for name, info in metadata.tensors.items():
            stored = StoredTensor(name, tuple(info.shape), info.dtype, Path(file))
            tensors.setdefault(name, []).append(stored)
    return tensors


def _fetch(
    hub_id: HubId,
    wanted: tuple[str, ...],
    on_progress: OnProgress | None,
    cache: Path | None,
    endpoint: str | None,
) -> Path:
    import huggingface_hub

    try:
        found = huggingface_hub.snapshot_download(
            hub_id.name,
            revision=hub_id.revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(_SUBFOLDERS),
            cache_dir=cache,
            endpoint=endpoint,
            tqdm_class=_bar(on_progress),
        )
    # the library raises its own errors, those of its HTTP client, OSError and ValueError
    except Exception as error:
        raise _refusal(hub_id, error) from error
    logger.info("model %s is %s", hub_id, found)
    return Path(found)


def _refusal(hub_id: HubId, error: Exception) -> ModelFileError:
    """The error in our words: what it is, and what to do."""
    reason, sentence = _reason(error)
    return ModelFileError(
        f"{hub_id} is no folder here, and {sentence} ({_shortened(error)})",
        repository=hub_id.name,
        revision=hub_id.revision,
        reason=reason,
        # the network, or the hub, may come back
        retryable=reason == "unreachable",
    )


def _reason(error: Exception) -> tuple[str, str]:
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return "gated", "the hub wants its terms accepted, and a token of who did (HF_TOKEN)"
    if isinstance(error, errors.RevisionNotFoundError):
        return "no_such_revision", "the hub has no such revision of it"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "not_found", "the hub has no such model, or not for this token (HF_TOKEN)"
    if isinstance(error, errors.NotASafetensorsRepoError | errors.SafetensorsParsingError):
        return "refused", "the hub has no safetensors of it that can be read"
    if constants.HF_HUB_OFFLINE:
        return "offline", "the hub's cache does not hold it whole (HF_HUB_OFFLINE is set)"
    if (status is not None and status < 500) or isinstance(error, errors.HFValidationError):
        return "refused", "the hub refuses to give it"
    return "unreachable", "the hub can not be reached, nor does its cache hold the whole of it"


def _shortened(error: Exception) -> str:
    """The error on one line; the library breaks lines within sentences."""
    text = " ".join(str(error).split())
    if len(text) > _MAX_ERROR_CHARS:
        text = text[:_MAX_ERROR_CHARS].rpartition(" ")[0] + " ..."
    return f"{type(error).__name__}: {text}"


def _bar(on_progress: OnProgress | None) -> type[Any]:
    """The library's progress bar, silent, telling `on_progress` instead."""
    from huggingface_hub import utils

    from hypic_sdk.models.weights import LoadProgress

    base: Any = utils.tqdm  # type: ignore[attr-defined]

    # a subclass by design of the library: this is how it takes another bar
    class Bar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # several bars run at once; this one counts bytes on the disk
            self._told = kwargs.get("name") == "huggingface_hub.snapshot_download"
            self._done_bytes = 0
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            self._done_bytes += int(n or 0)
            if self._told and on_progress is not None:
                total = max(int(self.total or 0), self._done_bytes)
                on_progress(LoadProgress(self._done_bytes, total, "download"))
            return None

    return Bar
