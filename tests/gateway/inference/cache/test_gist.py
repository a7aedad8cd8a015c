"""What wordings of a prompt have one gist, and that every other difference makes another."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inference.similar_prompts import gist
from tests.examples import examples
from tests.gateway.inference.cache.prompt_edits import EDITS, words_of

WORDS = ["how", "do", "I", "the", "momentum", "speed", "doubles", "not", "two", "7", "3.5", "Paris", "escobar", "duran"]
MARKS = ["", "", "", "", ",", "?", "!", ".", ";", "-", "*", "+", "(", ")", "/", "%"]
PROMPTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(MARKS)), min_size=2, max_size=9).map(
    lambda parts: " ".join(word + mark for word, mark in parts)
)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("What is the capital of France?", "what is the capital of France"),
        ("What's the capital of France?", "What is the capital of France?"),
        ("Explain how tides work.", "Please explain how tides work"),
        ("Explain how tides work.", "Hello, could you please explain how tides work."),
        ("Why don’t cats purr?", "Why don't cats purr?"),
        ("Why don't cats purr?", "why do not cats purr"),
        ("How can I cancel?", "How can I cancel? Thanks!"),
        ("Name  3 lakes in Italy. ", "Name 3   lakes in Italy."),
        ("There are 175 diamonds.  How many of them are mine?", "There are 175 diamonds.\nHow many of them are mine?"),
        ("A cat cannot fly, can it?", "A cat can't fly, can it?"),
        ("McAdam built roads.", "mcAdam built roads."),
    ],
)
def test_wordings_of_one_prompt_have_one_gist(a: str, b: str) -> None:
    assert gist(a) == gist(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Find the degree of Q(sqrt(2), sqrt(3)) over Q.", "Find the degree of Q(sqrt(2)*sqrt(3)) over Q."),
        ("When speed doubles the momentum, what rises?", "When momentum doubles the speed, what rises?"),
        ("Where is the name escobar from?", "Where is the name duran from?"),
        ("You overtake the second person. Where are you?", "You overtake the last person. Where are you?"),
        ("Add 15 and 3 apples.", "Add 15 and 4 apples."),
        ("Divide 6 by 3.", "Divide 3 by 6."),
        ("Is this allowed here?", "Is this not allowed here?"),
        ("Who is president of France?", "Who was president of France?"),
        ("What is 5!", "What is 5"),
        ("not (p and q)", "(not p) and q"),
        ("Songs by the police", "Songs by police"),
        ("WHO advice on sleep", "who advice on sleep"),
        ("Is it cold in Polish towns?", "Is it cold in polish towns?"),
        ("It is raining.", "It is raining?"),
        ("Can you play chess?", "Play chess."),
        ("Add 3 apples.", "And 3 apples."),
        ("Say please to me.", "Say to me."),
        # The form is what they are about.
        ("Translate to French: I'm here", "Translate to French: I am here"),
        ("Is don't one word?", "Is do not one word?"),
        ('How long is "a  b"?', 'How long is "a b"?'),
        ("How long is 'a  b'?", "How long is 'a b'?"),
        ("Why does this fail?\nif x:\n  y\n  z", "Why does this fail?\nif x:\n  y\nz"),
        ("Roses are red\nviolets are blue", "Roses are red violets are blue"),
        ("x = a  ; y", "x = a ; y"),
    ],
)
def test_prompts_that_may_want_other_answers_have_other_gists(a: str, b: str) -> None:
    assert gist(a) != gist(b)


def test_a_gist_is_the_prompt_without_what_says_nothing() -> None:
    assert gist("Hello, could you please explain  how tides don't work. ") == "explain how tides do not work"
    assert gist("Speed doubles?") == "speed doubles?"


@settings(max_examples=examples(300), deadline=None)
@given(prompt=PROMPTS, seed=st.integers(0, 2**16))
@pytest.mark.parametrize("edit", [one for one in EDITS if not one.harmless], ids=lambda one: one.name)
def test_a_word_number_negation_symbol_or_place_that_differs_makes_another_gist(edit, prompt: str, seed: int) -> None:  # type: ignore[no-untyped-def]
    edited = edit.edit(prompt, random.Random(seed), words_of(" ".join(WORDS)))
    if edited is not None:
        assert gist(edited) != gist(prompt)


@settings(max_examples=examples(300), deadline=None)
@given(prompt=PROMPTS, place=st.integers(0, 8))
def test_a_word_more_or_less_makes_another_gist(prompt: str, place: int) -> None:
    words = prompt.split(" ")
    place %= len(words)
    assert gist(" ".join(words[:place] + words[place + 1 :])) != gist(prompt)
    assert gist(" ".join([*words[:place], "sea", *words[place:]])) != gist(prompt)
