"""Prefill replicas compute long prompts for the replicas that answer; whatever fails, the answer is the same
(BS-08)."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest

from gateway.runtime.cluster.merged_stats import merged
from inference_core.protocol import Knobs, SamplingParams
from tests.gateway.runtime.cluster.core_fleet import CoreFleet, answer, request, tokens_of, until_connected
from tests.inference_core.hash_model import hash_core
from tests.polling import eventually

LONG = tuple(range(500))
FULL = 31  # blocks of 16 tokens


@pytest.fixture
async def fleet() -> AsyncIterator[CoreFleet]:
    """A replica d that answers, and p, which computes prompts."""
    fleet = CoreFleet()
    await fleet.add("d", role="decode")
    await fleet.add("p", role="prefill")
    yield fleet
    await fleet.close()


@pytest.fixture
async def core(fleet: CoreFleet) -> AsyncIterator[object]:
    client = fleet.client()
    await client.start()
    await until_connected(client, "d", "p")
    await client.set_knobs({"handover_min_tokens": 100})
    yield client
    await client.close()


@pytest.fixture(scope="module")
def truth() -> dict[tuple[int, ...], list[int]]:
    """The answer of a core alone."""
    runner = hash_core("m", slabs=256, max_context=2048)._models["m"].runner
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    return {prompt: runner.expected_tokens(prompt, 8, sampling) for prompt in (LONG, LONG[:50])}


async def model_of(core, name):
    return (await core._replicas[name].client.stats()).models[0]


async def handover(core):
    return (await core.stats()).models[0].handover


async def assert_nothing_held(core):
    for name in core.replicas:
        model = await model_of(core, name)
        assert (model.running, model.waiting, model.blocks_in_use) == (0, 0, 0)
        assert core._replicas[name].in_flight == 0


async def test_a_long_prompt_is_computed_by_the_prefill_replica_and_answered_by_the_other(core, truth):
    outputs = await answer(core, request("r", prompt=LONG))

    assert tokens_of(outputs) == truth[LONG]
    d, p = await model_of(core, "d"), await model_of(core, "p")
    assert (p.generated_tokens, d.generated_tokens) == (0, 8)
    assert (p.handover.out_blocks, d.handover.in_blocks) == (FULL, FULL)
    assert d.prefix_hit_tokens == FULL * 16
    # It is billed as computed: none of it was cached before this request.
    assert outputs[-1].cached_tokens == 0
    counted = await handover(core)
    assert (counted.outcomes, counted.tokens, counted.out_blocks) == ({"done": 1}, FULL * 16, FULL)
    assert counted.seconds > 0
    await assert_nothing_held(core)


async def test_short_prompts_and_the_knob_at_0_go_to_the_answering_replica_alone(core, truth):
    assert tokens_of(await answer(core, request("short", prompt=LONG[:50]))) == truth[LONG[:50]]
    await core.set_knobs({"handover_min_tokens": 0})
    assert tokens_of(await answer(core, request("long", prompt=LONG))) == truth[LONG]

    assert (await model_of(core, "p")).prompt_tokens == 0
    assert (await handover(core)).outcomes == {}


async def test_replicas_for_whole_requests_compute_their_own_prompts(core, fleet, truth):
    fleet.replicas["d"].leaving = True
    await fleet.add("b", role="both")
    await until_connected(core, "b", "p")

    assert tokens_of(await answer(core, request("r", prompt=LONG))) == truth[LONG]
    assert (await handover(core)).outcomes == {}
    assert (await model_of(core, "p")).prompt_tokens == 0


async def test_prompts_that_are_scored_are_computed_where_they_are_answered(core):
    sampling = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, prompt_logprobs=0)
    outputs = await answer(core, request("r", prompt=LONG, sampling=sampling))

    assert sum(len(output.prompt_logprobs or []) for output in outputs) == len(LONG) - 1
    assert (await handover(core)).outcomes == {}


async def test_the_next_turn_of_a_conversation_is_not_handed_over_again(core):
    first = await answer(core, request("r1", prompt=LONG))
    turn = (*LONG, *tokens_of(first), 7, 8)

    outputs = await answer(core, request("r2", prompt=turn))

    assert (await handover(core)).outcomes == {"done": 1}
    assert outputs[-1].cached_tokens >= FULL * 16


async def test_what_the_prefill_replica_had_cached_is_reported_as_cached(core, fleet):
    await answer(core, request("r1", prompt=LONG))
    for caching in (False, True):
        await core._replicas["d"].client.set_knobs({"prefix_caching": caching})

    outputs = await answer(core, request("r2", prompt=LONG))

    # The prefill replica computes at least one token of the last block, and so does the answering replica.
    assert outputs[-1].cached_tokens == (FULL - 1) * 16
    assert (await handover(core)).outcomes == {"done": 2}


async def test_a_prefill_replica_that_dies_meanwhile_costs_no_answer(core, fleet, truth):
    lost = fleet.replicas["p"]
    lost.paused.set()
    asking = asyncio.create_task(answer(core, request("r", prompt=LONG)))
    await eventually(lambda: core._replicas["p"].in_flight == 1)

    lost.said = False
    await lost.stop()

    assert tokens_of(await asking) == truth[LONG]
    # Its loss is known before statistics are requested.
    assert core.replicas == ["d"]
    assert (await handover(core)).outcomes == {"gone": 1}
    await assert_nothing_held(core)


async def test_an_answering_replica_that_dies_meanwhile_is_replaced_by_another(core, fleet, truth):
    await fleet.add("e", role="decode")
    await until_connected(core, "d", "e", "p")
    fleet.replicas["p"].paused.set()
    asking = asyncio.create_task(answer(core, request("r", prompt=LONG)))
    await eventually(lambda: core._replicas["p"].in_flight == 1)
    lost = fleet.replicas[core._requests["r"].name]

    lost.said = False
    await lost.stop()
    fleet.replicas["p"].paused.clear()

    assert tokens_of(await asking) == truth[LONG]
    assert lost.name not in core.replicas
    await assert_nothing_held(core)


async def test_blocks_that_are_damaged_on_the_way_are_computed_in_place(core, truth, monkeypatch):
    source = core._replicas["p"].client
    export = source.export_blocks

    async def spoilt(*asked):
        frame = await export(*asked)
        block = frame.blocks[0]
        content = bytes([block.content[0] ^ 1]) + block.content[1:]
        damaged = type(block)(block.digest, block.checksum, content)
        return msgspec.structs.replace(frame, blocks=[damaged, *frame.blocks[1:]])

    monkeypatch.setattr(source, "export_blocks", spoilt)

    assert tokens_of(await answer(core, request("r", prompt=LONG))) == truth[LONG]
    counted = await handover(core)
    assert (counted.outcomes, counted.refused_frames, counted.in_blocks) == ({"corrupt": 1}, 1, 0)
    await assert_nothing_held(core)


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        ({"block_size": 8}, "incompatible"),
        ({"knobs": Knobs(prefix_caching=False)}, "refused"),
        ({"max_context": 300}, "refused"),
    ],
)
async def test_prefill_replicas_that_cannot_do_it_are_done_without(fleet, truth, other, outcome):
    fleet.replicas["p"].said = False
    await fleet.add("q", role="prefill", **other)
    client = fleet.client()
    await client.start()
    await until_connected(client, "d", "q")
    await client.set_knobs({"handover_min_tokens": 100})

    assert tokens_of(await answer(client, request("r", prompt=LONG))) == truth[LONG]
    assert (await handover(client)).outcomes == {outcome: 1}
    await client.close()


async def test_a_full_prefill_replica_is_done_without(core, fleet, truth):
    await core._replicas["p"].client.set_knobs({"max_waiting": 1, "max_num_seqs": 1})
    fleet.replicas["p"].paused.set()
    asking = [asyncio.create_task(answer(core, request(f"r{i}", prompt=(i, *LONG)))) for i in range(2)]
    await eventually(lambda: core._handover._outcomes)
    fleet.replicas["p"].paused.clear()
    await asyncio.gather(*asking)

    outcomes = (await handover(core)).outcomes
    assert outcomes == {"done": 1, "overloaded": 1}


async def test_without_a_prefill_replica_prompts_are_computed_in_place_and_counted(core, fleet, truth):
    gone = fleet.replicas["p"]
    gone.leaving = True
    await eventually(lambda: "p" not in core.replicas)

    assert tokens_of(await answer(core, request("r", prompt=LONG))) == truth[LONG]
    assert (await handover(core)).outcomes == {"gone": 1}


async def test_prefill_replicas_answer_when_there_are_no_others(core, fleet, truth):
    fleet.replicas["d"].said = False
    await fleet.replicas["d"].stop()

    assert tokens_of(await answer(core, request("r", prompt=LONG))) == truth[LONG]
    assert core.replicas == ["p"]


async def test_a_caller_that_leaves_meanwhile_leaves_nothing_behind(core, fleet):
    fleet.replicas["p"].paused.set()
    asking = asyncio.create_task(answer(core, request("r", prompt=LONG)))
    await eventually(lambda: core._replicas["p"].in_flight == 1)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    fleet.replicas["p"].paused.clear()

    await assert_nothing_held(core)
    assert not core._requests


async def test_a_leaving_prefill_replica_ends_what_it_has(core, fleet, truth):
    leaving = fleet.replicas["p"]
    leaving.paused.set()
    asking = asyncio.create_task(answer(core, request("r", prompt=LONG)))
    await eventually(lambda: core._replicas["p"].in_flight == 1)
    leaving.leaving = True
    await eventually(lambda: core._replicas["p"].leaving)
    leaving.paused.clear()

    assert tokens_of(await asking) == truth[LONG]
    assert (await handover(core)).outcomes == {"done": 1}
    assert core.replicas == ["d"]


async def test_each_pool_keeps_the_limits_that_it_was_started_with(fleet):
    await fleet.add("q", role="prefill", knobs=Knobs(max_num_batched_tokens=4096), own_knobs={"max_num_batched_tokens"})
    client = fleet.client()
    await client.start()
    await until_connected(client, "d", "p", "q")

    answered = await client.set_knobs({"max_num_batched_tokens": 64, "max_num_seqs": 3})

    assert answered.knobs["m"].max_num_batched_tokens == 64
    limits = {name: (await model_of(client, name)).knobs for name in "dq"}
    assert {n: (k.max_num_batched_tokens, k.max_num_seqs) for n, k in limits.items()} == {"d": (64, 3), "q": (4096, 3)}
    await client.close()


def test_the_predicted_wait_is_that_of_those_who_answer():
    answering, prefilling = hash_core("m").stats(), hash_core("m").stats()
    answering.models[0].predicted_wait_seconds = 3.0

    assert merged("", [answering, prefilling], answering=1).models[0].predicted_wait_seconds == 3.0
    assert merged("", [answering, prefilling]).models[0].predicted_wait_seconds == 0.0


async def test_many_prompts_at_once_are_all_answered_as_ever(core):
    prompts = {f"r{i}": (i, *LONG[:200]) for i in range(12)}
    outputs = await asyncio.gather(*(answer(core, request(name, prompt=p)) for name, p in prompts.items()))

    runner = hash_core("m", slabs=256, max_context=2048)._models["m"].runner
    expected = partial(runner.expected_tokens, count=8, sampling=request("r").sampling)
    assert [tokens_of(said) for said in outputs] == [expected(prompt) for prompt in prompts.values()]
    assert (await handover(core)).outcomes == {"done": 12}
    await assert_nothing_held(core)
