"""A small SMTP server on loopback, with STARTTLS and sign-in, for tests of e-mail."""

import asyncio
import base64
import email.policy
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path

USER, PASSWORD = "aio", "s3cret-of-the-mail-server"


@dataclass
class SmtpServer:
    """`mails` as they were received, with whether the connection was encrypted; `signed_in`: the credentials of each
    sign-in."""

    port: int = 0
    mails: "asyncio.Queue[tuple[EmailMessage, bool]]" = field(default_factory=asyncio.Queue)
    signed_in: list[tuple[str, str]] = field(default_factory=list)


def make_certificate(folder: Path) -> Path:
    """Write a certificate for 127.0.0.1 with its key into one file, which is its own authority."""
    path = folder / "mail.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"), "-days", "2",
            "-subj", "/CN=mail", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_bytes((folder / "key.pem").read_bytes() + (folder / "certificate.pem").read_bytes())
    return path


@asynccontextmanager
async def smtp_server(certificate: Path | None = None) -> AsyncIterator[SmtpServer]:
    """Serve until the block ends; STARTTLS is offered with a `certificate`, and sign-in once encrypted."""
    server, context = SmtpServer(), None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _talk(server, context, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


async def _talk(
    server: SmtpServer, context: ssl.SSLContext | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async def say(line: str) -> None:
        writer.write(f"{line}\r\n".encode())
        await writer.drain()

    encrypted = False
    await say("220 mail ESMTP")
    while line := (await reader.readline()).decode().strip():
        verb, _, rest = line.partition(" ")
        match verb.upper():
            case "EHLO":
                offered = "AUTH PLAIN LOGIN" if encrypted else "STARTTLS" if context is not None else "8BITMIME"
                await say(f"250-mail\r\n250 {offered}")
            case "STARTTLS" if context is not None:
                await say("220 go ahead")
                await writer.start_tls(context)
                encrypted = True
            case "AUTH":
                _, user, password = base64.b64decode(rest.split()[-1]).decode().split("\0")
                server.signed_in.append((user, password))
                await say("235 welcome" if (user, password) == (USER, PASSWORD) else "535 5.7.8 no")
            case "DATA":
                await say("354 go on")
                body = (await reader.readuntil(b"\r\n.\r\n"))[:-3]
                mail = BytesParser(policy=email.policy.default).parsebytes(body)
                assert isinstance(mail, EmailMessage)
                server.mails.put_nowait((mail, encrypted))
                await say("250 taken")
            case "QUIT":
                await say("221 bye")
                return
            case _:
                await say("250 ok")
