"""Answers that speak to the judge who compares them with others."""

import asyncio
from collections.abc import Iterator
from random import Random

from tests.gateway.attacks.outcome import Outcome, attack_class
from tests.gateway.attacks.targets import Target


@attack_class("answers that address their judge", 900, "open")
def judged_answers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Wrong answers that ask for a verdict, close their frame or play another turn, in five languages, in code and in
    JSON, in either place: a judge's model that reads by the frames finds them worse, and one that does what it reads
    never finds them better."""
    from quality.judges.pairwise import PairwiseJudge
    from tests.quality.judges.injected_answers import ANSWERS, GOOD, QUESTION, drawn_answer, read_by_frames
    from tests.quality.loop_world import ScriptedTier

    fixed = list(ANSWERS.items())
    draw.shuffle(fixed)
    fixed = fixed[: count // 2]

    async def scores(answer: str, reply: object) -> tuple[float | None, float | None]:
        judge = PairwiseJudge(ScriptedTier(reply=reply))  # type: ignore[arg-type]
        own = await judge.judge(prompt=QUESTION, answer=answer, reference_answer=GOOD)
        turned = await judge.judge(prompt=QUESTION, answer=GOOD, reference_answer=answer)
        return own.score, turned.score

    for number in range(count):
        name, answer = fixed[number] if number < len(fixed) else (f"drawn #{number}", drawn_answer(draw))
        read = asyncio.run(scores(answer, read_by_frames))
        word = draw.choice(("FIRST", "SECOND", "TIE"))
        obeyed = asyncio.run(scores(answer, lambda request, word=word: word))
        bypass = "" if read == (0.0, 1.0) else f"the verdict moved to {read}"
        if obeyed[0] not in (None, 0.5) or obeyed[1] not in (None, 0.5):
            bypass = f"{word} in both orders is a verdict: {obeyed}"
        yield Outcome(f"{name}: {answer[:200]!r}", 200, bypass=bypass)
