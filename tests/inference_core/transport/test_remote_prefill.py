"""`transfer_prefill` between cores on threads and behind TCP: what arrives, and that nothing is held for it."""

import asyncio
import contextlib

import msgspec
import pytest

from inference_core.errors import CoreGoneError, InvalidRequestError, KVTransferError
from inference_core.protocol import SamplingParams
from inference_core.protocol.commands import EvidenceRequest
from inference_core.transport import remote_prefill
from inference_core.transport.core_thread import ThreadCoreClient
from inference_core.transport.remote_prefill import chain_of, may_transfer, require_alike, transfer_prefill
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener
from inference_core.transport.tls import CertificateFolder, Plain
from tests.inference_core.hash_model import hash_core

PROMPT = list(range(700))
FULL = 43  # blocks of 16 tokens


class Pair:
    """Two started clients, and how to make more and to end the first one's core."""

    def __init__(self, kind, stack, certificates):
        self.kind, self.stack = kind, stack
        self.tls = CertificateFolder(certificates) if kind == "tls" else Plain.ON_LOOPBACK
        self.servers = []

    async def client(self, name="m"):
        if self.kind == "thread":
            client = ThreadCoreClient(lambda: hash_core(name))
        else:
            listener = TcpListener("127.0.0.1", b"secret", tls=self.tls)
            server = CoreServer(lambda: hash_core(name), listener)
            await server.start()
            self.servers.append(server)
            self.stack.push_async_callback(server.stop)
            client = TcpCoreClient(listener.address, tls=self.tls)
        self.stack.push_async_callback(client.close)
        await client.start()
        return client


@pytest.fixture(params=["thread", "tcp", "tls"])
async def pair(request, certificates):
    async with contextlib.AsyncExitStack() as stack:
        pair = Pair(request.param, stack, certificates)
        pair.source, pair.target = await pair.client(), await pair.client()
        yield pair


@pytest.fixture
def asked(ask):
    return ask(prompt=PROMPT, tokens=5)


async def stats(client):
    return (await client.stats()).models[0]


async def answer(client, asked):
    return [output async for output in client.generate(asked)]


async def test_a_prompt_that_was_handed_over_is_cached_there(pair, asked, monkeypatch):
    monkeypatch.setattr(remote_prefill, "FRAME_BYTES", 10 * 256)

    done = await transfer_prefill(asked, pair.source, pair.target)
    outputs = await answer(pair.target, asked)

    assert (done.tokens, done.computed, done.num_bytes) == (FULL * 16, FULL * 16, FULL * 256)
    assert outputs[-1].cached_tokens == FULL * 16
    truth = [output.token_ids for output in await answer(await pair.client(), asked)]
    assert [output.token_ids for output in outputs] == truth
    assert (await stats(pair.source)).blocks_in_use == (await stats(pair.target)).blocks_in_use == 0


async def test_only_the_blocks_that_lack_travel(pair, asked):
    await answer(pair.target, asked)
    held = await pair.target.import_blocks(chain_of(asked))

    with pytest.raises(KVTransferError, match="evicted"):
        await remote_prefill.copy_blocks(chain_of(asked), pair.source, pair.target, held)
    assert held == FULL
    assert (await stats(pair.source)).handover.out_blocks == 0


async def test_two_at_once_from_one_source_both_arrive(pair, ask):
    lock = asyncio.Lock()
    both = [ask(f"r{token}", prompt=[token, *PROMPT]) for token in (1, 2)]

    done = await asyncio.gather(*(transfer_prefill(one, pair.source, pair.target, copying=lock) for one in both))

    assert [one.tokens for one in done] == [FULL * 16] * 2
    assert [await pair.target.import_blocks(chain_of(one)) for one in both] == [FULL] * 2


async def test_cancellation_frees_the_blocks(pair, asked):
    task = asyncio.create_task(transfer_prefill(asked, pair.source, pair.target))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await stats(pair.source)).blocks_in_use == 0
    assert (await stats(pair.target)).blocks_in_use == 0


async def test_a_source_that_goes_says_so_and_the_target_serves_on(pair, asked):
    await pair.source.close()

    with pytest.raises(CoreGoneError):
        await transfer_prefill(asked, pair.source, pair.target)
    assert (await answer(pair.target, asked))[-1].cached_tokens == 0


async def test_a_prefill_that_is_refused_says_why(pair, ask):
    with pytest.raises(InvalidRequestError, match="full blocks"):
        await pair.source.prefill(ask(prompt=[1, 2, 3]))


async def test_cores_that_differ_are_refused_before_anything_is_computed(pair, asked):
    require_alike("m", pair.source, pair.target)
    other = await pair.client("n")

    with pytest.raises(KVTransferError, match="cannot be transferred") as caught:
        require_alike("m", pair.source, other)
    assert caught.value.reason == "incompatible"


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, True),
        ({"n": 3}, True),
        ({"evidence": EvidenceRequest(tokens=True)}, True),
        ({"evidence": EvidenceRequest(layer=1)}, False),
        ({"evidence": EvidenceRequest(layer=1), "embed": True}, False),
        ({"sampling": SamplingParams(prompt_logprobs=0)}, False),
    ],
)
def test_prompts_that_have_to_be_computed_in_full_are_not_handed_over(ask, fields, may):
    assert may_transfer(msgspec.structs.replace(ask(), **fields)) is may
