"""Long texts are processed in pieces with the same results, and other threads run meanwhile."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.tokenization import control_tokens
from inference_core.tokenization.control_tokens import ControlToken, ControlTokens, Marks, TextMask
from inference_core.tokenization.tokenizer import LONG_TEXT, Tokenizer
from tests.inference_core.tokenization.sample_texts import TEXTS

CONTROLS = ("<|im_start|>", "<|im_end|>", "<|", "[X]", "|>[")
HOSTILE = st.lists(
    st.sampled_from([*CONTROLS, "<|im_", "<", "[", " ", "\n ", "a", "é", "\U00100000"]), max_size=30
).map("".join)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@given(text=HOSTILE)
def test_control_tokens_are_found_wherever_a_window_ends(size: int, text: str) -> None:
    controls = ControlTokens([ControlToken(token, number) for number, token in enumerate(CONTROLS)])
    whole = list(controls.split(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_tokens, "_WINDOW", size)
        assert list(controls.split(text)) == whole


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@given(text=HOSTILE)
def test_no_control_token_is_left_in_a_masked_text_wherever_a_window_ends(size: int, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_tokens, "_WINDOW", size)
        disguise = TextMask(Marks(CONTROLS), [text])
        disguised = disguise.apply(text)
        assert disguise.remove(disguised) == text
        assert len(disguised) == len(text)
    # Nor does one begin in it that a template's own text goes on with.
    for control in CONTROLS:
        for cut in range(len(control)):
            joined = disguised + control[cut:]
            assert all(joined.find(other) in (-1, *range(len(disguised), len(joined))) for other in CONTROLS)


def test_white_space_before_a_control_token_that_swallows_it_takes_no_longer_than_it_is_long() -> None:
    controls = ControlTokens([ControlToken("<b>", 2, left_strip=True)])

    assert list(controls.split(" " * 1_000_000 + "<b>")) == [2]
    assert list(controls.split(" " * 1_000_000)) == [" " * 1_000_000]


@given(text=st.one_of(st.text(), st.sampled_from(TEXTS)), seed=st.text(min_size=1, max_size=9))
def test_a_long_text_has_the_tokens_that_it_has_without_a_batch(smollm2: Tokenizer, text: str, seed: str) -> None:
    long = text + seed * (LONG_TEXT // len(seed) + 1)

    assert smollm2.encode(long) == smollm2._vocabulary.backend.encode(long, add_special_tokens=False).ids


def test_others_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    started, ended = threading.Event(), threading.Event()

    def encode() -> None:
        started.set()
        smollm2.encode("the fox jumps " * 40_000)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait()
    turns = 0
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 10


def test_counting_makes_no_list(smollm2: Tokenizer) -> None:
    pieces = smollm2.chat_pieces([{"role": "user", "content": "Hello there"}])
    encoded = smollm2.encode_pieces(pieces)

    assert len(encoded) == len(encoded.ids())
    assert encoded.ids() == smollm2.encode_chat([{"role": "user", "content": "Hello there"}])
