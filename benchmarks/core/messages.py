"""The core's messages between two processes: over a Unix socket, as they are sent, and over a ring in shared memory."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Literal, Protocol, cast

import msgspec

from benchmarks.report.measured import Spread
from benchmarks.report.rounds import paired
from inference_core.protocol import AbortRequest, AddRequest, SamplingParams, SequenceOutput, StepTimes
from inference_core.transport.framing import FrameReader, FrameWriter

Kind = Literal["socket", "ring"]
Progress = Callable[[str, float], None]
KINDS: tuple[Kind, ...] = ("socket", "ring")
# Streams whose tokens come in one message, with the tokens of the prompt that is sent for each.
LOADS = ((1, 128), (16, 128), (64, 2048))
RING_BYTES = 1 << 20
_COUNTERS = 16
_CPU = "cpu"


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one quantity over the socket and over the ring, medians and extremes of the rounds; `ratio`: ring over
    socket, the geometric mean of the pairs with its 95% interval."""

    socket: Spread
    ring: Spread
    ratio: Spread


class Ring:
    """Bytes from one writing to one reading process through shared memory; an eventfd wakes the reader.

    `memory`: two counters of 8 bytes, of the bytes written and read since the start, then the bytes. Processors that
    reorder stores of one core, as x86 does not, would need a barrier before the counter is written.
    """

    def __init__(self, memory: memoryview, wake: int) -> None:
        self.wake = wake
        self._counters = memory[:_COUNTERS].cast("Q")
        self._bytes = memory[_COUNTERS:]

    def write(self, frame: bytes) -> None:
        """Append a frame and wake the reader. Raises `BufferError` if there is no room."""
        written, size = self._counters[0], len(self._bytes)
        if len(frame) > size - (written - self._counters[1]):
            raise BufferError(f"a frame of {len(frame)} bytes has no room in a ring of {size}")
        place = written % size
        first = min(len(frame), size - place)
        self._bytes[place : place + first] = frame[:first]
        self._bytes[: len(frame) - first] = frame[first:]
        self._counters[0] = written + len(frame)
        os.eventfd_write(self.wake, 1)

    def read(self) -> bytes:
        """Take all bytes that are there."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        written, read, size = self._counters[0], self._counters[1], len(self._bytes)
        place, count = read % size, written - read
        first = min(count, size - place)
        taken = bytes(self._bytes[place : place + first]) + bytes(self._bytes[: count - first])
        self._counters[1] = written
        return taken

    def close(self) -> None:
        """Let go of the memory."""
        self._counters.release()
        self._bytes.release()


class Link(Protocol):
    """One end of a way between two processes."""

    def send(self, frame: bytes) -> None:
        """Send a frame."""


class RingLink:
    """Two rings; `received` is called on the event loop with what comes."""

    def __init__(
        self, memory: SharedMemory, wakes: tuple[int, int], received: Callable[[bytes], None], end: int
    ) -> None:
        shared = memory.buf
        assert shared is not None  # it is open
        half = len(shared) // 2
        rings = [Ring(shared[:half], wakes[0]), Ring(shared[half : 2 * half], wakes[1])]
        self._out, self._in = rings[end], rings[1 - end]
        self.send = self._out.write
        asyncio.get_running_loop().add_reader(self._in.wake, lambda: received(self._in.read()))

    def close(self) -> None:
        """Stop listening and let go of the memory."""
        asyncio.get_running_loop().remove_reader(self._in.wake)
        self._out.close()
        self._in.close()


class SocketLink(asyncio.Protocol):
    """A connected Unix socket, read and written as the core's client and server do."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self.data_received = received  # type: ignore[method-assign, assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        self._transport.write(frame)


class Asking:
    """The gateway's end: sends a request and waits for the tokens of all streams."""

    def __init__(self) -> None:
        self.link: Link
        self._reader = FrameReader(list[SequenceOutput])
        self._writer = FrameWriter()
        self._answer: asyncio.Future[list[SequenceOutput]]

    def received(self, data: bytes) -> None:
        """Take bytes of the other process."""
        for outputs in self._reader.feed(data):
            self._answer.set_result(outputs)

    async def ask(self, command: AddRequest | AbortRequest) -> list[SequenceOutput]:
        """Send a command; return its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.link.send(self._writer.frame(command))
        return await self._answer


async def bench_messages(rounds: int, messages: int, progress: Progress) -> Mapping[str, Cost]:
    """Seconds from sending a request to having decoded the tokens of a step, and CPU seconds of both processes for it.

    Each round has `messages` of each load over each kind of way, in turns, after one round that does not count.
    """
    found: dict[str, dict[Kind, list[float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        ends = {kind: await stack.enter_async_context(_connected(kind)) for kind in KINDS}
        for number in range(rounds + 1):
            for streams, prompt in LOADS:
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    for name, seconds in (await _measured(ends[kind], streams, prompt, messages)).items():
                        if number:
                            found.setdefault(name, {}).setdefault(kind, []).append(seconds)
            progress("messages", (number + 1) / (rounds + 1))
    return {name: _cost(values["socket"], values["ring"]) for name, values in found.items()}


async def _measured(end: Asking, streams: int, prompt: int, messages: int) -> dict[str, float]:
    command = AddRequest(
        request_id="chatcmpl-0123456789abcdef/tier-1/1234-5#6",
        model="smollm2-int4",
        prompt_token_ids=list(range(prompt)),
        sampling=SamplingParams(),
        n=streams,
    )
    before, cpu, began = await _cpu_of_other(end), time.process_time(), time.perf_counter()
    for _ in range(messages):
        await end.ask(command)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    name = f"{prompt} tokens there, one of {streams} streams back"
    return {
        name: seconds / messages,
        f"{name}, CPU of both": (cpu + await _cpu_of_other(end) - before) / messages,
    }


async def _cpu_of_other(end: Asking) -> float:
    [told] = await end.ask(AbortRequest(request_id=_CPU))
    return told.times.queue_seconds


@contextlib.asynccontextmanager
async def _connected(kind: Kind) -> AsyncIterator[Asking]:
    """The asking end, with a process at the other one."""
    asking = Asking()
    with contextlib.ExitStack() as stack:
        if kind == "socket":
            here, there = socket.socketpair(socket.AF_UNIX)
            stack.callback(there.close)
            _, link = await asyncio.get_running_loop().create_connection(lambda: SocketLink(asking.received), sock=here)
            asking.link, passed, name = link, [there.fileno()], ""
        else:
            memory = SharedMemory(create=True, size=2 * (RING_BYTES + _COUNTERS))
            stack.callback(memory.unlink)
            stack.callback(memory.close)
            wakes = (os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK))
            for wake in wakes:
                stack.callback(os.close, wake)
            ring = RingLink(memory, wakes, asking.received, 0)
            stack.callback(ring.close)
            asking.link, passed, name = ring, list(wakes), memory.name
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.core.messages", kind, name, *map(str, passed), pass_fds=passed
        )
        try:
            yield asking
        finally:
            other.kill()
            await other.wait()
            if kind == "socket":
                here.close()


def _cost(by_socket: list[float], by_ring: list[float]) -> Cost:
    one, other, ratio = paired(by_socket, by_ring)
    return Cost(socket=one, ring=other, ratio=ratio)


class Answering:
    """The core's end: answers a request with a token of each of its streams, and `_CPU` with its own CPU seconds."""

    def __init__(self) -> None:
        self.link: Link
        self._reader = FrameReader(AddRequest | AbortRequest)
        self._writer = FrameWriter()

    def received(self, data: bytes) -> None:
        """Answer the commands in these bytes."""
        for command in self._reader.feed(data):
            self.link.send(self._writer.frame(list(_answers(command))))


def _answers(command: AddRequest | AbortRequest) -> Iterable[SequenceOutput]:
    if isinstance(command, AbortRequest):
        yield SequenceOutput(request_id=_CPU, index=0, token_ids=[], times=StepTimes(queue_seconds=time.process_time()))
        return
    for index in range(command.n):
        yield SequenceOutput(request_id=command.request_id, index=index, token_ids=[index])


async def _answer(kind: str, name: str, passed: list[int]) -> None:
    """Be the other process until it is killed."""
    answering = Answering()
    if kind == "socket":
        _, answering.link = await asyncio.get_running_loop().create_connection(
            lambda: SocketLink(answering.received), sock=socket.socket(fileno=passed[0])
        )
    else:
        memory = SharedMemory(name)
        # The process that made it removes it.
        resource_tracker.unregister(f"/{memory.name}", "shared_memory")
        answering.link = RingLink(memory, (passed[0], passed[1]), answering.received, 1)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_answer(sys.argv[1], sys.argv[2], [int(number) for number in sys.argv[3:]]))
