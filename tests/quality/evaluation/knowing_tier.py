"""A tier that knows selected graded tasks, and counts concurrent questions."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from quality.evaluation.task_set import Task, tasks
from tiers.tier import AnswerEnd, Delta, FinishReason, GenerationRequest, Tier, TierLoad, Usage


class KnowingTier(Tier):
    """Answers a task of `tasks(seed, per_level)` correctly if `knows` says so, else with "no idea".

    Bills 10 prompt tokens and `answer_tokens` per answer; 3 of them are reasoning, which is also streamed.
    """

    model = "m"
    max_context = 1000

    def __init__(
        self, number: int, knows: Callable[[Task], bool], *, seed: int, per_level: int, answer_tokens: int = 20
    ) -> None:
        self.number, self.name = number, f"tier-{number}"
        self._knows, self._answer_tokens = knows, answer_tokens
        self._tasks = {task.prompt: task for task in tasks(seed, per_level)}
        self.requests: list[GenerationRequest] = []
        self.most_at_once = 0
        self._at_once = 0
        self.error: Exception | None = None
        self.finish_reason: FinishReason = "stop"

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        return 10

    def load(self) -> TierLoad:
        return TierLoad()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        assert request.messages is not None
        task = self._tasks[request.messages[-1].text]
        for _ in range(task.level):  # later tasks overtake harder ones
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        text = task.answer if self._knows(task) else "no idea"
        yield Delta(reasoning=f"it must be {task.answer}")
        for piece in (text[:1], text[1:]):
            yield Delta(text=piece)
        yield Delta(finish_reason=self.finish_reason)
        self._at_once -= 1
        usage = Usage(prompt_tokens=10, completion_tokens=self._answer_tokens, reasoning_tokens=3)
        yield Delta(end=AnswerEnd(usage=usage))
