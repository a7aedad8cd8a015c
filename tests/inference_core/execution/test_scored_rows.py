"""Rows that score prompts in steps with rows that are drawn from, and their scores."""

import pytest
import torch

from inference_core.execution.logits_runner import ScoredRows, score_rows
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence, ScoreSpec

DRAW = SampleSpec(SamplingParams(), [], [], 0, 0, ())


def share(tokens: int, *, draws: bool, scores: int = 0) -> ScheduledSequence:
    score = ScoreSpec(list(range(scores)), 1) if scores else None
    return ScheduledSequence("s", [7] * tokens, 0, [], DRAW if draws else None, score=score)


def test_rows_that_score_and_rows_that_draw_are_distinguished() -> None:
    sequences = [share(3, draws=False, scores=3), share(1, draws=True), share(4, draws=True, scores=3)]
    rows = ScoredRows.of(sequences)
    assert rows.wanted == [0, 1, 2, 3, 4, 5, 6, 7]
    assert rows.drawing == [3, 7]
    assert [place for place, spec in rows.scoring if spec is not None] == [0, 4]


def test_chunks_that_neither_score_nor_draw_have_no_rows() -> None:
    rows = ScoredRows.of([share(5, draws=False), share(2, draws=True, scores=1)])
    assert (rows.wanted, rows.drawing) == ([5, 6], [1])


def test_rows_given_to_draw_from_are_found_among_the_others() -> None:
    rows = ScoredRows.of([share(2, draws=False, scores=2), share(3, draws=True)], drawing=[2, 3, 4])
    assert (rows.wanted, rows.drawing) == ([0, 1, 2, 3, 4], [2, 3, 4])


def test_scores_are_the_log_softmax_of_each_row_with_the_best_first() -> None:
    logits = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)) * 5
    targets = [(i * 7) % 60 for i in range(40)]
    expected = logits.double().log_softmax(-1)
    scores = score_rows(logits, ScoreSpec(targets, 4))
    assert [score.token_id for score in scores] == targets
    for row, score in enumerate(scores):
        assert score.logprob == pytest.approx(expected[row, targets[row]].item(), abs=1e-5)
        assert [token for token, _ in score.top] == expected[row].topk(4).indices.tolist()


def test_the_likeliest_token_scores_exactly_as_its_alternative() -> None:
    """Evaluation harnesses compare the two to tell whether a text is the greedy one."""
    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(2))
    scores = score_rows(logits, ScoreSpec(logits.argmax(-1).tolist(), 1))
    assert all(score.logprob == score.top[0][1] for score in scores)


def test_equally_likely_tokens_are_listed_by_their_ids() -> None:
    (score,) = score_rows(torch.zeros(1, 5), ScoreSpec([4], 5))
    assert [token for token, _ in score.top] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_that_are_no_logits_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        score_rows(torch.tensor([[0.0, bad]]), ScoreSpec([0], 0))


def test_a_share_that_is_repeated_without_its_drafts_still_scores() -> None:
    scored = share(4, draws=False, scores=4)
    assert scored.without_drafts().score is scored.score
