"""What the models of this adapter have in common: arguments from the environment, their traces."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import LangSmithParams
from langchain_core.utils import from_env, secret_from_env
from pydantic import Field, SecretStr

from hypic_sdk.integrations.langchain.errors import core_errors
from hypic_sdk.integrations.served import Served


class ServedModel(Served):
    """A `Served` as core's models are: its address and key may stand in the environment."""

    base_url: str | None = Field(default_factory=from_env("HYPIC_BASE_URL", default=None))
    api_key: SecretStr | None = Field(
        default_factory=secret_from_env("HYPIC_API_KEY", default=None)
    )
    streaming: bool = False

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"base_url": self.base_url, "hypic": self.hypic, **self._options()}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Whether `dumpd` writes what can be loaded; the client and the known texts are left out.

        Core loads classes outside of itself where they are named: `load(dumped,
        allowed_objects=[ChatHypic])`.
        """
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        """What `dumpd` writes by name instead of by value."""
        return {"api_key": "HYPIC_API_KEY"}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        # core's own, which stands behind this class in those that mix it in
        core: Any = super()
        params: LangSmithParams = core._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "hypic"
        params["ls_model_name"] = kwargs.get("model") or self.model or "default"
        return params

    def get_token_ids(self, text: str) -> list[int]:
        """The token ids of a text, by the server's tokenizer."""
        with core_errors():
            return list(self.calls().tokenize(prompt=text).tokens) if text else []

    def _call_options(self, stop: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
        return self._asked({**({} if stop is None else {"stop": stop}), **given})
