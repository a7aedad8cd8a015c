"""Streaming text equals whole text, and never holds half a character."""

from hypothesis import given
from hypothesis import strategies as st

from inference_core.tokenization.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.inference_core.tokenization.sample_texts import REPRESENTABLE


def chunked(ids: list[int], sizes: list[int]) -> list[list[int]]:
    chunks, rest = [], ids
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    return [*chunks, rest]


@given(ids=st.lists(st.integers(0, 49155), max_size=40), sizes=st.lists(st.integers(0, 4), max_size=20))
def test_any_ids_in_any_chunks_give_the_text_of_the_whole(smollm2: Tokenizer, ids: list[int], sizes: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(smollm2)

    parts = [detokenizer.push(chunk) for chunk in chunked(ids, sizes)]

    assert "".join(parts) + detokenizer.flush() == smollm2.decode(ids)


@given(text=REPRESENTABLE, sizes=st.lists(st.integers(0, 3), max_size=30))
def test_valid_text_streams_without_a_replacement_character(smollm2: Tokenizer, text: str, sizes: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(smollm2)
    shown = ""
    for chunk in chunked(smollm2.encode(text), sizes):
        shown += detokenizer.push(chunk)
        assert text.startswith(shown)

    assert shown == text
    assert detokenizer.flush() == ""


@given(text=st.text(min_size=1), cut=st.integers(1, 3))
def test_text_cut_inside_a_character_ends_with_a_replacement(smollm2: Tokenizer, text: str, cut: int) -> None:
    alphabet = {smollm2.token_bytes(i): i for i in range(17, 400) if len(smollm2.token_bytes(i)) == 1}
    content = text.encode()[:-cut]
    ids = [alphabet[content[i : i + 1]] for i in range(len(content)) if content[i : i + 1] in alphabet]
    kept = b"".join(smollm2.token_bytes(i) for i in ids)
    detokenizer = IncrementalDetokenizer(smollm2)

    shown = "".join(detokenizer.push([i]) for i in ids) + detokenizer.flush()

    assert shown == kept.decode("utf-8", "replace")


def test_an_emoji_appears_when_its_last_byte_does(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("\U0001f9d1")
    detokenizer = IncrementalDetokenizer(smollm2)

    assert len(ids) > 1
    assert [detokenizer.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["\U0001f9d1"]


def test_control_tokens_have_no_text(smollm2: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(smollm2)

    assert detokenizer.push([1, *smollm2.encode("hi"), 2]) == "hi"
