"""What the models of all adapters have in common: options, the way to the model, known texts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from hypic_sdk.client.async_client import DEFAULT_TIMEOUT_S
from hypic_sdk.errors import RequestError
from hypic_sdk.integrations.clients import ClientPool, Clients
from hypic_sdk.integrations.contract import SegmentRegistry

_OPTIONS = ("model", "temperature", "max_tokens", "top_p", "top_k", "seed", "stop")

# what a framework hangs on a model in this process, and what is made anew in another one
_OF_THIS_PROCESS = frozenset(
    {"registry", "connections", "callbacks", "callback_manager", "rate_limiter", "cache"}
)


def one_reply(request: Mapping[str, Any]) -> None:
    """Raises RequestError: a request for several replies, where there is room for one."""
    if (request.get("n") or 1) != 1:
        raise RequestError(
            f"there is room for one reply here, not for n = {request['n']}", param="n"
        )


class Served(BaseModel):
    """A model over a server or over a client, by one argument: `base_url` or `client`.

    `base_url` names a server (none: `HYPIC_BASE_URL`, else this machine); or `client` is a
    `hypic_sdk.Hypic`, a `LocalHypic` or anything with their calls.  Without an `async_client`
    beside such a `client`, asynchronous calls run it in threads.

    `registry` holds the texts that are looked for in plain prompts while `auto_segment` is on.
    Copies of a model share it, and the connections; in another process both begin empty.
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
    connections: ClientPool = Field(default_factory=ClientPool, exclude=True, repr=False)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_names(cls, values: Any) -> Any:
        """A name that nobody reads would be a setting that silently does nothing."""
        unknown = values.keys() - cls.model_fields.keys() if isinstance(values, Mapping) else ()
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no {', '.join(sorted(unknown))}; "
                f"it has {', '.join(Served.model_fields)} and what its framework adds"
            )
        return values

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A model of its own over the same connections and known texts."""
        return self.model_copy(update={"hypic": deepcopy(self.hypic), "stop": deepcopy(self.stop)})

    def __reduce__(self) -> Any:
        """Another process connects anew; its registry begins empty."""
        if self.client is not None or self.async_client is not None:
            raise TypeError(
                f"a {type(self).__name__} over a given client lives in this process only: give it "
                "base_url, or stay in one process (no num_workers)"
            )
        names = type(self).model_fields.keys() - _OF_THIS_PROCESS
        return partial(type(self), **{name: getattr(self, name) for name in names}), ()

    def calls(self) -> Any:
        """The client that waits; one over `base_url` is made at the first call."""
        return self._held().calls()

    def async_calls(self) -> Any | None:
        """The client on an event loop; none: there is only one that waits."""
        return self._held().async_calls()

    def close(self) -> None:
        """Close the waiting clients that were made here, for copies of this model too.

        One that was given is the giver's.
        """
        self.connections.close()

    async def aclose(self) -> None:
        """Close all clients that were made here."""
        await self.connections.aclose()

    def _held(self) -> Clients:
        """Nothing is connected before the first call."""
        key = self.api_key
        return self.connections.clients(
            self.client,
            self.async_client,
            base_url=self.base_url,
            api_key=None if key is None else key.get_secret_value(),
            timeout_s=self.timeout,
            max_retries=self.max_retries,
        )

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
