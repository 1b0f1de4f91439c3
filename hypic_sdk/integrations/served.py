"""What the models of all adapters have in common: options, the way to the model, known texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from hypic_sdk.client.async_client import DEFAULT_TIMEOUT_S
from hypic_sdk.integrations.clients import Clients
from hypic_sdk.integrations.contract import SegmentRegistry

_OPTIONS = ("model", "temperature", "max_tokens", "top_p", "top_k", "seed", "stop")


class Served(BaseModel):
    """A model over a server or over a client, by one argument: `base_url` or `client`.

    `base_url` names a server (none: `HYPIC_BASE_URL`, else this machine); or `client` is a
    `hypic_sdk.Hypic`, a `LocalHypic` or anything with their calls.  Without an `async_client`
    beside such a `client`, asynchronous calls run it in threads.

    `registry` holds the texts that are looked for in plain prompts while `auto_segment` is on.
    """

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] | None = None

    base_url: str | None = None
    api_key: SecretStr | None = Field(default=None, exclude=True)
    timeout: float = DEFAULT_TIMEOUT_S
    max_retries: int = 2

    hypic: dict[str, Any] = Field(default_factory=dict)
    """Options of the wire's `hypic` field: `mode`, `session_id`, `on_missing`, `report`."""
    auto_segment: bool = True
    registry: SegmentRegistry = Field(default_factory=SegmentRegistry, exclude=True)
    client: Any = Field(default=None, exclude=True)
    async_client: Any = Field(default=None, exclude=True)

    _clients: Clients | None = PrivateAttr(default=None)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def calls(self) -> Any:
        """The client that waits; one over `base_url` is made at the first call."""
        return self._held().calls()

    def async_calls(self) -> Any | None:
        """The client on an event loop; none: there is only one that waits."""
        return self._held().async_calls()

    def close(self) -> None:
        """Close the waiting client that was made here; one that was given is the giver's."""
        self._held().close()

    async def aclose(self) -> None:
        """Close both clients that were made here."""
        await self._held().aclose()

    def _held(self) -> Clients:
        # nothing is connected before the first call
        if self._clients is None:
            key = self.api_key
            self._clients = Clients(
                self.client,
                self.async_client,
                base_url=self.base_url,
                api_key=None if key is None else key.get_secret_value(),
                timeout_s=self.timeout,
                max_retries=self.max_retries,
            )
        return self._clients

    def _known(self) -> SegmentRegistry | None:
        """Where texts are looked up; none: nothing is looked for."""
        return self.registry if self.auto_segment else None

    def _options(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    def _asked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the client's call; those of this call overrule the model's own."""
        options = {**self._options(), **given}
        options.pop("stream", None)
        hypic = {**self.hypic, **options.pop("hypic", {})}
        return {**options, "hypic": hypic} if hypic else options
