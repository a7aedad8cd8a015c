"""An answer goes on in another core as if nothing had happened, from its tokens alone."""

import msgspec
import pytest
from letters import GRAMMARS, SIZE, know_grammars

from inference_core.errors import InvalidRequestError
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.hash_model import hash_core

PROMPT = list(range(2, 40))
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40),
    "seeded": SamplingParams(temperature=1.0, seed=7, max_tokens=40),
    "penalised": SamplingParams(
        temperature=0.8, seed=11, max_tokens=40, repetition_penalty=1.3, presence_penalty=0.5, min_tokens=30
    ),
    "choice": SamplingParams(temperature=1.0, seed=3, max_tokens=40, grammar=GRAMMARS[0]),
    "regex": SamplingParams(temperature=1.0, seed=5, max_tokens=40, grammar=GRAMMARS[1]),
}


def drawn(request: AddRequest) -> tuple[list[int], str | None]:
    core = hash_core("m", slabs=64, max_context=512, vocab_size=SIZE, eos_probability=0.01)
    know_grammars(core)
    core.add(request)
    tokens: list[int] = []
    reason = None
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens += output.token_ids
            reason = output.finish_reason or reason
        core.check_integrity()
    return tokens, reason


@pytest.mark.parametrize("name", SAMPLINGS)
def test_an_answer_goes_on_exactly_from_any_of_its_tokens(name: str) -> None:
    request = AddRequest(
        request_id="a", model="m", prompt_token_ids=PROMPT, sampling=SAMPLINGS[name], deadline=1e9, strict_deadline=True
    )
    whole, reason = drawn(request)
    assert len(whole) > 1
    for count in range(1, len(whole)):
        rest = msgspec.structs.replace(request, drawn_token_ids=whole[:count])
        assert drawn(rest) == (whole[count:], reason), count


def test_what_leaves_nothing_to_draw_is_refused() -> None:
    core = hash_core("m", slabs=64, max_context=512)
    request = AddRequest(
        request_id="a",
        model="m",
        prompt_token_ids=PROMPT,
        sampling=SamplingParams(max_tokens=4),
        drawn_token_ids=[1, 2, 3, 4],
    )
    with pytest.raises(InvalidRequestError, match="none is left to draw"):
        core.add(request)
    with pytest.raises(InvalidRequestError, match="n = 1"):
        core.add(msgspec.structs.replace(request, drawn_token_ids=[1], n=2))
