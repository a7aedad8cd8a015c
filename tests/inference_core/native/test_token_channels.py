"""Tokens that leave in the middle of a native call: each exactly once and in order, whatever their reader does."""

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_core.engine.core import Core
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput, TokenLogprob
from inference_core.protocol.token_channel import SharedCount, TokenChannel, output_head
from inference_core.transport.framing import FrameReader, FrameWriter
from tests.examples import examples
from tests.inference_core.tiny_gguf import VOCAB, decoder_weights, write_gguf

pytestmark = [
    pytest.mark.properties,
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
    pytest.mark.skipif(sys.platform != "linux", reason="tokens leave early on Linux alone"),
]

NOTHING = FrameWriter().frame([])
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.9]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logprobs=st.sampled_from([None, 0, 3, 20]),
    max_tokens=st.integers(1, 40),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
    seed=st.integers(0, 9),
)
# The prompt, the sampling, which of the readers it has, and before which step of the core it is aborted.
requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
        samplings,
        st.integers(0, 2),
        st.none() | st.integers(1, 12),
    ),
    min_size=1,
    max_size=5,
)


class Reader:
    """The two ends of a channel, which takes about three kilobytes of unread bytes."""

    def __init__(self) -> None:
        self._end, self._other = socket.socketpair()
        self._other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.queued, self.written = SharedCount(), SharedCount()
        self.channel = TokenChannel(self._other.fileno(), self.queued, self.written)
        self._frames = FrameReader(list[SequenceOutput])
        self.outputs: list[SequenceOutput] = []
        for end in (self._end, self._other):
            end.setblocking(False)

    def behave(self, how: str) -> None:
        """ "held": earlier outputs are still to be written; "full": the socket takes nothing until it is read."""
        if how == "held":
            self.queued.value += 1
        else:
            self.written.value = self.queued.value
        if how == "full":
            with suppress(BlockingIOError):
                while True:
                    self._other.send(NOTHING)

    def read(self) -> list[SequenceOutput]:
        """Read all that has come."""
        came: list[SequenceOutput] = []
        with suppress(BlockingIOError):
            while True:
                for outputs in self._frames.feed(self._end.recv(1 << 16)):
                    came += outputs
        return came

    def close(self) -> None:
        self._end.close()
        self._other.close()


class Readers:
    """Routes of requests "REQUEST:READER" to two readers, who know them as "REQUEST"; a third one has no channel."""

    def __init__(self) -> None:
        self.both = [Reader(), Reader()]

    def route(self, request_id: str) -> tuple[TokenChannel, str] | None:
        name, _, reader = request_id.partition(":")
        return (self.both[int(reader)].channel, name) if reader in ("0", "1") else None


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", decoder_weights(seed=2))


def core_of(path: Path, steps: int) -> Core:
    """A core of at most `steps` decode steps in a call, which has learned what a step takes."""
    spec = ModelSpec(name="m", path=str(path), compute="int4-int8", max_context=64)
    core = load_core(CoreSpec(models=[spec], arena_bytes=4 << 20, slab_bytes=1 << 18, threads=2), path.parent)
    core.set_knobs({"decode_steps": steps, "itl_objective_ms": 60_000.0, "prefix_caching": False})
    core.add(request_of("warm:2", [1], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)))
    while core.has_work:
        core.step()
    return core


def request_of(name: str, prompt: list[int], sampling: SamplingParams) -> AddRequest:
    return AddRequest(request_id=name, model="m", prompt_token_ids=prompt, sampling=sampling)


@pytest.fixture
def cores(path: Path) -> list[Core]:
    """One of single steps, and one of several."""
    return [core_of(path, steps) for steps in (1, 5)]


@pytest.fixture
def readers() -> Iterator[Readers]:
    both = Readers()
    yield both
    for reader in both.both:
        reader.close()


class Answer:
    """What the reader of a request has got."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.last: SequenceOutput | None = None
        self.sizes: list[int] = []

    def take(self, output: SequenceOutput) -> None:
        assert self.last is None
        self.tokens += output.token_ids
        self.logprobs += output.logprobs or []
        self.sizes.append(len(output.token_ids))
        if output.finish_reason is not None:
            self.last = output


def whole(core: Core, prompt: list[int], sampling: SamplingParams) -> Answer:
    """The answer to one request alone, step by step."""
    answer = Answer()
    core.add(request_of("alone:2", prompt, sampling))
    while core.has_work:
        for output in core.step():
            answer.take(output)
    return answer


@given(
    asked=requests,
    behaviours=st.lists(st.sampled_from(["reads", "held", "full"]), min_size=1, max_size=6),
    guard=st.sampled_from([0, 16]),
)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_token_comes_once_and_in_order(
    cores: list[Core],
    readers: Readers,
    asked: list[tuple[list[int], SamplingParams, int, int | None]],
    behaviours: list[str],
    guard: int,
) -> None:
    single, several = cores
    for core in cores:
        core.set_knobs({"repetition_guard": guard})
    several.set_routes(readers)
    answers = {f"{number}:{reader}": Answer() for number, (_, _, reader, _) in enumerate(asked)}
    for number, (prompt, sampling, reader, _) in enumerate(asked):
        several.add(request_of(f"{number}:{reader}", prompt, sampling))
    step = 0
    while several.has_work:
        step += 1
        outputs: list[SequenceOutput] = []
        for number, (_, _, reader, aborted) in enumerate(asked):
            if aborted == step:
                outputs += several.abort(f"{number}:{reader}", 0)
        for reader in readers.both:
            reader.behave(behaviours[step % len(behaviours)])
        outputs += several.step()
        several.check_integrity()
        for number, reader in enumerate(readers.both):
            for output in reader.read():
                answers[f"{output.request_id}:{number}"].take(output)
        for output in outputs:
            answers[output.request_id].take(output)

    assert several.stats().models[0].blocks_in_use == 0
    for (prompt, sampling, _, _), got in zip(asked, answers.values(), strict=True):
        expected = whole(single, prompt, sampling)
        assert got.last is not None
        assert expected.last is not None
        if got.last.finish_reason == "abort":
            assert got.tokens == expected.tokens[: got.last.completion_tokens]
            assert got.logprobs == expected.logprobs[: len(got.logprobs)]
            continue
        assert (got.tokens, got.logprobs) == (expected.tokens, expected.logprobs)
        got.last.request_id, got.last.token_ids = expected.last.request_id, expected.last.token_ids
        got.last.logprobs, got.last.times = expected.last.logprobs, expected.last.times
        assert got.last == expected.last


def answer_of(core: Core, readers: Readers, behaviour: str) -> Answer:
    """The answer to a request of the first reader."""
    core.set_routes(readers)
    answer = Answer()
    sampling = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)
    core.add(request_of("a:0", [1, 2], sampling))
    while core.has_work:
        readers.both[0].behave(behaviour)
        outputs = core.step()
        for output in [*readers.both[0].read(), *outputs]:
            answer.take(output)
    return answer


def test_tokens_leave_one_by_one(cores: list[Core], readers: Readers) -> None:
    before = cores[1].stats().steps

    answer = answer_of(cores[1], readers, "reads")

    assert answer.sizes == [1] * 21
    assert cores[1].stats().steps - before == 21


@pytest.mark.parametrize("behaviour", ["held", "full"])
def test_what_cannot_leave_comes_at_the_end_of_the_call(cores: list[Core], readers: Readers, behaviour: str) -> None:
    assert answer_of(cores[1], readers, behaviour).sizes == [1, 5, 5, 5, 5]


def test_a_reader_that_is_gone_costs_nothing_but_its_tokens(cores: list[Core], readers: Readers) -> None:
    cores[1].set_routes(readers)
    sampling = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)
    cores[1].add(request_of("a:0", [1, 2], sampling))
    cores[1].add(request_of("b:1", [1, 2], sampling))
    readers.both[0].close()

    there: list[int] = []
    while cores[1].has_work:
        outputs = cores[1].step()
        there += [t for o in readers.both[1].read() for t in o.token_ids]
        there += [t for o in outputs if o.request_id == "b:1" for t in o.token_ids]

    assert there == whole(cores[0], [1, 2], sampling).tokens


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_head_and_a_token_are_an_output(logprobs: bool) -> None:
    head = output_head("r", 2, 300, logprobs=logprobs)
    body = b"\x91" + head + b"\x91\x05" + (b"\xa8logprobs\x91\x93\x05\xcb" + bytes(8) + b"\x90" if logprobs else b"")

    ((output,),) = FrameReader(list[SequenceOutput]).feed(len(body).to_bytes(4, "big") + body)

    expected = [TokenLogprob(5, 0.0, [])] if logprobs else None
    assert output == SequenceOutput(request_id="r", index=2, token_ids=[5], logprobs=expected, cached_tokens=300)
