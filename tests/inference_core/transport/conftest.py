"""Clients of all transports, each with the core it speaks to."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import CoreGoneError
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.transport.certificates import make_certificates
from inference_core.transport.core_thread import ThreadCoreClient
from inference_core.transport.listener import Listener, UnixListener
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener
from inference_core.transport.tls import CertificateFolder, Plain, Tls
from inference_core.transport.unix_socket import SocketCoreClient, StreamCoreClient
from tests.ports import held_port


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `aio certificates` makes it; not to be changed."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(params=["thread", "socket", "tcp", "tls"])
async def connect(
    request: pytest.FixtureRequest, tmp_path: Path, certificates: Path
) -> AsyncIterator[Callable[..., Any]]:
    """`await connect(core_factory)` gives a started client, and `connect.restart(...)` one whose core was reborn."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect_thread(core_factory: Any, **options: Any) -> ThreadCoreClient:
            client = ThreadCoreClient(core_factory, **options)
            stack.push_async_callback(client.close)
            await client.start()
            return client

        listener: Listener = UnixListener(tmp_path / "core.sock")
        tls: Tls = CertificateFolder(certificates) if request.param == "tls" else Plain.ON_LOOPBACK
        if request.param in ("tcp", "tls"):
            held = stack.enter_context(held_port())
            listener = TcpListener("127.0.0.1", b"secret", held.getsockname()[1], tls=tls)

        async def connect_served(core_factory: Any, **options: Any) -> StreamCoreClient:
            await revive(core_factory, **options)
            client = (
                TcpCoreClient(listener.address, tls=tls)
                if isinstance(listener, TcpListener)
                else SocketCoreClient(str(listener))
            )
            stack.push_async_callback(client.close)
            await client.start()
            return client

        async def revive(core_factory: Any, **options: Any) -> None:
            """Put a new server where the old one was."""
            server = CoreServer(core_factory, listener, **options)
            stack.push_async_callback(stop, server)
            await server.start()

        async def stop(server: CoreServer) -> None:
            with contextlib.suppress(CoreGoneError):
                await server.stop()

        async def nothing(core_factory: Any) -> None:
            """A thread's core is made by the client itself."""

        if request.param == "thread":
            connect_thread.revive = nothing  # type: ignore[attr-defined]
            yield connect_thread
        else:
            connect_served.revive = revive  # type: ignore[attr-defined]
            yield connect_served


@pytest.fixture(scope="session")
def ask() -> Callable[..., AddRequest]:
    def build(request_id: str = "r", prompt: Any = (1, 2, 3), *, tokens: int = 8, **fields: Any) -> AddRequest:
        return AddRequest(
            request_id=request_id,
            model="m",
            prompt_token_ids=list(prompt),
            sampling=SamplingParams(max_tokens=tokens, temperature=0),
            **fields,
        )

    return build
