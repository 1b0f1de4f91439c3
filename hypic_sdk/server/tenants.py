"""Who may call: bearer keys, each of a tenant, each tenant with a cache namespace of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self, final

from hypic_sdk.errors import ConfigError, NotAuthenticated
from hypic_sdk.server.quota import Quota

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MIN_KEY_CHARS = 16


@dataclass(frozen=True, slots=True)
class Tenant:
    """One owner of segments.  The tenant of a server without keys has an empty name.

    `quota`: its own; none: the server's.
    """

    name: str = ""
    quota: Quota | None = None

    @property
    def namespace(self) -> str:
        """The tenant's share of the cache namespace."""
        return self.name


@final
class Tenants:
    """Keys by their digests; without any, everybody on this machine is the one tenant."""

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        """
        Args:
            keys: tenant name by key.
            quotas: by tenant name, of those that have their own.
        Raises:
            ConfigError: a name or a key that can not be one.
        """
        own = quotas or {}
        checked = {
            _digest(_key(key)): Tenant(_name(name), own.get(name))
            for key, name in (keys or {}).items()
        }
        self._by_digest = MappingProxyType(checked)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read lines of `tenant key`; empty ones and what stands behind `#` are skipped.

        Words behind the key are the tenant's quotas, as `Quota.with_words` reads them; a tenant
        with several keys has them on one of its lines.

        Raises:
            ConfigError: a file that can not be read, or a line that is something else.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the keys file {path} can not be read: {error}") from error
        keys: dict[str, str] = {}
        quotas: dict[str, Quota] = {}
        for number, line in enumerate(lines, start=1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) < 2:
                raise ConfigError(f"{path}:{number}: a line is a tenant's name, a key and quotas")
            name, key, *given = words
            if key in keys:
                raise ConfigError(f"{path}:{number}: this key was given before")
            keys[key] = name
            if given:
                if name in quotas:
                    raise ConfigError(f"{path}:{number}: {name} has quotas on another line")
                quotas[name] = _quota(given, f"{path}:{number}")
        if not keys:
            raise ConfigError(f"the keys file {path} has no key")
        return cls(keys, quotas)

    @property
    def has_keys(self) -> bool:
        """Whether a call needs a key."""
        return bool(self._by_digest)

    @property
    def all(self) -> tuple[Tenant, ...]:
        """Every tenant, once."""
        if not self._by_digest:
            return (Tenant(),)
        return tuple({one.name: one for one in self._by_digest.values()}.values())

    def of(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header.

        Raises:
            NotAuthenticated: none, or no key of this server.
        """
        if not self._by_digest:
            return Tenant()
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise NotAuthenticated("a call needs the header `Authorization: Bearer <key>`")
        # found by digest, so that the time says nothing about how much of a key was right
        tenant = self._by_digest.get(_digest(key.strip()))
        if tenant is None:
            raise NotAuthenticated("this key is not known here")
        return tenant


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key(key: str) -> str:
    if len(key) < _MIN_KEY_CHARS:
        raise ConfigError(f"a key needs at least {_MIN_KEY_CHARS} characters, one has {len(key)}")
    return key


def _quota(words: list[str], place: str) -> Quota:
    try:
        return Quota().with_words(words)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}") from error


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a tenant's name is letters, digits, `_.-`, at most 64, got {name!r}")
    return name
