"""What is said under speculation has the model's own law, exactly (SPEC SD-02, SD-03)."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from inference_core.protocol import SamplingParams
from inference_core.sampling import sampler
from inference_core.sampling.reference_sampler import distribution
from inference_core.sampling.sampler import draw, draw_draft, sample, verification_rows
from inference_core.step_plan import SampleSpec, ScheduledSequence

VOCAB = 12
# Enough to tell a wrong law: without the residual the same test gives less than 1e-9.
SAMPLES = 2_000
LAWS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5, top_p=0.8),
    SamplingParams(temperature=1.5, top_k=5),
    SamplingParams(temperature=1.0, min_p=0.1, presence_penalty=0.7, repetition_penalty=1.3),
]


def logits_of(seed: int, rows: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1.5, (rows, VOCAB)).astype(np.float32))


def spec_of(params: SamplingParams, seed: int) -> SampleSpec:
    return SampleSpec(params, [1, 2], [3, 4], seed, 2, (0,))


def share(spec: SampleSpec, drafts: list[int], laws: list[np.ndarray] | None = None) -> ScheduledSequence:
    return ScheduledSequence("s", [4, *drafts], 3, [0], spec, num_drafts=len(drafts), draft_laws=laws)


def drawn_by_rejection(params: SamplingParams, seed: int, target: torch.Tensor, q: np.ndarray) -> list[int]:
    """One round: the draft proposes a token from its own law `q`, the target verifies it."""
    spec = spec_of(params, seed)
    return [t.token_id for t in draw(target, [share(spec, [draw_draft(q, spec)], [q])])[0]]


@cache
def rounds_of(law: int) -> list[list[int]]:
    """`SAMPLES` rounds of `LAWS[law]`, drawn once for all tests."""
    target, q = logits_of(1, 2), distribution(logits_of(2, 1)[0].numpy(), spec_of(LAWS[law], 0))
    return [drawn_by_rejection(LAWS[law], seed, target, q) for seed in range(SAMPLES)]


def p_value_of(counts: Counter[int], law: np.ndarray) -> float:
    likely = law * SAMPLES >= 5
    observed = np.array([counts[i] for i in range(VOCAB)], dtype=float)
    assert not observed[law == 0].any(), "a token without probability was drawn"
    rest = [] if likely.all() or not law[~likely].sum() else [~likely]
    expected = [*(law[likely] * SAMPLES), *(law[r].sum() * SAMPLES for r in rest)]
    seen = [*observed[likely], *(observed[r].sum() for r in rest)]
    return float(chisquare(seen, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("law", range(len(LAWS)))
def test_rejection_draws_from_the_law_of_the_target(law: int):
    counts = Counter(tokens[0] for tokens in rounds_of(law))

    assert p_value_of(counts, distribution(logits_of(1, 2)[0].numpy(), spec_of(LAWS[law], 0))) > 1e-3


@pytest.mark.parametrize("number", [0, 3])
def test_what_follows_an_accepted_draft_has_the_law_given_that_token(number: int):
    rounds = rounds_of(number)
    after, times = Counter(r[0] for r in rounds if len(r) == 2).most_common(1)[0]
    spec = SampleSpec(LAWS[number], [1, 2], [3, 4, after], 0, 3, (0,))
    law = distribution(logits_of(1, 2)[1].numpy(), spec)
    counts = Counter(r[1] for r in rounds if len(r) == 2 and r[0] == after)

    expected = law * times
    likely = expected >= 5
    seen = np.array([counts[i] for i in range(VOCAB)], dtype=float)
    tail = [expected[~likely].sum()] if expected[~likely].sum() > 0 else []
    seen_tail = [seen[~likely].sum()] if tail else []
    assert chisquare([*seen[likely], *seen_tail], [*expected[likely], *tail], sum_check=False).pvalue > 1e-3


def test_without_the_residual_the_law_would_be_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "residual", lambda p, q: p)
    counts = Counter(tokens[0] for tokens in rounds_of.__wrapped__(0))  # drawn now, with the patch

    assert p_value_of(counts, distribution(logits_of(1, 2)[0].numpy(), spec_of(LAWS[0], 0))) < 1e-9


def test_as_much_is_accepted_as_the_laws_have_in_common():
    target, draft = logits_of(1, 2), logits_of(2, 1)
    spec = spec_of(LAWS[0], 0)
    common = np.minimum(distribution(target[0].numpy(), spec), distribution(draft[0].numpy(), spec)).sum()
    accepted = np.mean([len(tokens) - 1 for tokens in rounds_of(0)])

    assert accepted == pytest.approx(common, abs=4 * np.sqrt(common * (1 - common) / SAMPLES))


@pytest.mark.parametrize("params", [*LAWS, SamplingParams(temperature=0.0)])
def test_repeatable_tokens_are_the_ones_that_would_have_been_drawn_one_by_one(params: SamplingParams):
    for seed in range(200):
        logits, drafts = logits_of(seed, 4), [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, 3)]
        tokens = [t.token_id for t in draw(logits, [share(spec_of(params, seed), drafts)])[0]]
        outputs = [3, 4]
        for row, token in enumerate(tokens):
            spec = SampleSpec(params, [1, 2], outputs, seed, 2 + row, (0,))
            assert token == sample(logits[row : row + 1], [spec])[0].token_id
            outputs = [*outputs, token]
        assert tokens[:-1] == drafts[: len(tokens) - 1]
        assert len(tokens) == 4 or tokens[-1] != drafts[len(tokens) - 1]


@pytest.mark.parametrize("params", LAWS)
def test_a_draft_that_does_not_depend_on_chance_is_accepted_with_its_probability(params: SamplingParams):
    logits, draft = logits_of(1, 2), 5
    law = distribution(logits[0].numpy(), spec_of(params, 0))
    tokens = [draw(logits, [share(spec_of(params, seed), [draft])])[0] for seed in range(SAMPLES)]

    assert p_value_of(Counter(t[0].token_id for t in tokens), law) > 1e-3
    assert np.mean([len(t) == 2 for t in tokens]) == pytest.approx(law[draft], abs=0.03)


def test_rejection_at_temperature_zero_draws_the_likeliest_tokens():
    params = SamplingParams(temperature=0.0)
    for seed in range(100):
        logits, spec = logits_of(seed, 2), spec_of(params, seed)
        best = int(logits[0].argmax())
        for draft in (best, (best + 1) % VOCAB):
            q = np.eye(VOCAB)[draft]
            tokens = draw(logits, [share(spec, [draft], [q])])[0]
            assert tokens[0].token_id == best
            assert len(tokens) == 1 + (draft == best)


def test_sequences_with_and_without_drafts_are_drawn_in_one_step():
    params = SamplingParams(temperature=0.8)
    logits, q = logits_of(9, 5), distribution(logits_of(2, 1)[0].numpy(), spec_of(params, 2))
    plain, drafted, rejecting = (spec_of(params, seed) for seed in range(3))
    right = sample(logits[1:2], [drafted])[0].token_id
    shares = [
        ScheduledSequence("a", [4], 3, [0], plain),
        ScheduledSequence("chunk", [4, 5], 0, [1], None),
        share(drafted, [right]),
        share(rejecting, [8], [q]),
    ]
    assert verification_rows(shares) == [0, 3, 4, 5, 6]
    together = draw(logits, shares)

    assert together[1] == []
    assert together[0] == [sample(logits[:1], [plain])[0]]
    assert together[2] == draw(logits[1:3], [share(drafted, [right])])[0]
    assert [len(tokens) for tokens in together[:3]] == [1, 0, 2]
    assert together[3] == draw(logits[3:5], [share(rejecting, [8], [q])])[0]


def test_log_probabilities_are_given_for_every_token():
    params = SamplingParams(temperature=0.7, logprobs=2)
    logits, spec = logits_of(3, 2), spec_of(params, 0)
    draft = sample(logits[:1], [spec])[0].token_id
    raw = torch.log_softmax(logits.double(), -1)
    for laws in (None, [np.eye(VOCAB)[draft]]):
        for row, token in enumerate(draw(logits, [share(spec, [draft], laws)])[0]):
            assert token.logprob.logprob == pytest.approx(float(raw[row, token.token_id]), abs=1e-5)
            assert len(token.logprob.top) == 2
