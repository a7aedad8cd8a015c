"""Masks and sampling: forbidden tokens are never drawn, the others keep their odds, log-probabilities stay raw."""

import numpy as np
import pytest
import torch

from inference_core.errors import BadLogitsError
from inference_core.grammar.workers import begin_masks
from inference_core.native import cpu
from inference_core.protocol import Grammar, SamplingParams
from inference_core.sampling.reference_sampler import token_logprob
from inference_core.sampling.sampler import sample
from inference_core.step_plan import SampleSpec
from tests.inference_core.grammar.byte_vocabulary import EOS, SIZE, byte_compiler

COMPILER = byte_compiler()
DIGITS = Grammar(kind="regex", text="[0-9]")

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=3),
    SamplingParams(temperature=1.0, top_k=40, top_p=0.5, min_p=0.05),
    SamplingParams(temperature=1.3, repetition_penalty=1.4, presence_penalty=1.0, frequency_penalty=-1.0),
    SamplingParams(temperature=0.7, logit_bias={ord("a"): 100.0, ord("7"): -100.0}),
    SamplingParams(temperature=0.9, logprobs=4),
]


def spec(params: SamplingParams, seed: int, *, bound: bool) -> SampleSpec:
    matcher = COMPILER.compile(DIGITS)() if bound else None
    return SampleSpec(params, [ord("3"), 200], [ord("5")], seed, 1, (EOS,), matcher)


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize(
    "native", [pytest.param(True, marks=pytest.mark.skipif(not cpu.AVAILABLE, reason="not built")), False]
)
def test_a_masked_draw_is_the_draw_from_a_row_without_the_forbidden_tokens(
    params: SamplingParams, native: bool
) -> None:
    for seed in range(20):
        raw = np.random.default_rng(seed).normal(0, 4, (2, SIZE)).astype(np.float32)
        masked = raw.copy()
        forbidden = [t for t in range(SIZE) if not ord("0") <= t <= ord("9")]
        masked[0, forbidden] = -np.inf
        bound, free = spec(params, seed, bound=True), spec(params, seed, bound=False)
        drawn = sample(torch.from_numpy(raw.copy()), [bound, free], native=native, masks=begin_masks([bound, free]))
        expected = sample(torch.from_numpy(masked), [free, free], native=native)
        assert [d.token_id for d in drawn] == [e.token_id for e in expected]
        assert drawn[1] == expected[1], "the neighbour is drawn as it would be alone"
        if params.logprobs is not None:
            assert drawn[0].logprob == token_logprob(raw[0], drawn[0].token_id, params.logprobs)
            assert drawn[0].logprob.top[0][0] == int(raw[0].argmax())


def test_a_row_whose_grammar_allows_nothing_fails_alone() -> None:
    class Stuck:
        num_words = (SIZE + 31) // 32
        failure = None

        def accept(self, token_id: int) -> None: ...

        def ask_forced(self) -> None: ...

        def ask_masks(self, drafts: object) -> None: ...

        def send(self) -> None: ...

        def forced_tokens(self) -> list[int]:
            return []

        def masks(self) -> list[bytes]:
            return [bytes(4 * self.num_words)]

    free, stuck = spec(SamplingParams(), 1, bound=False), spec(SamplingParams(), 1, bound=False)
    stuck.matcher = Stuck()
    with pytest.raises(BadLogitsError) as caught:
        sample(torch.zeros(2, SIZE), [free, stuck], masks=begin_masks([free, stuck]))
    assert caught.value.rows == [1]
