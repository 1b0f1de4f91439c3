"""ZeroMQ CURVE with one key pair that everybody shares: who has its secret half is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from zmq.auth.thread import ThreadAuthenticator

from hypic_sdk.transport.peer_key import PeerKey

if TYPE_CHECKING:
    import zmq


@final
class CurveGuard:
    """Secures the sockets of one context, and answers for it who is let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: PeerKey) -> None:
        self._key = key
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer of this public key is let in (the authenticator asks)."""
        return key == self._key.public

    def secure(self, socket: zmq.Socket[bytes], *, is_server: bool) -> None:
        """Before it binds or connects."""
        socket.curve_secretkey, socket.curve_publickey = self._key.secret, self._key.public
        if is_server:
            socket.curve_server = True
        else:
            socket.curve_serverkey = self._key.public

    def close(self) -> None:
        """Let in nobody any more; before the context ends."""
        self._authenticator.stop()
