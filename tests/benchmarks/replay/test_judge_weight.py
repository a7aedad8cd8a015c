"""A judge's weight by real pairs is that on recorded pairs, which planted ones overestimate."""

from benchmarks.replay.judge_weight import ERRORS, judged_pairs, true_accuracy, weight_of_judge
from benchmarks.replay.ladder import Answer, Ladder, Prompt, declared_tiers


def ladder() -> Ladder:
    """Marks that differ by 1 in half of the prompts, and by 5 in the others."""
    marks = ((8.0, 7.0, 9.0, 8.0), (3.0, 8.0, 2.0, 8.0))
    prompts = [
        Prompt(str(n), ("maths", "writing")[n // 2 % 2], "?", tuple(Answer("a", mark) for mark in marks[n % 2]))
        for n in range(40)
    ]
    return Ladder("made", declared_tiers(["a", "b", "c", "d"]), tuple(prompts))


async def test_real_pairs_tell_the_judges_errors_and_planted_ones_too_few() -> None:
    truth = true_accuracy(judged_pairs(ladder()))
    few = await weight_of_judge(ladder(), checked=0, reviewed=0, others=0, draws=6)
    many = await weight_of_judge(ladder(), checked=200, reviewed=60, others=600, draws=6)

    assert ERRORS[0][1] > 1 - truth > ERRORS[-1][1]
    assert few.planted > truth + 0.05
    assert abs(many.in_use - truth) < 0.03
    assert many.covered >= many.trusted - 1 >= 4
