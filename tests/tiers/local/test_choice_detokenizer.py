"""The fast path of a choice gives the same result as the general one."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_core.protocol import SequenceOutput, TokenLogprob
from inference_core.protocol.commands import Evidence, TokenEvidence
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.local.choice_detokenizer import ChoiceDetokenizer
from tiers.tier import Delta

TEXTS = st.text(st.sampled_from("ab né🙂漢END\n"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("abEND é🙂"), min_size=1, max_size=4), max_size=3)


def said(deltas: list[list[Delta]]) -> list[list[tuple[str, list[int], str | None]]]:
    return [[(delta.text, delta.token_ids, delta.finish_reason) for delta in step] for step in deltas]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, stops=STOPS, cut=st.integers(0, 3), control=st.integers(0, 30))
def test_tokens_are_the_same_with_and_without_log_probabilities(
    tokenizer: Tokenizer, text: str, stops: list[str], cut: int, control: int
) -> None:
    ids = tokenizer.encode(text)
    ids = [*ids[: len(ids) - cut], *tokenizer.encode("ab")]
    ids.insert(min(control, len(ids)), tokenizer.eos_token_ids[0])
    short, long = ChoiceDetokenizer(0, tokenizer, tuple(stops)), ChoiceDetokenizer(0, tokenizer, tuple(stops))
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


def told(choice: ChoiceDetokenizer, tokenizer: Tokenizer, text: str, **ending: object) -> str:
    outputs = [SequenceOutput(request_id="r", index=0, token_ids=[token]) for token in tokenizer.encode(text)]
    outputs.append(SequenceOutput(request_id="r", index=0, token_ids=[], finish_reason="stop", **ending))
    return "".join(delta.text for output in outputs for delta in choice.push(output))


def test_the_stop_string_is_part_of_the_answer_if_that_is_asked_for(tokenizer: Tokenizer) -> None:
    text = "one two three four"
    assert told(ChoiceDetokenizer(0, tokenizer, (" three",)), tokenizer, text) == "one two"
    assert told(ChoiceDetokenizer(0, tokenizer, (" three",), include_stop=True), tokenizer, text) == "one two three"


def test_a_stop_string_in_the_middle_of_a_token_is_included_to_its_end_and_no_further(tokenizer: Tokenizer) -> None:
    assert (
        told(ChoiceDetokenizer(0, tokenizer, ("o th",), include_stop=True), tokenizer, "one two three") == "one two th"
    )


def test_the_text_of_a_stop_token_is_part_of_the_answer_if_that_is_asked_for(tokenizer: Tokenizer) -> None:
    (word,) = tokenizer.encode(" three")
    end = tokenizer.eos_token_ids[0]
    assert told(ChoiceDetokenizer(0, tokenizer, ()), tokenizer, "one two", stop_token_id=word) == "one two"
    assert told(ChoiceDetokenizer(0, tokenizer, (), include_stop=True), tokenizer, "one two", stop_token_id=word) == (
        "one two three"
    )
    assert (
        told(ChoiceDetokenizer(0, tokenizer, (), include_stop=True), tokenizer, "one two", stop_token_id=end)
        == "one two"
    )


def test_the_minimum_tokens_match_no_stop_string(tokenizer: Tokenizer) -> None:
    text = "stop one stop two"
    least = len(tokenizer.encode("stop one"))
    assert told(ChoiceDetokenizer(0, tokenizer, ("stop",), min_tokens=least), tokenizer, text) == "stop one "
    assert told(ChoiceDetokenizer(0, tokenizer, ("stop",)), tokenizer, text) == ""


def test_offsets_count_characters_of_the_text_not_of_the_tokens(tokenizer: Tokenizer) -> None:
    choice, text = ChoiceDetokenizer(0, tokenizer, ()), "a 🙂 b"
    ids = tokenizer.encode(text)
    outputs = [
        SequenceOutput(request_id="r", index=0, token_ids=[i], logprobs=[TokenLogprob(i, -1.0, [])]) for i in ids
    ]
    logprobs = [logprob for output in outputs for delta in choice.push(output) for logprob in delta.logprobs or []]
    assert len(logprobs) == len(ids)
    assert [logprob.start for logprob in logprobs][-1] == len(text) - 2
    assert text[logprobs[-1].start :] == " b"


def test_evidence_goes_out_with_its_tokens_and_is_dropped_with_those_behind_a_stop_string(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three four")
    choice = ChoiceDetokenizer(0, tokenizer, (" three",))
    deltas: list[Delta] = []
    for index, token in enumerate(ids):
        evidence = Evidence(tokens=[TokenEvidence(-1.0, 0.5, float(index))])
        deltas += choice.push(SequenceOutput(request_id="r", index=0, token_ids=[token], evidence=evidence))
    kept = [token for delta in deltas for token in delta.token_ids]
    margins = [token.margin for delta in deltas if delta.evidence is not None for token in delta.evidence.tokens]
    assert kept == ids[:2]
    assert margins == [0.0, 1.0]


def test_the_end_names_the_stop_string_that_made_it(tokenizer: Tokenizer) -> None:
    outputs = [
        SequenceOutput(request_id="r", index=0, token_ids=[token]) for token in tokenizer.encode("one two three")
    ]
    for stops, expected in (((" x", " three"), " three"), ((" x",), None)):
        choice = ChoiceDetokenizer(0, tokenizer, stops)
        ended = SequenceOutput(request_id="r", index=0, token_ids=[], finish_reason="stop")
        deltas = [delta for output in [*outputs, ended] for delta in choice.push(output)]
        assert (deltas[-1].finish_reason, deltas[-1].stop_sequence) == ("stop", expected)
