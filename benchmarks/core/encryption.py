"""What TLS costs between a gateway and a core: the same core with and without it, in turns."""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.report.measured import Spread
from benchmarks.report.rounds import paired
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import Knobs, ModelInfo, SequenceOutput
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame, KVIdentity, TransferredBlock
from inference_core.transport.certificates import make_certificates
from inference_core.transport.framing import FrameWriter
from inference_core.transport.remote_prefill import FRAME_BYTES
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener
from inference_core.transport.tls import CertificateFolder, Plain, Tls

Progress = Callable[[str, float], None]
_STREAMS, _STEPS, _FRAMES, _CONNECTIONS = 16, 2000, 40, 20
_BLOCK_BYTES = 256 << 10
_NO_BEATS = 86_400.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity without and with TLS, medians and extremes of the rounds; `ratio`: with over without, the geometric
    mean of the pairs with its 95% interval."""

    plain: Spread
    tls: Spread
    ratio: Spread


class _InstantCore:
    """Has every block at once, so that only the way is measured."""

    def __init__(self) -> None:
        layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=16, dtype="float32")
        self._kv = KVIdentity(weights="", compute="", kernels="", layout=layout)
        self._blocks = [
            TransferredBlock.of(b"b" * 16, os.urandom(_BLOCK_BYTES)) for _ in range(FRAME_BYTES // _BLOCK_BYTES)
        ]
        self.model_infos = [
            ModelInfo(name="m", model_path="", max_context=1 << 20, vocab_size=1000, weight_bytes=0, compute="none")
        ]
        self.knobs = {"m": Knobs()}
        self.pause_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return False

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        return BlockFrame(kv=self._kv, first=first, parent=b"", blocks=self._blocks)

    def close(self) -> None:
        """Has nothing open."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a core without {name}")


async def bench_encryption(rounds: int, progress: Progress) -> Mapping[str, Cost]:
    """Seconds of each quantity, after one round that does not count."""
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder))
        kinds: dict[str, Tls] = {"plain": Plain.ON_LOOPBACK, "tls": CertificateFolder(folder)}
        async with contextlib.AsyncExitStack() as stack:
            ends = {kind: await _started(tls, stack) for kind, tls in kinds.items()}
            found: dict[str, dict[str, list[float]]] = {}
            for number in range(rounds + 1):
                order = list(kinds) if number % 2 else list(kinds)[::-1]
                for kind in order:
                    for name, seconds in (await _measured(ends[kind], kinds[kind])).items():
                        if number:
                            found.setdefault(name, {}).setdefault(kind, []).append(seconds)
                progress("plain and TLS", (number + 1) / (rounds + 1))
    return {name: _cost(values["plain"], values["tls"]) for name, values in found.items()}


class _Echo(asyncio.Protocol):
    """The listening end: sends back what arrives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Echoed(asyncio.Protocol):
    """The connecting end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._missing = 0

    async def back(self, frame: bytes) -> None:
        """Send it and return when it has come back."""
        self._missing += len(frame)
        self._whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        await self._whole

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if not self._missing:
            self._whole.set_result(None)

    def close(self) -> None:
        self._transport.close()


async def _started(tls: Tls, stack: contextlib.AsyncExitStack) -> tuple[TcpListener, TcpCoreClient, _Echoed]:
    listener = TcpListener("127.0.0.1", b"secret", tls=tls)
    server = CoreServer(_InstantCore, listener)
    await server.start()
    stack.push_async_callback(server.stop)
    client = TcpCoreClient(listener.address, tls=tls)
    await client.start()
    stack.push_async_callback(client.close)
    echoing = TcpListener("127.0.0.1", b"secret", tls=tls, silent_seconds=_NO_BEATS)
    echoing.bind()
    await echoing.open(_Echo)
    stack.callback(echoing.close)
    echoed = _Echoed()
    await TcpCoreClient(echoing.address, tls=tls, silent_seconds=_NO_BEATS)._reach(echoed)
    stack.callback(echoed.close)
    return listener, client, echoed


async def _measured(ends: tuple[TcpListener, TcpCoreClient, _Echoed], tls: Tls) -> dict[str, float]:
    listener, client, echo = ends

    frame = FrameWriter().frame(
        [SequenceOutput(request_id=f"a-request-of-a-gateway-{n}#{n}", index=0, token_ids=[n]) for n in range(_STREAMS)]
    )

    async def steps() -> None:
        for _ in range(_STEPS):
            await echo.back(frame)

    async def blocks() -> None:
        for _ in range(_FRAMES):
            await client.export_blocks(BlockChain(model="m", token_ids=[1]), 0, FRAME_BYTES)

    async def connections() -> None:
        for _ in range(_CONNECTIONS):
            another = TcpCoreClient(listener.address, tls=tls)
            await another.start()
            await another.close()

    found = {}
    for name, many, work in (
        (f"{_STREAMS} tokens, there and back", _STEPS, steps),
        (f"{FRAME_BYTES >> 20} MiB of blocks", _FRAMES, blocks),
        ("connection", _CONNECTIONS, connections),
    ):
        began, cpu = time.perf_counter(), time.process_time()
        await work()
        found[name] = (time.perf_counter() - began) / many
        found[f"{name}, CPU"] = (time.process_time() - cpu) / many
    return found


def _cost(plain: list[float], tls: list[float]) -> Cost:
    without, having, ratio = paired(plain, tls)
    return Cost(plain=without, tls=having, ratio=ratio)
