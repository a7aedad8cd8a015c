"""Attacks on the port of a core with TLS, in its own process: it goes on serving, and strangers learn nothing."""

import contextlib
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inference_core.errors import CoreTlsError
from inference_core.transport import certificates as certificate_maker
from inference_core.transport.certificates import make_certificates
from inference_core.transport.handshake import MOST_NEWCOMERS
from inference_core.transport.tcp import CoreAddress, TcpCoreClient
from inference_core.transport.tls import CERTIFICATE_NAME, CertificateFolder
from tests.inference_core.transport.scripted_core import expected_tokens
from tests.inference_core.transport.tls_core import SECRET
from tests.polling import eventually

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
NUMBER_BYTES = 32  # the first message of the HMAC handshake


class ServedCore:
    """The process, and connections to it."""

    def __init__(self, folder, *seconds):
        self.folder = folder
        command = [sys.executable, "-m", "tests.inference_core.transport.tls_core", str(folder), *seconds]
        paths = [str(ROOT), str(Path(__file__).parent)]
        self.process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.port = int(self.process.stdout.readline())
        self.log = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()

    async def logs(self, line):
        """Wait for a line with this text."""
        await eventually(lambda: any(line in logged for logged in self.log))

    def stop(self):
        """Return what was logged, once it has ended by itself."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        assert self.process.wait(30) == 0
        self._reader.join()
        return "".join(self.log)

    def connection(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def tls(self, context):
        return context.wrap_socket(self.connection(), server_hostname=CERTIFICATE_NAME)

    @property
    def rss_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    async def answers(self, ask):
        """Whether a client with the right certificates and secret gets its tokens."""
        address = CoreAddress(host="127.0.0.1", port=self.port, secret=SECRET, tls=True)
        client = TcpCoreClient(address, tls=CertificateFolder(self.folder))
        await client.start()
        tokens = [token async for output in client.generate(ask()) for token in output.token_ids]
        await client.close()
        return tokens == expected_tokens([1, 2, 3], 0, 8)


@pytest.fixture(scope="module")
def core(certificates):
    """One that logs every refusal, and whose handshakes may take less time."""
    served = ServedCore(certificates, "4", "0")
    yield served
    assert "Traceback" not in served.stop()


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """The folder of another deployment."""
    folder = tmp_path_factory.mktemp("foreign")
    make_certificates(folder)
    return folder


def context(authority, own=None, **limits):
    """A client's context that trusts `authority` and presents the certificate in `own`, if any."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(authority / "ca.crt")
    if own is not None:
        made.load_cert_chain(own / "tls.crt", own / "tls.key")
    for name, value in limits.items():
        setattr(made, name, value)
    return made


def received(connection):
    """What arrives until the other end closes or resets the connection, or sends an alert."""
    got = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := connection.recv(65536):
            got += data
    return got


async def test_a_client_without_a_certificate_is_refused_before_anything_is_asked(core, certificates, ask):
    with core.tls(context(certificates)) as stranger, pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        stranger.recv(1)

    assert await core.answers(ask)
    await core.logs("it presents no certificate")


async def test_a_certificate_of_another_authority_is_refused_with_an_alert(core, certificates, foreign, ask):
    with core.tls(context(certificates, foreign)) as stranger, pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        stranger.recv(1)

    assert await core.answers(ask)
    await core.logs("another authority signed its certificate")


async def test_a_certificate_of_the_authority_for_something_else_is_refused(
    core, certificates, tmp_path, monkeypatch, ask
):
    for part in ("ca.crt", "ca.key"):
        (tmp_path / part).write_bytes((certificates / part).read_bytes())
    other = certificate_maker._CONFIGURATION.replace(f"DNS:{CERTIFICATE_NAME}", "DNS:web.example")
    monkeypatch.setattr(certificate_maker, "_CONFIGURATION", other)
    with pytest.raises(CoreTlsError, match="Hostname mismatch"):
        make_certificates(tmp_path)  # it is of no use here, which is found at once

    with core.tls(context(certificates, tmp_path)) as stranger:
        assert received(stranger) == b""

    assert await core.answers(ask)
    await core.logs("its certificate is for web.example, not for aio-core")


async def test_a_client_with_a_certificate_still_has_to_know_the_secret(core, certificates, ask):
    with core.tls(context(certificates, certificates)) as member:
        assert len(member.recv(NUMBER_BYTES)) == NUMBER_BYTES
        member.sendall(b"\0" * 64)
        assert received(member) == b""

    assert await core.answers(ask)
    await core.logs("it does not know the core's secret")


def test_older_versions_of_tls_are_refused(core, certificates):
    with core.connection() as connection, pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        context(certificates, certificates, maximum_version=ssl.TLSVersion.TLSv1_2).wrap_socket(
            connection, server_hostname=CERTIFICATE_NAME
        )


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHost: core\r\n\r\n", b"n" * 64, b"\x00\x00\x00\x01\x90", b"\x16\x03\x01\xff\xff"]
)
async def test_a_client_that_speaks_no_tls_is_closed_and_learns_nothing(core, sent, ask):
    with core.connection() as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        answer = received(stranger)

    assert len(answer) <= 7  # at most an alert
    assert await core.answers(ask)


async def test_garbage_neither_ends_a_core_nor_makes_it_grow_nor_fills_its_log(certificates, ask):
    """Random bytes, and honest first messages of a handshake with some bytes changed."""
    core = ServedCore(certificates)
    chance = random.Random(23)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(certificates, certificates).wrap_bio(incoming, outgoing, server_hostname=CERTIFICATE_NAME)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    assert await core.answers(ask)
    before = core.rss_bytes

    for number in range(300):
        sent = bytearray(chance.randbytes(chance.randrange(1, 20_000)) if number % 3 == 0 else hello)
        for _ in range(number % 3):
            sent[chance.randrange(len(sent))] = chance.randrange(256)
        with core.connection() as stranger:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
            received(stranger)

    assert await core.answers(ask)
    assert core.rss_bytes - before < 64 << 20
    log = core.stop()
    assert "Traceback" not in log
    assert log.count("refused") < 10


async def test_connections_that_never_finish_their_handshake_are_few_and_block_no_others(core, certificates, ask):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(core.connection()) for _ in range(MOST_NEWCOMERS + 20)]

        assert await core.answers(ask)

        for closed in silent[:20]:
            assert received(closed) == b""
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
        assert await core.answers(ask)
    await core.logs("more recent connections took its place")


async def test_a_handshake_that_stops_ends_with_its_time(core, certificates, ask):
    with core.connection() as slow:
        slow.sendall(b"\x16")
        slow.settimeout(60)

        assert await core.answers(ask)

        assert received(slow) == b""
    assert await core.answers(ask)
