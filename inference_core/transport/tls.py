"""Which connections between cores and gateways are encrypted, the certificates of both ends, and the connections.

TLS 1.3 only, mutual: each end presents a certificate that the deployment's own authority signed, and that bears the
fixed name `aio-core`. Certificates are made before addresses are known (those of pods change with every start), so the
name says what may speak to cores, instead of where it is; other certificates of the same authority are refused.

A connection is over a byte stream of the event loop, the same on asyncio and uvloop. It stands instead of the loop's
own, because asyncio closes a failed handshake without the alert that says why, and counts what a peer left unread only
in part.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import ssl
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

from inference_core.errors import CoreTlsError

log = logging.getLogger(__name__)

CERTIFICATE_NAME = "aio-core"
"""The subject alternative name (DNS) that the certificates of both ends have."""
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
"""The files of a folder: as Kubernetes and cert-manager name those of a TLS secret."""
EXPIRY_WARNING_SECONDS = 30 * 86_400


class Plain(Enum):
    """Where connections may be without TLS."""

    ON_LOOPBACK = "on loopback"
    ANYWHERE = "anywhere"


class CertificateFolder:
    """The authority's certificate, this end's certificate and its key, in `folder`.

    The files are read again once they change; connections that are open stay. Files that do not fit together, as in the
    middle of a renewal, are logged, and the earlier ones used. Raises `CoreTlsError` if the first ones cannot be used.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._state = self._current_state()
        self._server, self._client = self._read()

    def __str__(self) -> str:
        return str(self._folder)

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a listening end, of the present files."""
        self._follow()
        return self._server

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a connecting end, of the present files."""
        self._follow()
        return self._client

    def _follow(self) -> None:
        state = self._current_state()
        if state == self._state:
            return
        self._state = state
        try:
            self._server, self._client = self._read()
        except CoreTlsError as error:
            log.warning("%s; the certificates read before are used", error)
        else:
            log.info("read the changed certificates in %s", self)

    def _current_state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what changes when a file is written or replaced, also through Kubernetes' links."""
        return tuple(_file_state(self._folder / name) for name in (AUTHORITY, CERTIFICATE, KEY))

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        try:
            server, client = (self._context(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
            _shake_hands(server, client)
        except (OSError, ValueError) as error:
            raise CoreTlsError(
                f"the certificates in {self} cannot be used: {reason_of(error)}. The folder needs {AUTHORITY}, "
                f"{CERTIFICATE}, signed by it for the name {CERTIFICATE_NAME}, and {KEY}; `aio certificates {self}` "
                "makes them"
            ) from error
        return server, client

    def _context(self, kind: int) -> ssl.SSLContext:
        context = ssl.SSLContext(kind)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.hostname_checks_common_name = False
        context.load_verify_locations(_existing(self._folder / AUTHORITY))
        # The empty password: a key that has one is refused, instead of asking for it on the terminal.
        context.load_cert_chain(_existing(self._folder / CERTIFICATE), _existing(self._folder / KEY), password="")
        if kind == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no session is resumed: every connection presents a certificate that is valid now
        return context


Tls = CertificateFolder | Plain


def tls_of(setting: str) -> Tls:
    """Return what `AIO_CORE_TLS` means: a folder, `off`, or empty. Raises `CoreTlsError`."""
    if not setting:
        return Plain.ON_LOOPBACK
    return Plain.ANYWHERE if setting == "off" else CertificateFolder(setting)


def require_protection(tls: Tls, host: str) -> None:
    """Raises `CoreTlsError` where connections of `host` could be read by others and are not encrypted."""
    if tls is Plain.ON_LOOPBACK and not _is_loopback(host):
        raise CoreTlsError(
            f"connections at {host} leave this machine, and nothing encrypts them. Make certificates with `aio "
            "certificates FOLDER`, copy them to every machine of the deployment and set AIO_CORE_TLS=FOLDER; or set "
            "AIO_CORE_TLS=off where the network itself encrypts, as a service mesh does"
        )


def check_peer(certificate: Mapping[str, Any], peer: str) -> None:
    """Log a certificate of the other end that expires soon. Raises `ssl.SSLCertVerificationError` unless it bears
    `CERTIFICATE_NAME`: the ssl module checks the names of listening ends only."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    if CERTIFICATE_NAME not in names:
        raise ssl.SSLCertVerificationError(f"its certificate is for {', '.join(names)}, not for {CERTIFICATE_NAME}")
    left = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()
    if left < EXPIRY_WARNING_SECONDS:
        log.warning("the certificate of %s expires in %.0f days; renew it with `aio certificates`", peer, left / 86_400)


_ALERTS = {
    "UNKNOWN_CA": "it does not trust the authority of our certificate",
    "CERTIFICATE_REQUIRED": "it requires a certificate, and got none",
    "CERTIFICATE_EXPIRED": "it refuses our certificate, which has expired",
    "BAD_CERTIFICATE": "it refuses our certificate",
    "CERTIFICATE_UNKNOWN": "it refuses our certificate",
    "UNSUPPORTED_CERTIFICATE": "it refuses our certificate's purpose",
}
_ERRORS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it presents no certificate",
    "KEY_VALUES_MISMATCH": f"{KEY} is not the key of {CERTIFICATE}",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
}


# OpenSSL's numbers of the ways in which a chain does not end at a trusted certificate.
_ANOTHER_AUTHORITY = frozenset({18, 19, 20, 21})


def reason_of(error: Exception) -> str:
    """Return why TLS failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if getattr(error, "verify_code", 0) in _ANOTHER_AUTHORITY:
            return "another authority signed its certificate"
        message = getattr(error, "verify_message", "")
        return f"its certificate is refused: {message}" if message else str(error.args[-1])
    reason = getattr(error, "reason", None) or ""
    for name, words in _ALERTS.items():
        if reason.endswith(f"ALERT_{name}"):
            return words
    return _ERRORS.get(reason) or (reason.replace("_", " ").lower() if reason else str(error))


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _existing(path: Path) -> Path:
    """Return the path of a file that can be read; the ssl module's errors name no file. Raises OSError."""
    with path.open("rb"):
        return path


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Let a folder's own certificate connect to itself, so that one that the other end would refuse is found here.

    Raises ssl.SSLError.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=CERTIFICATE_NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        end = ends.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            ends.append(end)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_RECORD_BYTES = 16 << 10
"""The most that a record holds, and so a read returns."""
_WRITE_BYTES = 256 << 10
"""Bytes that are encrypted at once: a frame is not held as a whole in yet another copy."""


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of the stream's transport, and the transport of `protocol`, which starts after the handshake.

    If TLS fails, also before `connection_made`, `protocol.connection_lost` gets a `CoreTlsError` with the reason. The
    caller bounds the time of the handshake.
    """

    def __init__(self, context: ssl.SSLContext, protocol: asyncio.Protocol, *, server_side: bool) -> None:
        super().__init__()
        self._protocol: asyncio.BaseProtocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server_side else CERTIFICATE_NAME
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._established = self._closing = False
        self._error: CoreTlsError | None = None

    # The protocol of the byte stream.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._stream = cast(asyncio.Transport, transport)
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._incoming.write(data)
        self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._protocol.connection_lost(self._error or error)

    def _advance(self) -> None:
        """Shake hands, then pass on all that has arrived."""
        received: list[bytes] = []
        error: ssl.SSLError | None = None
        try:
            if not self._established:
                self._shake_hands()
            while not self._closing and (self._incoming.pending or self._tls.pending()):
                if data := self._tls.read(_RECORD_BYTES):
                    received.append(data)
                else:
                    self.close()  # the peer sends nothing more
            self._flush()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:
            self.close()
        except ssl.SSLError as caught:
            error = caught
        if received:
            cast(asyncio.Protocol, self._protocol).data_received(b"".join(received))
        if error is not None:
            self._fail(error)

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        check_peer(self._tls.getpeercert() or {}, str(self.get_extra_info("peername")))
        self._established = True
        self._flush()
        self._protocol.connection_made(self)

    def _fail(self, error: ssl.SSLError) -> None:
        """Close, after the alert that tells the peer why."""
        if self._error is None:
            self._error = CoreTlsError(reason_of(error))
            self._error.__cause__ = error
        self._flush()
        self._closing = True
        self._stream.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._stream.write(self._outgoing.read())

    # The transport of the protocol above.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; ignored once the connection is closing."""
        if self._closing:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left[:_WRITE_BYTES]) :]
                self._flush()
        except ssl.SSLError as error:
            self._fail(error)

    def get_write_buffer_size(self) -> int:
        """Return the encrypted bytes that are not sent yet."""
        return self._stream.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what was written, say that it was all, and close."""
        if self._closing:
            return
        self._closing = True
        if self._established:
            with contextlib.suppress(ssl.SSLError):  # the peer's own farewell is not waited for
                self._tls.unwrap()
            self._flush()
        self._stream.close()

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
        self._closing = True
        self._stream.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let `protocol` receive from now on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`; of the byte stream."""
        return self._stream.get_extra_info(name, default)
