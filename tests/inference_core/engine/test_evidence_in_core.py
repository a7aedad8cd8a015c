"""Evidence of hash models is the same however prompts are cut, cached, preempted and drafted for; nothing leaks."""

from random import Random

import msgspec
import numpy as np
import pytest
from core_driver import CoreDriver, greedy

from inference_core.errors import InvalidRequestError
from inference_core.protocol import AddRequest, Knobs, SequenceOutput
from inference_core.protocol.commands import Evidence, EvidenceRequest

MEAN = EvidenceRequest(layer=2, pooling="mean")
LAST = EvidenceRequest(layer=2, pooling="last")
TOKENS = EvidenceRequest(tokens=True)


class Witness(CoreDriver):
    """Records evidence as well, and holds it to the truth when its choice has finished."""

    def __init__(self, **options) -> None:
        super().__init__({"m": 3}, slabs=options.pop("slabs", 32), **options)
        self.received: dict[tuple[str, int], list[Evidence]] = {}

    def record(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            if output.evidence is not None:
                self.received.setdefault((output.request_id, output.index), []).append(output.evidence)
        super().record(outputs)

    def embed(self, prompt: list[int], layer: int, pooling: str, **fields) -> str:
        wanted = EvidenceRequest(layer=layer, pooling=pooling)
        return self.add(prompt, sampling=greedy(1), evidence=wanted, embed=True, **fields)

    def expected(self, request: AddRequest, index: int) -> list[int]:
        return [] if request.embed else super().expected(request, index)

    def _verify(self, request: AddRequest, output: SequenceOutput) -> None:
        super()._verify(request, output)
        received = self.received.get((output.request_id, output.index), [])
        wanted = request.evidence
        if wanted is None or output.finish_reason in ("abort", "error"):
            return
        states = [evidence.state for evidence in received if evidence.state]
        assert states == ([self.state(request)] if wanted.layer and not output.index else [])
        assert not states or received[0].state
        tokens = [token for evidence in received for token in evidence.tokens]
        said = self.tokens[output.request_id, output.index]
        histories = [request.prompt_token_ids + said[:count] for count in range(len(said) if wanted.tokens else 0)]
        assert tokens == [self.runners["m"].expected_evidence(history) for history in histories]

    def state(self, request: AddRequest) -> bytes:
        states = self.runners["m"].expected_states(request.prompt_token_ids, request.evidence.layer)
        if request.evidence.pooling == "last":
            return states[-1].astype("<f4").tobytes()
        total = np.zeros(2)
        for row in states:
            total += row
        return (total / len(states)).astype("<f4").tobytes()


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + i * i) % 49 for i in range(length)]


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("wanted", [MEAN, LAST, EvidenceRequest(layer=3, pooling="mean", tokens=True)])
def test_evidence_is_the_same_however_the_prompt_is_cut(wanted: EvidenceRequest, chunk: int) -> None:
    driver = Witness(knobs=Knobs(prefill_chunk=chunk))
    driver.add(prompt(30), sampling=greedy(4), evidence=wanted)
    driver.add(prompt(17, 5), sampling=greedy(4))
    driver.drain()
    assert ("r1", 0) not in driver.received
    driver.assert_all_free()


def test_the_state_comes_once_with_the_first_output_of_the_first_choice() -> None:
    driver = Witness()
    driver.add(prompt(12), sampling=greedy(3), n=2, evidence=LAST)
    driver.drain()
    assert [len(driver.received.get(("r0", index), [])) for index in (0, 1)] == [1, 0]


def test_a_mean_takes_nothing_from_the_cache_and_the_last_state_takes_all_that_others_do() -> None:
    driver = Witness()
    for wanted in (None, MEAN, LAST):
        driver.add(prompt(30), sampling=greedy(2), evidence=wanted)
        driver.drain()
    assert [driver.finished[f"r{i}", 0].cached_tokens for i in range(3)] == [0, 0, 28]


def test_a_preempted_mean_counts_no_token_twice() -> None:
    driver = Witness(knobs=Knobs(prefill_chunk=7, max_num_seqs=1))
    driver.add(prompt(60), sampling=greedy(2), priority=2, evidence=MEAN)
    driver.step(3)
    driver.add(prompt(9, first=30), sampling=greedy(2), priority=0)
    driver.drain()
    assert driver.finished["r0", 0].times.preemptions == 1


def test_accepted_drafts_have_the_evidence_that_they_have_without_drafts() -> None:
    driver = Witness(knobs=Knobs(speculation="prompt_lookup", draft_control="fixed", lookup_ngram=1))
    history = prompt(20)
    truth = driver.runners["m"].expected_tokens(history, 20)
    # A prompt that contains its own answer: drafts come from there.
    driver.add(history + truth[:1] + history + truth, sampling=greedy(30), evidence=TOKENS)
    driver.add(history, sampling=greedy(30), evidence=TOKENS)
    driver.drain()
    driver.assert_all_free()


def test_an_embedded_prompt_draws_nothing_and_leaves_no_block_behind() -> None:
    driver = Witness(knobs=Knobs(prefill_chunk=8))
    driver.embed(prompt(30), 1, "mean")
    driver.drain()
    ended = driver.finished["r0", 0]
    assert (ended.finish_reason, ended.completion_tokens, ended.prompt_tokens) == ("stop", 0, 30)
    assert driver.pool().num_referenced == driver.pool().num_evictable == 0


def test_the_blocks_of_an_embedded_prompt_are_not_shared_but_it_uses_those_of_others() -> None:
    driver = Witness()
    driver.embed(prompt(30), 1, "last")
    driver.drain()
    driver.add(prompt(30), sampling=greedy(3))
    driver.drain()
    driver.embed(prompt(30), 1, "last")
    driver.embed(prompt(30), 1, "mean")
    driver.drain()
    assert [driver.finished[f"r{i}", 0].cached_tokens for i in range(4)] == [0, 0, 28, 0]


def test_aborting_an_embedded_prompt_frees_its_blocks() -> None:
    driver = Witness(knobs=Knobs(prefill_chunk=8))
    driver.embed(prompt(60), 2, "mean")
    driver.step(2)
    assert driver.pool().num_referenced
    driver.abort("r0")
    assert not driver.core.has_work
    driver.assert_all_free()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_arrives_and_leaves_evidence_is_true_and_nothing_leaks(seed: int) -> None:
    random = Random(seed)
    knobs = Knobs(
        prefill_chunk=random.choice([3, 8, 40]),
        max_num_batched_tokens=random.choice([12, 60]),
        max_num_seqs=random.choice([2, 6]),
        speculation=random.choice(["off", "prompt_lookup"]),
        lookup_ngram=1,
    )
    driver = Witness(slabs=10, knobs=knobs, eos_probability=0.05)
    driver.runners["m"].most_tokens = random.choice([20, 1 << 30])
    wanted = [None, MEAN, LAST, TOKENS, EvidenceRequest(layer=3, pooling="mean", tokens=True)]
    for _ in range(40):
        tokens = prompt(random.randrange(1, 50), random.randrange(3))
        priority = random.randrange(3)
        if random.random() < 0.4:
            name = driver.embed(tokens, random.randrange(1, 4), random.choice(["last", "mean"]), priority=priority)
        else:
            sampling = greedy(random.randrange(1, 9))
            name = driver.add(
                tokens, sampling=sampling, n=random.choice([1, 1, 3]), evidence=random.choice(wanted), priority=priority
            )
        driver.step(random.randrange(4))
        if random.random() < 0.15:
            driver.abort(name)
    driver.drain()
    driver.assert_all_free()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"evidence": EvidenceRequest(layer=4)}, "evidence.layer is 4; m has layers 1 to 3"),
        ({"evidence": EvidenceRequest(layer=0)}, "evidence.layer is 0"),
        ({"embed": True}, "evidence.layer is not given"),
        ({"embed": True, "evidence": TOKENS}, "evidence.layer is not given"),
        ({"embed": True, "evidence": LAST, "n": 2}, "embed draws no tokens"),
        ({"embed": True, "evidence": msgspec.structs.replace(LAST, tokens=True)}, "embed draws no tokens"),
    ],
)
def test_evidence_that_cannot_be_had_is_refused(fields, message) -> None:
    driver = Witness()
    with pytest.raises(InvalidRequestError, match=message):
        driver.add([1, 2, 3], sampling=greedy(1), **fields)
    assert not driver.core.has_work


def test_a_model_that_tells_none_refuses_to_be_asked() -> None:
    driver = Witness()
    driver.runners["m"].info = msgspec.structs.replace(driver.runners["m"].info, num_layers=0)
    with pytest.raises(InvalidRequestError, match="cannot be had of m, which other processes or a device compute"):
        driver.add([1, 2, 3], sampling=greedy(1), evidence=TOKENS)
