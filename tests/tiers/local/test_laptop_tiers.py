"""The four laptop tiers answering with the real model over one real core."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest
import pytest_asyncio

from inference_core.engine.requests import is_looping
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.model_file import file_fingerprint
from inference_core.loading.load_core import load_core
from inference_core.protocol import SamplingParams
from inference_core.quantization.calibration import prose
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.transport.core_thread import ThreadCoreClient
from tests.tiers.tier_world import chat, collect, local_tier
from tiers.build import build_tiers
from tiers.catalog.load import load_catalog
from tiers.tier import GenerationRequest, Tier

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.models]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def core(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ThreadCoreClient]:
    cache = tmp_path_factory.mktemp("weights")
    client = ThreadCoreClient(lambda: load_core(load_catalog("laptop").core, cache))
    await client.start()
    yield client
    await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiers(core: ThreadCoreClient) -> AsyncIterator[list[Tier]]:
    built = build_tiers(load_catalog("laptop"), {"cpu": core})
    for tier in built:
        await tier.start()
    yield built
    for tier in built:
        await tier.close()


async def test_every_tier_tells_the_content_hash_of_the_file_that_its_core_has_loaded(tiers: list[Tier]) -> None:
    paths = load_catalog("laptop").model_paths
    assert [tier.weights for tier in tiers] == [file_fingerprint(resolve_model_path(paths[t.model])) for t in tiers]


async def prefix_hits(core: ThreadCoreClient, model: str) -> int:
    return next(m.prefix_hit_tokens for m in (await core.stats()).models if m.name == model)


async def generated(core: ThreadCoreClient, model: str) -> int:
    return next(m.generated_tokens for m in (await core.stats()).models if m.name == model)


@pytest.mark.parametrize("number", [1, 2, 4])
async def test_every_tier_knows_the_capital_of_france(tiers: list[Tier], number: int) -> None:
    (answer,), usage = await collect(tiers[number - 1], chat("Name the capital of France.", max_tokens=40))
    assert "Paris" in answer.text
    assert usage.prompt_tokens == tiers[number - 1].count_prompt_tokens(chat("Name the capital of France."))
    tokenizer = load_tokenizer(resolve_model_path(load_catalog("laptop").model_paths[tiers[number - 1].model]))
    read = tokenizer.encode_chat([{"role": "user", "content": "Name the capital of France."}])
    # The instruction to think comes before the question on tier 4.
    assert usage.prompt_tokens == len(read) or number == 4


async def test_tier_3_bills_every_sample_and_says_the_same_when_asked_again(
    core: ThreadCoreClient, tiers: list[Tier]
) -> None:
    before = await generated(core, tiers[2].model)
    request = chat("What is 12 + 30? Reply with just the number.", max_tokens=12)
    (first,), usage = await collect(tiers[2], request)
    sampled = await generated(core, tiers[2].model) - before
    (again,), _ = await collect(tiers[2], request)
    assert first.text == again.text
    # A majority needs three of five samples; those that can no longer change it end early.
    assert sampled >= usage.completion_tokens > 2 * len(first.token_ids) > 0


async def test_tier_4_thinks_within_its_budget_and_answers_on_cached_tokens(
    core: ThreadCoreClient, tiers: list[Tier]
) -> None:
    before = await prefix_hits(core, "smollm2-bf16")
    request = chat("How many legs do three dogs have?", max_tokens=80, reasoning_budget=40)
    (answer,), usage = await collect(tiers[3], request)
    assert answer.reasoning
    assert answer.text
    assert 0 < usage.reasoning_tokens <= 40
    assert usage.reasoning_tokens < usage.completion_tokens <= 80
    # The answer's prefill finds the prompt and the thought, all but the last partial block.
    hits = await prefix_hits(core, "smollm2-bf16") - before
    assert hits >= usage.prompt_tokens + usage.reasoning_tokens - 16


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_client_that_leaves_frees_its_blocks(core: ThreadCoreClient, tiers: list[Tier], number: int) -> None:
    request = chat("Tell me about Rome.", max_tokens=500, n=2, sampling=SamplingParams(temperature=1.0))
    async with aclosing(tiers[number - 1].generate(request)) as deltas:  # type: ignore[type-var]
        await anext(deltas)
    assert [(m.running, m.waiting, m.blocks_in_use) for m in (await core.stats()).models] == [(0, 0, 0)] * 2


# What this model has said, over and over, until its tokens were used up: the same phrase, and one that varies.
LOOPS = {
    "a phrase": "I'm so sorry for your loss. " + "I'm so sorry for your pain. " * 8,
    "a list": "The capital of France is L'Étoile, la Cité, " + "la France, " * 20,
    "a phrase that varies": "".join(
        f"In {subject}, the smallest prime number is often considered to be the smallest prime number that has been "
        "proven to exist, but it's not necessarily the smallest.\n\n"
        for subject in ("mathematics", "computer science", "physics", "number theory")
    ),
}


@pytest.mark.parametrize(("number", "loop"), [(1, "a phrase"), (2, "a list"), (1, "a phrase that varies")])
async def test_an_answer_in_a_loop_ends_as_cut_off_long_before_the_limit(
    tiers: list[Tier], number: int, loop: str
) -> None:
    sampling = SamplingParams(temperature=0.0)
    request = GenerationRequest(request_id=f"loop-{loop}", prompt=LOOPS[loop], max_tokens=2048, sampling=sampling)
    (answer,), usage = await collect(tiers[number - 1], request)
    assert answer.finish_reason == "length"
    assert 200 <= usage.completion_tokens < 512


async def test_a_thought_in_a_loop_ends_and_is_followed_by_an_answer(core: ThreadCoreClient) -> None:
    spec = load_catalog("laptop").tier(4)
    policy = msgspec.structs.replace(spec.policy, opening=LOOPS["a phrase"])  # what it goes on thinking
    tokenizer = load_tokenizer(resolve_model_path(load_catalog("laptop").core.models[0].path))
    tier = local_tier(msgspec.structs.replace(spec, policy=policy), core, tokenizer)
    await tier.start()
    (answer,), usage = await collect(tier, chat("What should I say?", max_tokens=1024))
    await tier.close()
    assert 200 <= usage.reasoning_tokens < 622
    assert answer.text


async def test_a_request_without_a_limit_gets_the_tiers_default_length(core: ThreadCoreClient) -> None:
    spec = msgspec.structs.replace(load_catalog("laptop").tier(1), default_max_tokens=24)
    tokenizer = load_tokenizer(resolve_model_path(load_catalog("laptop").core.models[0].path))
    tier = local_tier(spec, core, tokenizer)
    await tier.start()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for asked, limit in ((None, 24), (40, 40), (9, 9)):
        (answer,), usage = await collect(tier, chat("Tell me about Rome.", max_tokens=asked, sampling=sampling))
        assert (usage.completion_tokens, answer.finish_reason) == (limit, "length")
    await tier.close()


# What tables, code, lists and rhymes repeat, each longer than the guard's span.
REPEATING = {
    "records": "".join(
        f'{{"id": {i}, "name": "user{i}", "email": "user{i}@example.com", "active": true}},\n' for i in range(40)
    ),
    "a multiplication table": "\n".join(f"{a} x {b} = {a * b}" for a in range(2, 10) for b in range(1, 11)),
    "a table": "".join(f"| Day {i} | {15 + i * 7 % 13} | {i * 5 % 11} |\n" for i in range(40)),
    "numbers": ", ".join(map(str, range(1, 200))),
    "code": "\n".join(
        f"    def get_{n}(self):\n        return self.{n}\n"
        for n in ("name", "age", "city", "email", "phone", "street", "country", "title") * 2
    ),
    "tests": "\n".join(f"assert add({i}, {2 * i}) == {3 * i}" for i in range(40)),
    "a song": "".join(
        f"Old MacDonald had a farm, E-I-E-I-O!\nAnd on his farm he had a {animal}, E-I-E-I-O!\nWith a {cry}-{cry} here "
        f"and a {cry}-{cry} there,\nHere a {cry}, there a {cry}, everywhere a {cry}-{cry},\nOld MacDonald had a farm!\n"
        for animal, cry in (("cow", "moo"), ("pig", "oink"), ("duck", "quack"), ("lamb", "baa"))
    ),
    "prose": prose(),
}


@pytest.mark.parametrize("kind", REPEATING)
async def test_text_that_repeats_as_lists_code_and_songs_do_is_not_taken_for_a_loop(kind: str) -> None:
    catalog = load_catalog("laptop")
    span = int(catalog.core.knobs["repetition_guard"])  # type: ignore[arg-type]
    tokens = load_tokenizer(resolve_model_path(catalog.core.models[0].path)).encode(REPEATING[kind])
    assert len(tokens) > span
    assert not any(is_looping(tokens[:end], span) for end in range(span, len(tokens) + 1))


async def test_three_tiers_share_one_copy_of_the_weights(core: ThreadCoreClient, tiers: list[Tier]) -> None:
    assert list(core.models) == ["smollm2-int4", "smollm2-bf16"]
    assert [t.model for t in tiers[1:]] == ["smollm2-bf16"] * 3
    assert {t.max_context for t in tiers} == {8192}
