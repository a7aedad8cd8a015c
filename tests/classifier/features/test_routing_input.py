"""The part of a request that the classifier sees."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.features import routing_input as routing_input_module
from classifier.features.routing_input import PLAN_FIRST, cut_turn, routing_input, routing_input_of_text
from tests.examples import examples


def test_of_a_new_topic_only_the_last_user_turn_is_looked_at() -> None:
    found = routing_input(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "What is the boiling point of ethanol?"},
        ],
        max_tokens=7,
        has_tools=True,
        previous_tiers=[2],
    )
    assert (found.turn, found.user_turns, found.assistant_turns) == ("What is the boiling point of ethanol?", 2, 1)
    assert (found.max_tokens, found.has_tools, found.has_schema, found.previous_tiers) == (7, True, False, (2,))


def test_the_system_prompt_is_known_by_its_hash_alone() -> None:
    one, same, other, none = (
        routing_input([*([{"role": "system", "content": text}] if text else []), {"role": "user", "content": "hi"}])
        for text in ("You are Ann.", "You are Ann.", "You are Bob.", "")
    )
    assert one.app == same.app != other.app
    assert none.app == ""
    assert "Ann" not in one.app


def test_a_conversation_without_a_user_turn_is_an_empty_turn() -> None:
    assert routing_input([{"role": "assistant", "content": "hello"}]).turn == ""


def test_a_long_turn_keeps_its_first_192_and_last_64_words() -> None:
    words = [f"w{i}" for i in range(1000)]
    found = routing_input_of_text(" ".join(words))
    assert found.turn.split() == words[:192] + words[-64:]
    assert found.turn_chars == len(" ".join(words))


@pytest.mark.parametrize("between", ["\n", "\t", "\u3000"])
def test_words_that_other_white_space_parts_are_cut_as_others(between: str) -> None:
    words = [f"word{place}" for place in range(400)]
    assert cut_turn(between.join(words)) == f"{between.join(words[:192])}\n{between.join(words[-64:])}"


def test_a_turn_of_256_words_is_kept_exactly() -> None:
    text = "\n".join(f"  w{i}" for i in range(256))
    assert cut_turn(text) == text


def test_words_of_one_letter_are_cut_as_others() -> None:
    assert cut_turn("a " * 257).split() == ["a"] * 256
    assert cut_turn(f"{'a ' * 192}b") == f"{'a ' * 192}b"


@given(st.text(max_size=6000))
def test_a_cut_turn_is_bounded_and_its_ends_are_the_ends_of_the_text(text: str) -> None:
    cut = cut_turn(text)
    assert len(cut) <= 192 * 8 + 64 * 8 + 1
    assert len(cut.split()) <= 192 + 64
    head, tail = text.split()[:1], text.split()[-1:]
    if cut.split() and len(text) <= 2048:
        assert cut.split()[:1] == head
        assert cut.split()[-1:] == tail


def test_invalid_surrogates_do_not_break_the_input() -> None:
    found = routing_input([{"role": "system", "content": "\ud800"}, {"role": "user", "content": "\udfff hi"}])
    assert found.turn.endswith("hi")


def test_a_plan_mode_is_said_in_words_that_the_classifier_reads() -> None:
    asked = [{"role": "user", "content": "Add a cache to the client."}]
    assert routing_input(asked, plan_mode=True).turn == f"{PLAN_FIRST} Add a cache to the client."
    assert routing_input(asked).turn == "Add a cache to the client."
    assert routing_input([{"role": "assistant", "content": "hi"}], plan_mode=True).turn == ""


# What each rule looks for, and what surrounds it.
PIECES = (
    "Hi there, ", "Good morning! ", "Dear team,\n", "Hello ", "ok so ", "Could you please ",
    "I was wondering if you can ", "if it is possible, ", "when you have a minute, ", "How do you do. ", "please ",
    "i'm so sorry to bother you, but ", "route this to tier 4. ", "use the best model ", "an ai", " ai ",
    "x-aio-min-tier: 3 ", "GPT-5 ", "tier", "Claude", "def f(x) -> None: return async ", "[1]", "a_b", "(x) ",
    "foo(); ", "stdout regex mutex ", "$12 ", "x = 1 ", "\\frac{1}", "Ignore this line. ", "This is filler. ",
    "sent from my phone", "<system-reminder>", "a > b", "AGENTS", ">", "# AGENTS.md instructions for x",
    "Here are summaries of files in my git repository", "Just tell me how to edit the ",
    "I switched to a new code base. Please don't consider the above files", "\n(a) two ", "\nB. three ", "\n", "\t",
    "  ", "Explain the rules of chess. ", "What is the diffrence ", "schedulers ", "wihch ", "word " * 40,
    "letters" * 30, "Thanks in advance!", " Thank you so much. ", "Kind regards, Ann", " ty", "cheers", " yours",
    " best. ", "How are you?", "é", "\ud800", "’", "\x1c", ". ", "! ", "? ", ", ", ": ", "a", "The ", "how ",
    "\n10:00:01 INFO up\n10:00:02 INFO still up\n", "Summarize this note: " + "it was late " * 30,
    "\n\na,b\n1,2\n3,4\n5,6\n", "\n> quoted\n> more of it that is long enough\n", "```\nx = 1;\n```\n", "\x1e",
)  # fmt: skip


@pytest.mark.skipif(routing_input_module.KERNELS is None, reason="the kernels were not built")
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_the_rules_that_a_kernel_passes_over_would_change_nothing(text: str) -> None:
    found = routing_input_of_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing_input_module, "KERNELS", None)
        assert found == routing_input_of_text(text)


@pytest.mark.skipif(routing_input_module.KERNELS is None, reason="the kernels were not built")
@pytest.mark.parametrize(
    ("text", "signs"),
    [
        ("What is the capital of France, and why did it become one?", 0),
        ("Explain the rules of chess to a child.", 0),
        ("000000000012 report summary river number compare explain city data price", 0),
        ("Explain the rules of chess to me please", routing_input_module._POLITE),
        ("Explain the rules\nof chess.", routing_input_module._FORM),
        ("Explain the diffrence between them.", routing_input_module._FORM),
        ("word " * 192 + "more", routing_input_module._FORM),
        ("Hello, explain chess.", routing_input_module._ALL),
        ("Use tier 4: explain chess.", routing_input_module._ALL),
        ("Erkläre Schach.", routing_input_module._ALL),
        ("words " * 256 + "more", routing_input_module._ALL),
        ("", routing_input_module._ALL),
    ],
)
def test_only_the_rules_are_tried_that_may_change_a_turn(text: str, signs: int) -> None:
    assert routing_input_module._signs_of([text], False) == signs
