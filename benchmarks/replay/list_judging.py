"""What it would cost to judge all answers of a probe in one list, and how many more errors that would be worth.

The texts and marks of recorded answers are real, and so are the questions to the pairwise judge. A list is asked in two
orders, as a pair is: each call is a pair's with the further answers in it. How often a model errs about a list is not
known from recorded answers; what is said is up to which share of errors a list tells more for its price.
"""

import math

import msgspec

from benchmarks.replay.expert_errors import ErringTier
from benchmarks.replay.ladder import Ladder, Prompt, tokens_of
from quality.judges.pairwise import PairwiseJudge

# Tokens of a verdict on a pair, and of the place of an answer in a list.
WORD_TOKENS, PLACE_TOKENS = 2, 3
# What is written around an answer of a list.
FRAME = "[third answer 0123456789ab]\n\n[end of third answer 0123456789ab]\n\n"


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a probe in the mean, in prices of a strongest answer: the `answers` of the tiers that did not serve it, the
    `judging`, and the second `opinions` on answers that are worse."""

    answers: float
    judging: float
    opinions: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.answers + self.judging + self.opinions


def probe_costs(ladder: Ladder, output_price: float) -> tuple[ProbeCost, ProbeCost]:
    """Return what a probe costs where pairs are judged, and where lists are. A token of an answer costs a tier's price
    times `output_price`."""
    strongest = sum(_made(ladder, prompt, len(ladder.tiers), output_price) for prompt in ladder.prompts)
    found = []
    for calls in (_pairs, _list):
        answers = judging = opinions = 0.0
        for prompt in ladder.prompts:
            judged = list(range(1, len(ladder.tiers)))
            answers += sum(_made(ladder, prompt, k, output_price) for k in (*judged[1:], len(ladder.tiers)))
            judging += calls(ladder, prompt, judged, output_price)
            if worse := [k for k in judged if not prompt.no_worse(k)]:
                opinions += _made(ladder, prompt, len(ladder.tiers), output_price)
                opinions += calls(ladder, prompt, worse, output_price)
        found.append(ProbeCost(answers=answers / strongest, judging=judging / strongest, opinions=opinions / strongest))
    return found[0], found[1]


def errors_at_par(error: float, cost_share: float) -> float:
    """Return the share of errors up to which labels for `cost_share` of the price tell as much as those with `error`:
    a label of the informedness J weighs J squared."""
    return (1.0 - (1.0 - 2.0 * error) * math.sqrt(cost_share)) / 2.0


def _made(ladder: Ladder, prompt: Prompt, tier: int, output_price: float) -> float:
    tokens = tokens_of(prompt.text) + output_price * prompt.answers[tier - 1].tokens
    return tokens * ladder.tiers[tier - 1].price


def _pair_tokens(ladder: Ladder, prompt: Prompt, tier: int) -> int:
    judge = PairwiseJudge(ErringTier(len(ladder.tiers), [], 0.0, "the same"))
    asked, _ = judge.requests(prompt.text, prompt.answers[tier - 1].text, prompt.answers[-1].text)
    return sum(tokens_of(message.content) for message in asked.messages or ())


def _pairs(ladder: Ladder, prompt: Prompt, judged: list[int], output_price: float) -> float:
    tokens = sum(_pair_tokens(ladder, prompt, tier) + output_price * WORD_TOKENS for tier in judged)
    return 2 * tokens * ladder.tiers[-1].price


def _list(ladder: Ladder, prompt: Prompt, judged: list[int], output_price: float) -> float:
    first, *others = judged
    tokens = _pair_tokens(ladder, prompt, first) + output_price * PLACE_TOKENS * (len(judged) + 1)
    tokens += sum(tokens_of(FRAME) + prompt.answers[tier - 1].tokens for tier in others)
    return 2 * tokens * ladder.tiers[-1].price
