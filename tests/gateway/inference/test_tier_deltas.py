"""Several prompts of one request as one stream: numbered choices, one bill."""

from collections.abc import AsyncGenerator

from gateway.inference.tier_attempt import tier_deltas
from inference_core.protocol import SamplingParams
from tests.support.scripted_tier import ScriptedTier
from tiers.errors import ReplicaTry
from tiers.tier import Delta, GenerationRequest, Usage


def requests(*prompts: str, n: int) -> list[GenerationRequest]:
    return [GenerationRequest(request_id=p, sampling=SamplingParams(), prompt=p, n=n) for p in prompts]


async def test_choices_are_numbered_over_all_prompts_and_the_bill_comes_once_at_the_end() -> None:
    deltas = [delta async for delta in tier_deltas(ScriptedTier(1), requests("One two", "Three", n=2), 2)]
    *said, bill = deltas
    texts = ["".join(delta.text for delta in said if delta.index == index) for index in range(4)]
    assert texts == ["Hello there, how are you?"] * 4
    assert all(delta.end is None for delta in said)
    assert bill.end is not None
    assert bill.end.usage == Usage(prompt_tokens=3, completion_tokens=20, cached_tokens=4)
    # Waits overlap, preemptions add up.
    assert (bill.end.times.queue_seconds, bill.end.times.preemptions) == (0.001, 2)


async def test_closing_the_stream_closes_every_prompts_generation() -> None:
    tier = ScriptedTier(1)
    deltas = tier_deltas(tier, requests("One", "Two", "Three", n=1), 1)
    await anext(deltas)
    await deltas.aclose()
    assert tier.closed_early == 3


async def test_the_asked_replicas_are_recorded_though_only_the_best_choices_are_returned() -> None:
    class Replicated(ScriptedTier):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
            tries = [ReplicaTry(replica=request.request_id, outcome="answered", seconds=0.1)]
            async for delta in super().generate(request):
                delta.tries, tries = tries, []
                yield delta

    tier = Replicated(1)
    tier.likelihoods = (-9.0, -1.0)
    deltas = [delta async for delta in tier_deltas(tier, requests("One", "Two", n=2), 1)]
    assert [one.replica for delta in deltas for one in delta.tries] == ["One", "Two"]
