"""A thought ends once its probes agree on the answer, and the probes' tokens are counted."""

import msgspec
import pytest

from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput
from inference_core.protocol.commands import Evidence, TokenEvidence
from inference_core.tokenization.tokenizer import Tokenizer
from tests.tiers.tier_world import ScriptedCore, chat, collect, local_tier, tier_spec
from tiers.catalog.tier_spec import ChainOfThoughtSpec
from tiers.local.local_tier import LocalTier

SPEC = ChainOfThoughtSpec(
    budget_tokens=120,
    opening="Let me think.\n",
    answer_opening="\nFinal answer:",
    min_answer_tokens=8,
    settled_probes=2,
    probe_every_tokens=5,
    probe_tokens=6,
)
QUESTION = "What is 5 + 8?"
STEPS = ["Five is a number.", " Eight is one too.", " Both are small.", " Their sum is 13.", " Let me check.", " Yes."]
THOUGHT = "".join(STEPS)


class Probed(ScriptedCore):
    """Thinks `thought`, answers probes in turn with `probes`, and the question with " 13, then."."""

    def __init__(self, tokenizer: Tokenizer, thought: str, probes: list[str]) -> None:
        super().__init__(tokenizer, self._says)
        self.thought, self.probes, self.tokens = thought, list(probes), tokenizer
        self.probed: list[str] = []

    def _says(self, add: AddRequest) -> list[str]:
        text = self.tokens.decode(add.prompt_token_ids)
        if not text.endswith(SPEC.answer_opening):
            return [self.thought] * add.n
        if add.sampling.max_tokens == SPEC.probe_tokens:
            self.probed.append(text.split(SPEC.opening)[1].removesuffix(SPEC.answer_opening))
            return [self.probes.pop(0) if self.probes else " 13"]
        return [" 13, then."]


async def thinker(
    tokenizer: Tokenizer, probes: list[str], thought: str = THOUGHT, **changes: object
) -> tuple[LocalTier, Probed]:
    core = Probed(tokenizer, thought, probes)
    tier = local_tier(tier_spec(msgspec.structs.replace(SPEC, **changes)), core, tokenizer)
    await tier.start()
    return tier, core


async def test_a_thought_ends_where_the_probes_agree(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer, [" 12", " 13", " The answer is 13."])
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=200))
    assert answer.reasoning == "".join(STEPS[:4])
    assert answer.text == "13, then."
    assert core.probed == ["".join(STEPS[:count]) for count in (1, 2, 4)]  # the third step is too short
    assert not core.live
    await tier.close()


async def test_the_answer_goes_on_from_the_tokens_that_the_last_probe_saw(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer, [" 13", " 13"])
    await collect(tier, chat(QUESTION, max_tokens=200))
    probe, answer = core.added[-2:]
    assert answer.prompt_token_ids == probe.prompt_token_ids
    await tier.close()


async def test_probes_are_billed_as_reasoning_and_not_shown(tokenizer: Tokenizer) -> None:
    tier, _ = await thinker(tokenizer, [" 13", " 13"])
    (answer,), usage = await collect(tier, chat(QUESTION, max_tokens=200))
    probes = 2 * len(tokenizer.encode(" 13"))
    thought = len(tokenizer.encode("".join(STEPS[:2])))
    assert usage.reasoning_tokens == thought + probes
    assert usage.completion_tokens == thought + probes + len(tokenizer.encode(" 13, then."))
    assert "13" not in answer.reasoning
    await tier.close()


@pytest.mark.parametrize("probes", [[" 13", " 12"] * 4, [" I do not know"] * 8])
async def test_a_thought_that_does_not_settle_goes_on_to_its_end(tokenizer: Tokenizer, probes: list[str]) -> None:
    tier, _ = await thinker(tokenizer, probes)
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=200))
    assert answer.reasoning == THOUGHT
    await tier.close()


@pytest.mark.parametrize(
    ("question", "changes"), [("Write a poem about 13 cats.", {}), (QUESTION, {"settled_probes": 0})]
)
async def test_nothing_is_probed_where_answers_cannot_be_compared_or_probing_is_off(
    tokenizer: Tokenizer, question: str, changes: dict[str, int]
) -> None:
    tier, core = await thinker(tokenizer, [], **changes)
    (answer,), _ = await collect(tier, chat(question, max_tokens=200))
    assert answer.reasoning == THOUGHT
    assert len(core.added) == 2
    await tier.close()


async def test_thought_and_probes_stay_within_the_budget_and_max_tokens(tokenizer: Tokenizer) -> None:
    tier, _ = await thinker(tokenizer, [" 12", " 13"] * 9, thought="Hm. Hm. Hm. Hm. Hm…", budget_tokens=60)
    _, usage = await collect(tier, chat(QUESTION, max_tokens=200))
    assert 50 < usage.reasoning_tokens <= 60
    _, usage = await collect(tier, chat(QUESTION, max_tokens=40))
    assert usage.completion_tokens <= 40
    await tier.close()


async def test_probes_are_greedy_whatever_the_request_asks_for(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer, [" 13", " 13"])
    sampling = SamplingParams(temperature=1.3, presence_penalty=1.0, logprobs=2, min_tokens=3, seed=4)
    await collect(tier, chat(QUESTION, max_tokens=200, sampling=sampling, n=2))
    probes = [add.sampling for add in core.added if add.sampling.max_tokens == SPEC.probe_tokens]
    assert len(probes) == 4
    assert all((p.temperature, p.presence_penalty, p.logprobs, p.min_tokens) == (0.0, 0.0, None, 0) for p in probes)
    await tier.close()


async def test_closing_while_a_probe_is_under_way_leaves_nothing_in_the_core(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer, [" 12…"] * 9)
    stream = tier.generate(chat(QUESTION, max_tokens=200))
    async for _ in stream:
        if core.probed:
            break
    await stream.aclose()
    assert not core.live
    await tier.close()


class Sure(Probed):
    """Was sure of each token of its probes by `logprobs`, one for each probe."""

    logprobs: list[float]

    def _output(self, request: AddRequest, index: int, ids: list[int], position: int) -> SequenceOutput:
        output = super()._output(request, index, ids, position)
        if output.token_ids and request.evidence is not None:
            output.evidence = Evidence(tokens=[TokenEvidence(self.logprobs[len(self.probed) - 1], 0.0, 0.0)])
        return output


@pytest.mark.parametrize(
    ("logprobs", "settled", "steps", "reason"),
    [
        ([-2.0, -0.01, -0.01], 0, 2, "confidence"),
        ([-2.0, -0.2, -0.2], 0, len(STEPS), None),
        ([-2.0, -0.2, -0.2], 2, 4, "agreement"),
    ],
)
async def test_a_thought_ends_at_the_first_probe_above_the_threshold_and_says_why(
    tokenizer: Tokenizer, logprobs: list[float], settled: int, steps: int, reason: str | None
) -> None:
    """TI-16."""
    core = Sure(tokenizer, THOUGHT, [" 12", " 13", " 13"])
    core.logprobs = [*logprobs, *[-0.2] * 9]
    spec = msgspec.structs.replace(SPEC, settled_probes=settled, probe_confidence=0.9)
    tier = local_tier(tier_spec(spec), core, tokenizer)
    await tier.start()

    deltas = [delta async for delta in tier.generate(chat(QUESTION, max_tokens=200))]

    assert "".join(delta.reasoning for delta in deltas) == "".join(STEPS[:steps])
    assert deltas[-1].end.thought_end == reason
    await tier.close()


async def test_a_probe_without_an_answer_ends_no_thought_however_sure_the_model_is(tokenizer: Tokenizer) -> None:
    core = Sure(tokenizer, THOUGHT, [" I do not know"] * 8)
    core.logprobs = [-0.001] * 8
    tier = local_tier(tier_spec(msgspec.structs.replace(SPEC, probe_confidence=0.9)), core, tokenizer)
    await tier.start()
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=200))
    assert answer.reasoning == THOUGHT
    await tier.close()
