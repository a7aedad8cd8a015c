"""What handing a prompt's blocks to another core takes, compared with computing them there (SPEC BS-08)."""

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.report.measured import Spread
from benchmarks.report.rounds import spread
from inference_core.core import Core
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.transport.remote_prefill import transfer_prefill
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener

Progress = Callable[[str, float], None]


class HandoverTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Of prompts of `prompt_tokens`, of which `handed_tokens` were handed over in `num_bytes`: seconds, medians and
    extremes of the rounds.

    `prefill`: computing the blocks at the source; `copy`: bringing them to the target by TCP on this machine; of that
    `export` and `take` kept the source's and the target's core from their steps. `rest`: from then to the target's
    first token; `in_place`: to the first token of a prompt that the target computes itself.
    """

    prompt_tokens: int
    handed_tokens: int
    num_bytes: int
    prefill: Spread
    copy: Spread
    export: Spread
    take: Spread
    rest: Spread
    in_place: Spread

    @property
    def bytes_per_token(self) -> float:
        """Of content."""
        return self.num_bytes / self.handed_tokens

    @property
    def break_even_bytes_per_second(self) -> float:
        """At which sending the blocks takes as long as computing them; a slower link costs more than it spares."""
        return self.num_bytes / self.prefill.median


class _TimedCore:
    """A core that counts the seconds of its thread that handing over takes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.exporting = self.taking = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        began = time.perf_counter()
        frame = self._core.export_blocks(chain, first, most_bytes)
        self.exporting += time.perf_counter() - began
        return frame

    def import_blocks(self, chain: BlockChain, frame: BlockFrame | None) -> int:
        began = time.perf_counter()
        held = self._core.import_blocks(chain, frame)
        self.taking += time.perf_counter() - began
        return held


async def bench_handover(
    make_core: Callable[[], Core], model: str, lengths: Sequence[int], *, rounds: int, progress: Progress
) -> list[HandoverTimings]:
    """Two cores of `make_core` behind TCP, idle but for one prompt of random tokens at a time; each length in `rounds`
    rounds after one more."""
    async with contextlib.AsyncExitStack() as stack:
        cores: list[_TimedCore] = []

        def timed() -> _TimedCore:
            cores.append(_TimedCore(make_core()))
            return cores[-1]

        clients = []
        for _ in range(2):
            listener = TcpListener("127.0.0.1", secrets.token_bytes(32))
            server = CoreServer(timed, listener)
            await server.start()
            stack.push_async_callback(server.stop)
            client = TcpCoreClient(listener.address)
            stack.push_async_callback(client.close)
            await client.start()
            clients.append(client)
        figures = []
        for place, length in enumerate(lengths):
            measured = []
            for number in range(rounds + 1):
                measured.append(await _round(cores, clients, model, length, number))
                progress(f"{length} tokens", (place + (number + 1) / (rounds + 1)) / len(lengths))
            figures.append(_figures(length, measured[1:]))
        return figures


class _Round(msgspec.Struct, frozen=True):
    handed_tokens: int
    num_bytes: int
    prefill: float
    copy: float
    export: float
    take: float
    rest: float
    in_place: float


async def _round(cores: list[_TimedCore], clients: list[TcpCoreClient], model: str, length: int, number: int) -> _Round:
    (source_core, target_core), (source, target) = cores, clients
    handed, in_place = (_request(model, length, f"{length}-{number}-{which}") for which in ("handed", "in place"))
    exporting, taking = source_core.exporting, target_core.taking
    done = await transfer_prefill(handed, source, target)
    return _Round(
        done.tokens,
        done.num_bytes,
        done.prefill_seconds,
        done.copy_seconds,
        source_core.exporting - exporting,
        target_core.taking - taking,
        await _first_token(target, handed),
        await _first_token(target, in_place),
    )


def _request(model: str, length: int, name: str) -> AddRequest:
    """A prompt that no other shares a block with."""
    return AddRequest(
        request_id=name,
        model=model,
        prompt_token_ids=random.Random(name).choices(range(1000, 20_000), k=length),
        sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
    )


async def _first_token(client: TcpCoreClient, request: AddRequest) -> float:
    began = time.perf_counter()
    async for output in client.generate(request):
        assert output.error is None, output.error
    return time.perf_counter() - began


def _figures(length: int, rounds: list[_Round]) -> HandoverTimings:
    def of(name: str) -> Spread:
        found = spread([getattr(one, name) for one in rounds])
        assert found is not None
        return found

    return HandoverTimings(
        prompt_tokens=length,
        handed_tokens=rounds[0].handed_tokens,
        num_bytes=rounds[0].num_bytes,
        **{name: of(name) for name in ("prefill", "copy", "export", "take", "rest", "in_place")},
    )
