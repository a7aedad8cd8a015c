"""Measuring a ladder: every tier is asked the same tasks, and shares stand by part, level and family."""

from collections.abc import AsyncGenerator

from quality.distillation.ladder.measure import measured_ladder
from quality.distillation.ladder.tasks import LadderTask, ladder_tasks
from tests.quality.evaluation.knowing_tier import KnowingTier
from tiers.catalog.load import load_catalog
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Usage

LAPTOP = load_catalog("laptop")
HELD_OUT, UNTRAINED = (ladder_tasks(1, 2, part) for part in ("held-out", "untrained"))


class LevelTier(KnowingTier):
    """Knows the ladder's tasks up to `level`."""

    def __init__(self, number: int, level: int) -> None:
        super().__init__(number, lambda task: True, seed=1, per_level=1)
        self._level = level
        self._found: dict[str, LadderTask] = {task.prompt: task for task in HELD_OUT + UNTRAINED}

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        assert request.messages is not None
        task = self._found[request.messages[-1].content]
        yield Delta(text=task.answers[0] if task.level <= self._level else "I cannot say")
        yield Delta(finish_reason="stop")
        yield Delta(end=AnswerEnd(usage=Usage(prompt_tokens=10, completion_tokens=task.level)))


async def test_shares_stand_by_tier_part_level_and_family() -> None:
    tiers = [LevelTier(1, 2), LevelTier(2, 6)]
    seen: list[float] = []
    scores = await measured_ladder(
        tiers, LAPTOP, seed=1, per_level=2, concurrency=4, progress=lambda stage, share: seen.append(share)
    )
    assert [(one.tier, one.part) for one in scores] == [
        (1, "held-out"), (2, "held-out"), (1, "untrained"), (2, "untrained")
    ]  # fmt: skip
    assert [(one.share.count, one.share.total) for one in scores] == [(44, 132), (132, 132), (12, 36), (36, 36)]
    weak = scores[0]
    assert [weak.of(HELD_OUT, levels=pair).count for pair in ((1, 2), (3, 4), (5, 6))] == [44, 0, 0]
    assert (weak.of(HELD_OUT, family="sort").count, weak.of(HELD_OUT, family="sort").total) == (4, 12)
    assert weak.tokens == [task.level for task in HELD_OUT]
    assert seen[-1] == 1.0
