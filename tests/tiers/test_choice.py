"""A choice says the same of its tokens by the short way, which nearly all take, as by the long one."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_core.protocol import SequenceOutput, TokenLogprob
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.choice import Choice
from tiers.tier import Delta

TEXTS = st.text(st.sampled_from("ab né🙂漢END\n"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("abEND é🙂"), min_size=1, max_size=4), max_size=3)


def said(deltas: list[list[Delta]]) -> list[list[tuple[str, list[int], str | None]]]:
    return [[(delta.text, delta.token_ids, delta.finish_reason) for delta in step] for step in deltas]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, stops=STOPS, cut=st.integers(0, 3), control=st.integers(0, 30))
def test_tokens_alone_are_told_as_tokens_with_log_probabilities_are(
    tokenizer: Tokenizer, text: str, stops: list[str], cut: int, control: int
) -> None:
    ids = tokenizer.encode(text)
    ids = [*ids[: len(ids) - cut], *tokenizer.encode("ab")]
    ids.insert(min(control, len(ids)), tokenizer.eos_token_ids[0])
    short, long = Choice(0, tokenizer, tuple(stops)), Choice(0, tokenizer, tuple(stops))
    outputs = [SequenceOutput(request_id="r", index=0, token_ids=[token]) for token in ids]
    outputs.append(SequenceOutput(request_id="r", index=0, token_ids=[], finish_reason="length"))
    with_logprobs = [
        SequenceOutput(
            request_id="r",
            index=0,
            token_ids=o.token_ids,
            logprobs=[TokenLogprob(token, -1.0, []) for token in o.token_ids],
            finish_reason=o.finish_reason,
        )
        for o in outputs
    ]

    assert said([short.push(o) for o in outputs]) == said([long.push(o) for o in with_logprobs])
    assert short.completion_tokens == long.completion_tokens
