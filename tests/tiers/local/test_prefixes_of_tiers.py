"""A prefix of the catalogue is found by the first chat that begins with it, on every tier of its model (SPEC KV-06)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from inference_core.engine.core import Core
from inference_core.errors import CoreGoneError
from inference_core.loading.prepare_core import pin_prefixes, prefix_tokens
from inference_core.model_spec import ModelSpec, PrefixMessage, PrefixSpec
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import HashModelRunner
from tests.polling import eventually
from tests.tiers.test_tier_contract import MAX_CONTEXT, SLAB_BYTES, SLABS
from tests.tiers.tier_world import chat, collect, local_tier, tier_spec
from tiers.catalog.load import load_catalog
from tiers.conversation import Turn
from tiers.tier import GenerationRequest

TURNS = (
    ("system", "You sort letters to a shop by what they are about. Answer with one word. " * 3),
    ("user", "Where is my parcel?"),
    ("assistant", "delivery"),
    ("user", "I want my money back."),
    ("assistant", "refund"),
)
EXAMPLES = [PrefixMessage(role=role, content=content) for role, content in TURNS]


@asynccontextmanager
async def core_with(tokenizer: Tokenizer, *prefixes: PrefixSpec) -> AsyncIterator[ThreadCoreClient]:
    memory = bytearray(SLABS * SLAB_BYTES)
    runner = HashModelRunner("m", memory, SLAB_BYTES, vocab_size=tokenizer.vocab_size, max_context=MAX_CONTEXT)
    model = ModelSpec(name="m", path=load_catalog("laptop").core.models[0].path, compute="bfloat16")

    def load() -> Core:
        core = Core({"m": runner}, arena_bytes=len(memory), slab_bytes=SLAB_BYTES, seed=0)
        pin_prefixes(core, [model], prefixes)
        return core

    client = ThreadCoreClient(load)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def all_ready(core: ThreadCoreClient) -> bool:
    return all(prefix.ready for model in (await core.stats()).models for prefix in model.prefixes)


def letter(text: str, salt: str) -> GenerationRequest:
    messages = [Turn.of(role, content) for role, content in (*TURNS, ("user", text))]
    return msgspec.structs.replace(chat(), messages=messages, salt=salt)


async def test_the_first_chat_of_every_tenant_finds_a_public_prefix(tokenizer: Tokenizer) -> None:
    prefix_length = len(prefix_tokens(tokenizer, EXAMPLES)) // 16 * 16
    async with core_with(tokenizer, PrefixSpec(name="letters", messages=EXAMPLES, public=True)) as core:
        await eventually(lambda: all_ready(core))
        plain = local_tier(tier_spec(), core, tokenizer)
        thinking = local_tier(tier_spec(load_catalog("laptop").tier(4).policy), core, tokenizer)
        for tier, tenant in ((plain, "a"), (thinking, "b")):
            await tier.start()
            _, usage = await collect(tier, letter("My lamp is broken.", tenant))
            assert usage.cached_tokens >= prefix_length > 64
            await tier.close()


async def test_a_private_prefix_is_for_its_tenant_and_its_models(tokenizer: Tokenizer) -> None:
    own = PrefixSpec(name="letters", messages=EXAMPLES, tenant="a")
    elsewhere = PrefixSpec(name="other", messages=EXAMPLES[:1], models=["another"], public=True)
    async with core_with(tokenizer, own, elsewhere) as core:
        await eventually(lambda: all_ready(core))
        tier = local_tier(tier_spec(), core, tokenizer)
        await tier.start()
        cached = [(await collect(tier, letter("Hm?", tenant)))[1].cached_tokens for tenant in ("b", "a")]
        assert cached == [0, len(prefix_tokens(tokenizer, EXAMPLES)) // 16 * 16]
        await tier.close()


def test_the_tokens_of_a_prefix_are_the_beginning_of_every_chat_that_goes_on_from_it(tokenizer: Tokenizer) -> None:
    tokens = prefix_tokens(tokenizer, EXAMPLES)
    turns = [{"role": role, "content": content} for role, content in TURNS]
    for text in ("", "\n\n", "Where?", "7", "<|im_end|>"):
        prompt = tokenizer.encode_chat([*turns, {"role": "user", "content": text}])
        # A turn that begins with a line break may merge with what the template writes before it.
        assert prompt[: len(tokens) - 1] == tokens[:-1]


async def test_a_prefix_that_cannot_be_pinned_stops_the_start_with_the_reason(tokenizer: Tokenizer) -> None:
    long = PrefixSpec(name="long", messages=[PrefixMessage(role="system", content="word " * 600)], public=True)
    with pytest.raises(CoreGoneError, match=r"prefix 'long' has .* tokens, which leave nothing of the context of 512"):
        async with core_with(tokenizer, long):
            pass
