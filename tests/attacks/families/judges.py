"""Answers that speak to the judge who compares them with others."""

import asyncio
from collections.abc import Iterator
from random import Random

from tests.attacks.targets import Target
from tests.hostile.target import Outcome, attack_class
from tests.quality.judges.scripted_replies import Reply


@attack_class("answers that address their judge", 900, "open")
def judged_answers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Wrong answers that ask for a verdict, close their frame or play another turn, in five languages, in code and in
    JSON, in either place: a judge's model that reads by the frames finds them worse, and one that obeys, by meaning or
    word by word, gives no verdict."""
    from quality.judges.pairwise import PairwiseJudge
    from tests.quality.judges.injected_answers import (
        ANSWERS,
        GOOD,
        QUESTION,
        WORDS,
        drawn_answer,
        obedient,
        read_by_frames,
    )
    from tests.quality.judges.scripted_replies import by, compared_in
    from tests.quality.loop_world import ScriptedTier

    fixed = list(ANSWERS.items())
    draw.shuffle(fixed)
    fixed = fixed[: count // 2]

    async def scores(answer: str, reply: Reply) -> tuple[float | None, float | None]:
        judge = PairwiseJudge(ScriptedTier(reply=reply))
        own = await judge.judge(prompt=QUESTION, answer=answer, reference_answer=GOOD)
        turned = await judge.judge(prompt=QUESTION, answer=GOOD, reference_answer=answer)
        return own.score, turned.score

    for number in range(count):
        name, answer = fixed[number] if number < len(fixed) else (f"drawn #{number}", drawn_answer(draw))
        read = asyncio.run(scores(answer, by(read_by_frames)))
        word = draw.choice(WORDS)
        obeyed = asyncio.run(scores(answer, lambda request: obedient(compared_in(request))))
        repeated = asyncio.run(scores(answer, lambda request, word=word: word))  # type: ignore[misc]
        bypass = "" if read == (0.0, 1.0) else f"the verdict moved to {read}"
        if {*obeyed, *repeated} != {None}:
            bypass = f"a judge that obeys has a verdict: {obeyed}, {word} {repeated}"
        yield Outcome(f"{name}: {answer[:200]!r}", 200, bypass=bypass)


@attack_class("answers that move weak judges", 400, "open")
def moving_answers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Pairs with words to the judge in nine languages and in codes, flattery or padding, before scripted judges that
    obey the last instruction, prefer the first, the longer or the flattering, or all of it: each abstains or says the
    truth."""
    from tests.quality.judges.hostile_pairs import hostile_pairs
    from tests.quality.judges.weak_judges import JUDGES, found_by, truth_of

    weak = [name for name in JUDGES if "errs" not in name and "half of its readings" not in name]
    pairs = hostile_pairs(draw.randrange(1 << 30))
    draw.shuffle(pairs)
    for number in range(count):
        pair, name = pairs[number % len(pairs)], draw.choice(weak)
        found = asyncio.run(found_by(JUDGES[name], pair, draw))
        bypass = f"said {truth_of(found.verdict)}, which is {pair.truth}" if found.fell else ""
        yield Outcome(f"#{number} {name}, {pair.kind}: {pair.answer[:120]!r}", 200, bypass=bypass)


_PROGRAM = "def add(a, b):\n    return a + b"
_BROKEN = ("def add(a, b)\n    return a + b", "```python\ndef add(a, b:\n```", "def add(a, b):\nreturn a +")
_OTHER = (
    "```javascript\nconst add = (a, b) => a + b;\n```", "```\nfunction add(a, b) { return a + b; }\n```",
    "```\n$ pip install add\n```", "```rust\nfn add(a: i64) -> i64 { a }\n```", "```\n>>> add(1, 2)\n3\n```",
)  # fmt: skip
_PROSE = ("It is hard to say.", "One adds both.\n```", "```\n", "I am sorry, I cannot do that.\n```\nnothing\n```")
_EMPTY = ("", " ", "\n", "```\n```")
_NO_PROGRAM = (*_BROKEN, *_OTHER, *_PROSE, *_EMPTY)
_CODE = (
    "Write a Python function add(a, b).",
    "Write a talk about the Python class that I give.",
    "Fix this code: def add(",
)
_JSON = ("Return the person as a JSON object.", "My JSON lacks something. What?")
_NUMBERS = ("How many are 3 + 4? Answer with the number only.", "Which one?\nA. red\nB. blue\nC. green")
_FORM = {"type": "json_object"}


@attack_class("answers that cannot be compared", 1200, "open")
def incomparable_answers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Pairs of broken programs, prose with stray fences, other languages, broken JSON, references without a final
    answer and nothing at all, to every kind of question that a rule judges: no rule labels one."""
    from quality.judges.calibration import calibrate
    from quality.judges.known_pairs import graded_pairs
    from quality.judges.panel import Panel, rule_based_judges
    from quality.judges.rules import SimilarityJudge

    judges, known = rule_based_judges(), graded_pairs()
    trusted = {judge.name: asyncio.run(calibrate(judge, known)) for judge in judges}
    panel = Panel([*judges, SimilarityJudge()], trusted)
    for number in range(count):
        # The reference never has what was asked for.
        prompt, answers, references = draw.choice(
            (
                (draw.choice(_CODE), (*_NO_PROGRAM, _PROGRAM), _NO_PROGRAM),
                (draw.choice(_JSON), (*_PROSE, *_EMPTY, '{"a": 1', "{'a': 1}"), (*_PROSE, *_EMPTY, '{"a": 1', "a: 1")),
                (draw.choice(_NUMBERS), (*_PROSE, *_EMPTY, "7", "A"), (*_PROSE, *_EMPTY)),
            )
        )
        answer, reference = draw.choice(answers), draw.choice(references)
        form = _FORM if prompt in _JSON and draw.random() < 0.5 else None
        finding = asyncio.run(
            panel.judge(prompt=prompt, answer=answer, reference_answer=reference, response_format=form)
        )
        bypass = "" if finding.label is None else f"{finding.judge} says {finding.label}: {finding.reason}"
        yield Outcome(f"#{number} {prompt[:40]!r}: {answer[:60]!r}, {reference[:60]!r}", 200, bypass=bypass)
