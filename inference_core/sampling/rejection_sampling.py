"""Draws the tokens of a step in which drafts are verified, so that what is said has the model's own law.

Two ways, both exact (SPEC SD-02). *Repeatable*: the model draws for every drafted position as it would have drawn
without drafts, with the position's own random number, and goes on as long as that is the drafted token. So an answer
is, token by token, what it would have been: drafts change nothing but the time. A draft token that does not depend on
chance is accepted with the model's probability of it, which is all that rejection could do; a draft model that draws
with the same random numbers agrees the oftener the closer its law is (Daliri, Musco and Suresh, "Coupling without
communication and drafter-invariant speculative decoding", 2024). *Rejection*: a draft from the law q is accepted with
min(1, p / q) and otherwise replaced by a draw from the residual max(0, p - q), normalised (Leviathan, Kalman and
Matias, 2023), which accepts more of what a draft model draws at high temperatures, but the answer to a seed then
depends on the drafts.
"""

import msgspec
import numpy as np
import torch

from inference_core.grammar.masks import TokenMasks
from inference_core.sampling.reference_sampler import Logits, distribution, token_logprob, uniform
from inference_core.sampling.sampler import sample
from inference_core.step_plan import DraftLaw, SampledToken, SampleSpec, ScheduledSequence

# Streams of random numbers beside the one that tokens are drawn with.
_ACCEPTING = 0x6A09E667F3BCC908
_DRAFTING = 0x3C6EF372FE94F82B


def verification_rows(sequences: list[ScheduledSequence]) -> list[int] | None:
    """The rows, counting the tokens of all sequences, whose logits a step draws from; None if nobody has drafts, and
    they are the last of each sequence that samples."""
    if not any(s.num_drafts for s in sequences):
        return None
    rows: list[int] = []
    end = 0
    for sequence in sequences:
        end += len(sequence.token_ids)
        if sequence.sample is not None:
            rows += range(end - sequence.num_drafts - 1, end)
    return rows


def draw(
    logits: torch.Tensor, sequences: list[ScheduledSequence], masks: TokenMasks | None = None
) -> list[list[SampledToken]]:
    """The tokens that each sequence goes on with: accepted drafts and one more, from the `verification_rows` of
    `logits` float32 [rows, vocabulary]; `masks` of these rows, none of which has draft laws. Raises as `sampler.sample`
    does."""
    specs = [spec for s in sequences if s.sample is not None for spec in row_specs(s)]
    drawn = sample(logits, specs, masks=masks)
    results: list[list[SampledToken]] = []
    row = 0
    for sequence in sequences:
        if sequence.sample is None:
            results.append([])
            continue
        rows, row = slice(row, row + sequence.num_drafts + 1), row + sequence.num_drafts + 1
        if sequence.num_drafts and sequence.draft_laws is not None:
            results.append(_accept_or_replace(logits[rows].float().cpu().numpy(), drawn[rows], sequence))
        else:
            results.append(while_equal(sequence.drafts, drawn[rows]))
    return results


def row_specs(sequence: ScheduledSequence) -> list[SampleSpec]:
    """How to draw after each number of accepted drafts."""
    spec = sequence.sample
    assert spec is not None
    if not sequence.num_drafts:
        return [spec]
    specs = [spec]
    remembers = _remembers(spec)
    drafts = sequence.drafts
    for count in range(1, len(drafts) + 1):
        outputs = spec.output_token_ids + drafts[:count] if remembers else spec.output_token_ids
        specs.append(msgspec.structs.replace(spec, position=spec.position + count, output_token_ids=outputs))
    return specs


def draw_draft(law: DraftLaw, spec: SampleSpec) -> int:
    """A token of the law [vocabulary], with a random number that nothing else uses."""
    return _inverse(law, uniform(spec.seed ^ _DRAFTING, spec.position))


def drafts_from(logits: Logits, sequences: list[ScheduledSequence]) -> list[tuple[int, DraftLaw]]:
    """A draft token for each sequence, by its row of `logits` float32 [rows, vocabulary], and the law that it has."""
    drafts = []
    for raw, sequence in zip(logits, sequences, strict=True):
        assert sequence.sample is not None
        law = distribution(raw, sequence.sample)
        drafts.append((draw_draft(law, sequence.sample), law))
    return drafts


def while_equal(drafts: list[int], drawn: list[SampledToken]) -> list[SampledToken]:
    """Of what was `drawn` before each of the `drafts` and behind the last, what counts the repeatable way: all up to
    the first token that is not what was drafted."""
    for count, draft in enumerate(drafts):
        if drawn[count].token_id != draft:
            return drawn[: count + 1]
    return drawn


def _accept_or_replace(rows: Logits, drawn: list[SampledToken], sequence: ScheduledSequence) -> list[SampledToken]:
    """By rejection; `drawn` is what the rows give without drafts, and what follows when all of them are accepted."""
    tokens: list[SampledToken] = []
    specs, laws = row_specs(sequence), sequence.draft_laws
    assert laws is not None
    for raw, spec, draft, q in zip(rows, specs, sequence.drafts, laws, strict=False):
        p = distribution(raw, spec)
        if uniform(spec.seed ^ _ACCEPTING, spec.position) * q[draft] < p[draft]:
            tokens.append(_sampled(raw, draft, spec))
            continue
        token = _inverse(residual(p, q), uniform(spec.seed, spec.position))
        return [*tokens, _sampled(raw, token, spec)]
    return [*tokens, drawn[-1]]


def residual(p: DraftLaw, q: DraftLaw) -> DraftLaw:
    """The law [vocabulary] to draw from where a draft from `q` was rejected: max(0, p - q), not normalised."""
    return np.maximum(p - q, 0.0)


def _inverse(law: DraftLaw, u: float) -> int:
    """The token at `u` in [0, 1) of the law's cumulative distribution; one without probability is never drawn."""
    reached = np.cumsum(law)
    return int(np.searchsorted(reached, u * reached[-1], side="right"))


def _sampled(raw: Logits, token_id: int, spec: SampleSpec) -> SampledToken:
    wanted = spec.params.logprobs
    return SampledToken(token_id, None if wanted is None else token_logprob(raw, token_id, wanted))


def _remembers(spec: SampleSpec) -> bool:
    params = spec.params
    return params.repetition_penalty != 1.0 or bool(params.presence_penalty or params.frequency_penalty)
