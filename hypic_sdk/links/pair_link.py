"""How the two ends of a link meet: the receiver listens, the sender comes with the link's token.

A link is made when it is first needed, and after any failure both ends drop it.  The next one has
another epoch and another token, so no byte of the old one is ever read.  Nothing here waits without
a deadline.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import final

from hypic_sdk.errors import TransferFailed
from hypic_sdk.links.link_address import LinkAddress, PairLink
from hypic_sdk.links.nccl_link import accept_nccl, join_nccl
from hypic_sdk.links.tcp_link import TOKEN_BYTES, TcpLink, accept_tcp, join_tcp
from hypic_sdk.transport.peer_messages import Carrier


@final
class PendingLink:
    """A receiver's end before its sender came."""

    def __init__(
        self, host: str, epoch: int, *, timeout_s: float, carrier: Carrier = Carrier.TCP
    ) -> None:
        """Begin to listen on a free port of `host`.

        Args:
            host: an address of this machine that the sender can reach.
            timeout_s: how long the sender may take to come.
        Raises:
            TransferFailed: not an address of this machine, or no port is left.
        """
        self._timeout_s = timeout_s
        try:
            # only listens: who asks for an entry must not wait for a link to come about
            self._listener = socket.create_server((host, 0), backlog=8)
        except OSError as error:
            raise TransferFailed(f"no link can listen at {host}: {error}") from error
        port, token = int(self._listener.getsockname()[1]), secrets.token_bytes(TOKEN_BYTES)
        self.address = LinkAddress(host, port, epoch, carrier, token)

    def accept(self) -> PairLink:
        """Wait for the sender; once.  Raises TransferFailed: none came in time."""
        try:
            connection = accept_tcp(self._listener, self.address, self._timeout_s)
        finally:
            self.close()
        if self.address.carrier is Carrier.NCCL:
            return accept_nccl(connection, self.address.host)
        return TcpLink(connection)

    def close(self) -> None:
        """Listen no longer; whoever waits for the sender fails."""
        with suppress(OSError):  # wakes who waits; was closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def join(address: LinkAddress, *, timeout_s: float) -> PairLink:
    """Come to a receiver that listens.  Raises TransferFailed: it is not there in time."""
    connection = join_tcp(address, timeout_s)
    if address.carrier is Carrier.NCCL:
        return join_nccl(connection, address.host)
    return TcpLink(connection)
