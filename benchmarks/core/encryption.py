"""What TLS costs between a gateway and a core: the same core with and without it, in turns."""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.core.speculation import geometric_interval
from benchmarks.report.rounds import spread
from gateway.reporting.measured import Spread
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import AddRequest, Knobs, ModelInfo, SamplingParams, SequenceOutput
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame, KVIdentity, TransferredBlock
from inference_core.transport.certificates import make_certificates
from inference_core.transport.remote_prefill import FRAME_BYTES
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener
from inference_core.transport.tls import CertificateFolder, Plain, Tls

Progress = Callable[[str, float], None]
_STREAMS, _TOKENS, _FRAMES, _CONNECTIONS = 16, 400, 40, 20
_BLOCK_BYTES = 256 << 10


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity without and with TLS, medians and extremes of the rounds; `ratio`: with over without, the geometric
    mean of the pairs with its 95% interval."""

    plain: Spread
    tls: Spread
    ratio: Spread


class _InstantCore:
    """Draws a token for every request at every step and has every block, so that only the way is measured."""

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
        self._left: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def add(self, request: AddRequest) -> None:
        self._left[request.request_id] = request.sampling.max_tokens

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        self._left.pop(request_id, None)
        return []

    def step(self) -> list[SequenceOutput]:
        outputs = []
        for request_id, left in list(self._left.items()):
            outputs.append(SequenceOutput(request_id=request_id, index=0, token_ids=[left]))
            self._left[request_id] = left - 1
            if left == 1:
                outputs[-1].finish_reason = "length"
                del self._left[request_id]
        return outputs

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        return BlockFrame(kv=self._kv, first=first, parent=b"", blocks=self._blocks)

    def close(self) -> None:
        """Has nothing open."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"a core without {name}")


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


async def _started(tls: Tls, stack: contextlib.AsyncExitStack) -> tuple[TcpListener, TcpCoreClient]:
    listener = TcpListener("127.0.0.1", b"secret", tls=tls)
    server = CoreServer(_InstantCore, listener)
    await server.start()
    stack.push_async_callback(server.stop)
    client = TcpCoreClient(listener.address, tls=tls)
    await client.start()
    stack.push_async_callback(client.close)
    return listener, client


async def _measured(ends: tuple[TcpListener, TcpCoreClient], tls: Tls) -> dict[str, float]:
    listener, client = ends

    async def stream(number: int) -> None:
        sampling = SamplingParams(max_tokens=_TOKENS, temperature=0.0)
        request = AddRequest(request_id=f"r{number}", model="m", prompt_token_ids=[1] * 64, sampling=sampling)
        async for _ in client.generate(request):
            pass

    async def tokens() -> None:
        await asyncio.gather(*map(stream, range(_STREAMS)))

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
        ("token", _STREAMS * _TOKENS, tokens),
        (f"{FRAME_BYTES >> 20} MiB of blocks", _FRAMES, blocks),
        ("connection", _CONNECTIONS, connections),
    ):
        began, cpu = time.perf_counter(), time.process_time()
        await work()
        found[name] = (time.perf_counter() - began) / many
        found[f"{name}, CPU"] = (time.process_time() - cpu) / many
    return found


def _cost(plain: list[float], tls: list[float]) -> Cost:
    without, having = spread(plain), spread(tls)
    assert without is not None
    assert having is not None
    return Cost(plain=without, tls=having, ratio=geometric_interval([t / p for t, p in zip(tls, plain, strict=True)]))
