"""Who may join workers of several hosts: a shared key, and addresses that are not public."""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from hypic_sdk.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PeerKey:
    """The CURVE key pair that all workers share: who has the secret half is one of them."""

    secret: bytes = field(repr=False)  # 40 characters of Z85
    public: bytes

    @classmethod
    def new(cls) -> PeerKey:
        """A key that nobody has."""
        public, secret = zmq.curve_keypair()
        return cls(secret, public)

    @classmethod
    def from_file(cls, path: Path) -> PeerKey:
        """Read what `write` wrote.

        Raises:
            ConfigError: no such file, readable by others, or no key.
        """
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            secret = path.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"no key of workers at {path}: {error}") from error
        if mode & 0o077:
            raise ConfigError(f"{path} can be read by others (mode {mode:o}): chmod 600 {path}")
        try:
            return cls(secret, zmq.curve_public(secret))
        except (zmq.ZMQError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} holds no key of workers: 40 characters of Z85") from error

    def write(self, path: Path) -> None:
        """Write the secret into a new file, mode 0600.  Raises ConfigError: it exists."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise ConfigError(f"no key can be written to {path}: {error}") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.secret + b"\n")


def check_private(host: str, *, may_be_public: bool = False) -> str:
    """The address, if workers may listen there.

    Links between workers carry entries in the clear: their network must be the workers' own.

    Raises:
        ConfigError: not an IP address, every address of the machine, or a public one.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is not an IP address: name that of an interface") from error
    if address.is_unspecified:
        raise ConfigError(f"{host} is every interface of this machine: name one")
    if not address.is_private and not may_be_public:
        raise ConfigError(
            f"{host} is a public address, and entries go between workers in the clear: name one "
            "of a private network, or allow this one explicitly"
        )
    return host
