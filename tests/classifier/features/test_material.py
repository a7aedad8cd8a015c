"""What is asked and what it is asked about: the classifier reads the request and a stand-in for its material."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.complexity.model import shipped_complexity
from classifier.features import line_kinds, material, request_words
from classifier.features.follow_up_model import FollowUpModel
from classifier.features.line_kinds import UNLIKE_PROSE, UNLIKE_PROSE_WITH_MARKS, kind_of
from classifier.features.material import HEAD, HEAD_LINES, STAND_IN, TAIL, TAIL_LINES, as_read, materials_of
from classifier.features.routing_input import RoutingInput, routing_input, routing_input_of_text
from classifier.local.own import LabelledRow, OwnOutcomes, as_labels
from classifier.native import KERNELS
from classifier.policy.decide import heuristic_prediction
from classifier.training.fitting.complexity import predicted
from classifier.training.metrics.complexity_report import first_day_tiers
from quality.verification.training_rows import encode_prompt, whole_classes_of
from tests.classifier.complexity.test_complexity_model import MODEL, PREDICTOR
from tests.examples import examples

_WRITTEN = tomllib.loads(Path(__file__).with_name("pasted_questions.toml").read_text())
QUESTIONS: list[dict[str, Any]] = _WRITTEN["questions"]
PASTED: dict[str, str] = {name: text.strip("\n") for name, text in _WRITTEN["materials"].items()}
CODE = ("code", "race")
SPOKEN = (
    "Ann: can we ship on Thursday?\nBob: only if the tests are done.\n\nAnn: who does the tests?\nBob: Ines, from "
    "tomorrow.\nAnn: fine."
)
PUZZLE = (
    "Three friends live in a row of houses of different colours. The one in the red house keeps bees, the one "
    "beside it plays the tuba, and the last one never opens a window. Every Monday the tuba is heard through "
    "two walls, every Tuesday through one, and on the other days not at all. The bees fly only on days on "
    "which the tuba rests, and the closed window is on the side of the green house. Nobody has moved since "
    "the spring, when the blue house was painted."
)


def turn_of(question: dict[str, Any], times: int = 1) -> str:
    pasted, ask = "\n".join([PASTED[question["about"]]] * times), question["ask"]
    if question.get("place") == "after":
        return f"{pasted}\n\n{ask}"
    return f"{ask} {pasted}" if question.get("place") == "same" else f"{ask}\n\n{pasted}"


def tiers_of(turns: list[str]) -> list[int]:
    classes = predicted(shipped_complexity(), [routing_input_of_text(turn) for turn in turns], MODEL)
    return [int(tier) for tier in first_day_tiers(np.asarray(classes))]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: f"{one['about']}: {one['ask'][:40]}")
def test_of_a_pasted_material_a_few_words_are_read_and_all_of_the_request(question: dict[str, Any]) -> None:
    read, last = as_read(turn_of(question)), PASTED[question["about"]].splitlines()[-1].strip()
    assert question["ask"] in read
    assert question["about"] in CODE or question["about"] == "json_line" or last not in read


@pytest.mark.parametrize("times", [1, 10])
def test_questions_about_pasted_material_go_where_the_question_does(times: int) -> None:
    tiers = tiers_of([turn_of(one, times) for one in QUESTIONS])
    within = [one["range"][0] <= tier <= one["range"][1] for one, tier in zip(QUESTIONS, tiers, strict=True)]
    assert np.mean(within) >= 0.9, [one for one, right in zip(QUESTIONS, within, strict=True) if not right]


@pytest.mark.parametrize("name", [name for name in PASTED if name not in (*CODE, "json_line")])
@pytest.mark.parametrize("form", ["Summarize the text in one sentence:\n\n{}", "{}\n\nSummarise the text above."])
def test_ten_times_as_much_of_a_material_reads_the_same(name: str, form: str) -> None:
    once, often, at_length = (as_read(form.format("\n".join([PASTED[name]] * times))) for times in (1, 10, 2000))
    assert once == often == at_length


@pytest.mark.parametrize(
    "text",
    [
        # Options, a word problem with its question at the end, requirements, a specification, equations.
        "Which of these is a prime number?\nA. 21\nB. 27\nC. 31\nD. 33",
        "A farmer has 17 sheep and buys 5 more every month. Wolves take 2 sheep in every month after the first. "
        "The barn holds 40 sheep, and lambs are born in April, one for every three sheep.\n\nHow many "
        "months until it is full?",
        "Write a command-line tool in Go.\n\nRequirements:\n- reads CSV from stdin\n- groups by the first column\n- "
        "prints totals sorted by value\n- exits with 2 for malformed rows\n\nKeep it under 80 lines.",
        "Design the storage of a chat service:\n\n1. messages are at most 4 KB\n2. a room has up to 10,000 members\n3. "
        "history is searched by word\n4. deletes are final within 24 hours\n\nSay what you would give up first.",
        "Solve for x and y:\n2x + 3y = 12\nx - y = 1",
        "Explain how I should structure the migration.\n\nWe have three services that share one database, two of them "
        "written in PHP and one in Go, and a nightly job that nobody owns. I am alone on this and have six weeks "
        "before the contract with the current host ends, so I want to move in small steps without a night of downtime.",
        "Place them.\n1. The person who bakes is next to Ann.\n2. Ben lives left of Cleo.\n3. Dan has a dog.\n"
        "4. The dog is not red.\n5. Eva is last.\n6. Ann is not first.\n7. Ben is not last.\n8. Cleo likes tea.",
        "A poem about the sea.\nTopic: storms\nTone: calm\nForm: haiku\nLength: three lines\nEnd: hope\nRhyme: none",
        "Who is telling the truth, and how do you know?\nAnn says that Ben lies.\nBen says that Cleo lies.",
        f"Here is a puzzle, solve it:\n\n{PUZZLE}",
        f"What follows from these rules of a game:\n\n- {PUZZLE}\n- Whoever speaks first loses.",
        "What is A + B?\nA: 3\nB: 4\nC: 5\nD: 6",
        "Tell me a joke.",
        "",
    ],
)  # fmt: skip
def test_what_says_what_is_to_be_done_is_no_material(text: str) -> None:
    assert as_read(text) is text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("log", "Any errors?\n2026-01-01 10:00:00 INFO up\n2026-01-01 10:00:01 INFO still up"),
        ("trace", f"Why?\n{PASTED['trace']}"),
        ("table", f"Why?\n{PASTED['table']}"),
        ("table", "Largest?\nname  size   owner\ncore  120    anna\nedge  98     bo"),
        ("data", f"Why?\n```json\n{PASTED['json']}\n```"),
        ("diff", f"Why?\n{PASTED['diff']}"),
        ("quote", f"Who?\n{PASTED['thread']}"),
        ("code", "What does it print?\n```\nx = [1]\nprint(x)\n```"),
        ("text", f"Summarise this.\n\n<document>\n{PASTED['article']}\n</document>"),
        ("text", f"Summarise this.\n---\n{PASTED['article']}"),
        ("text", f'Translate the text: "{PASTED["article"]}"'),
        ("text", f"{PASTED['mail']}\n\nIs coffee served?"),
        ("data", f"How many readings? {PASTED['json_line']}"),
        ("text", f"Summarize this call.\n\n{SPOKEN}"),
        ("text", f"{SPOKEN}\n\nWho does the tests?"),
        ("text", "Summarise the notes:\n\n" + "- we should move in May, what of it?\n" * 12),
        ("text", "Translate into German.\n\n" + "You must return it in 30 days. What if it is lost? Write. " * 8),
    ],
)  # fmt: skip
def test_a_material_is_known_by_its_form(kind: str, text: str) -> None:
    assert [one.kind for one in materials_of(text)] == [kind]


# Lines as programs write them, each with a number in three places.
WRITTEN = {
    "web server": '192.168.1.{} - - [04/Mar/2026:09:12:07 +0000] "GET /items/{} HTTP/1.1" 200 {}',
    "syslog": "<34>1 2026-03-04T09:12:{}Z web{} app - login failed for user{}",
    "key and value": "level=info ts=2026-03-04T09:12:07Z path=/a{} user={} took={}ms",
    "json lines": '{{"ts":{},"level":"info","user":{},"ms":{}}}',
    "seconds": "17000000{} INFO worker{} took {} ms",
    "csv with spaces": "{}, Ann Smith {}, Berlin, {}.50",
    "tabs": "{}\tAnn {}\tBerlin\t{}",
    "columns": "{}      Ann Smith     Berlin {}     {}",
    "folder": "-rw-r--r-- 1 root root {} Mar  4 09:{} file{}.txt",
    "settings": "APP_KEY_{}=abc{}{}",
    "sql": "INSERT INTO t VALUES ({}, 'a{}', {});",
    "html": "<tr><td>{}</td><td>Ann {}</td><td>{}</td></tr>",
    "commits": "3b18e51 Fix the parser {} of {} dates (#{})",
    "chat": "[10:{}] Ann: item {} is late by {} days",
    "measurements": "Temperature {}: {}.{} C",
    "addresses": "https://example.org/a/{}?x={}&y={}",
    "compiler": "src/main{}.c:{}:{}: warning: unused variable",
    "tests": "tests/test_a{}.py::test_b{} PASSED [ {}%]",
    "items": "- item {}: {} pieces at {} EUR",
}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("form", WRITTEN.values(), ids=WRITTEN)
def test_what_a_program_wrote_is_a_material_however_long(form: str, place: str) -> None:
    for count in (12, 120, 5000):
        written = "\n".join(form.format(number, 3 * number + 2, 7 * number + 5) for number in range(10, 10 + count))
        ask = "How many are there?"
        turn = f"{ask}\n\n{written}" if place == "before" else f"{written}\n\n{ask}"
        read = as_read(turn)
        assert ask in read
        assert len(read) < 110


def test_where_nothing_is_asked_the_beginning_of_the_material_is_the_request() -> None:
    assert as_read(PASTED["trace"]).startswith("Traceback (most recent call last)")
    assert as_read(PASTED["csv"]).startswith("order_id,customer")


@pytest.mark.parametrize(
    ("ask", "is_read"),
    [
        ("Find the race in this.", True),
        ("Translate this to Rust with equivalent ownership.", True),
        ("Implement a lock-free list based on this and prove it linearizable.", True),
        ("What language is this?", False),
        ("How many fields are there?", False),
        ("List the functions.", False),
        ("Summarize it in one sentence.", False),
    ],
)
def test_code_is_read_where_the_request_may_be_as_hard_as_it_is(ask: str, is_read: bool) -> None:
    for turn in (f"{ask}\n\n{PASTED['race']}", f"{PASTED['race']}\n\n{ask}"):
        assert ("c.mu.Lock()" in as_read(turn)) == is_read


@pytest.mark.parametrize(
    ("kinds", "turn"),
    [
        ([], "Is there any error?"),
        (["log"], f"Is there any error?\n\n{PASTED['log']}"),
        (["text"], f"{PASTED['mail']}\n\nWhen does it open?"),
        (["data", "table"], f"Compare.\n\n{PASTED['json']}\n\nand\n\n{PASTED['csv']}"),
        ([], f"Find the race.\n\n{PASTED['race']}"),
        ([], "\x1elog is what I have. How do I read it?\nPlease."),
    ],
)
def test_a_decision_says_what_was_not_read(kinds: list[str], turn: str) -> None:
    found = routing_input_of_text(turn)
    assert list(found.material) == kinds
    assert "\x1e" not in found.turn + found.request.turn
    assert PREDICTOR.read(found)[0].material == kinds


def log_of(line: str) -> str:
    lines = "\n".join(f"2026-01-01 10:00:{second} {line}" for second in range(10, 30))
    return f"Is there any error?\n\n{lines}"


QUIET, NOISY = (routing_input_of_text(log_of(line)) for line in ("INFO all is well", "ERROR segment 12 of /dev/sda"))


def test_the_classes_are_read_without_the_material_and_labels_with_it() -> None:
    (quiet, of_quiet), (noisy, of_noisy) = (PREDICTOR.read(one) for one in (QUIET, NOISY))
    assert quiet.classes == noisy.classes == PREDICTOR.read(QUIET.request)[0].classes
    assert QUIET.request.turn == NOISY.request.turn == "Is there any error? here is the log"
    assert "segment 12" in NOISY.turn
    assert of_quiet.embedding @ of_noisy.embedding < 0.9

    own = OwnOutcomes([label(QUIET, 1.0), label(NOISY, 0.0)] * 12, PREDICTOR.table)
    after = [PREDICTOR.read(msgspec.structs.replace(one, key="k"), own)[0].p_ok[0] for one in (QUIET, NOISY)]
    assert after[0] > after[1] + 0.5


def label(prompt: RoutingInput, score: float) -> LabelledRow:
    """A label of tier 1 for the key "k"."""
    turn = MODEL.encode(prompt)
    return LabelledRow(
        classes=PREDICTOR.classes(prompt, turn), whole=PREDICTOR.whole_classes(prompt, turn), embedding=turn.embedding,
        features=turn.features, scores=[score, np.nan, np.nan], weights=[1.0, 0.0, 0.0], key="k", app="", at=1.0,
    )  # fmt: skip


def test_by_class_labels_teach_of_the_turn_with_its_material_and_not_of_the_request() -> None:
    """Few labels, without a head that could tell the turns apart."""
    own = OwnOutcomes([label(NOISY, 0.0)] * 8, PREDICTOR.table)
    alike, bare = (msgspec.structs.replace(one, key="k") for one in (NOISY, NOISY.request))
    with_it, without = (PREDICTOR.read(one, own)[0] for one in (alike, bare))
    assert with_it.classes == without.classes
    assert PREDICTOR.read(alike)[0].p_ok == PREDICTOR.read(bare)[0].p_ok
    assert with_it.p_ok[0] < without.p_ok[0] - 0.05
    assert with_it.labels[0] > 3 > 1 > without.labels[0]
    assert with_it == PREDICTOR.prediction(alike, MODEL.encode(alike), own)


def test_labels_of_turns_without_material_and_of_earlier_releases_have_the_classes_of_the_request() -> None:
    plain = routing_input_of_text("Tell me a joke.")
    assert label(plain, 1.0).whole == []
    old = [replace(label(NOISY, 0.0), whole=())] * 8
    known, _ = as_labels([*old, label(plain, 1.0), label(NOISY, 0.0)])
    np.testing.assert_array_equal(known.whole[:9], known.classes[:9])
    assert (known.whole[9] != known.classes[9]).all()
    asked = msgspec.structs.replace(NOISY.request, key="k")
    assert PREDICTOR.read(asked, OwnOutcomes(old, PREDICTOR.table))[0].labels[0] > 4


def test_rows_for_heads_have_the_classes_of_the_request_and_the_features_of_the_turn() -> None:
    rows = [encode_prompt(MODEL, [{"role": "user", "content": log_of(line)}]) for line in ("INFO up", "ERROR 12 down")]
    bare = encode_prompt(MODEL, [{"role": "user", "content": "Is there any error? here is the log"}])
    assert rows[0].classes == rows[1].classes == bare.classes
    assert len({row.embedding for row in (*rows, bare)}) == len({row.features for row in (*rows, bare)}) == 3
    spec = {"feature_spec": bare.feature_spec, "classes": bare.classes}
    kept = [whole_classes_of(spec | {"features": row.features}, MODEL.manifest) for row in (*rows, bare)]
    read = [routing_input_of_text(log_of(line)) for line in ("INFO up", "ERROR 12 down")]
    wanted = [PREDICTOR.whole_classes(one, MODEL.encode(one)) for one in read]
    assert kept == [pytest.approx(wanted[0]), pytest.approx(wanted[1]), []]
    assert wanted[0] != wanted[1]


def test_a_turn_without_material_is_read_once() -> None:
    assert routing_input_of_text("Tell me a joke.\nA short one.").readings == ()


def test_without_the_classifier_a_material_does_not_make_a_request_harder() -> None:
    assert heuristic_prediction(QUIET).p_ok == heuristic_prediction(QUIET.request).p_ok


def said(p: float, *turns: str) -> RoutingInput:
    """Return the input for turns of a user, of which the last needs the earlier ones with probability `p`."""
    messages = [
        {"role": role, "content": text} for turn in turns for role, text in (("user", turn), ("assistant", "No."))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FollowUpModel, "p", lambda *_, **__: p)
        return routing_input(messages)


LOG, CSV = ("\n".join(PASTED[name].splitlines()[:4]) for name in ("log", "csv"))
ERRORS, TOTALS = f"Is there any error?\n\n{LOG}", f"What is the largest total?\n\n{CSV}"


def test_the_readings_of_a_turn_that_may_be_a_follow_up_are_both_without_material() -> None:
    asked, added = "Is there any error? here is the log", "What is the largest total? here is the table"
    for p in (0.8, 0.2):
        found = said(p, ERRORS, TOTALS)
        likely, other = (f"{asked} {added}", added) if p > 0.5 else (added, f"{asked} {added}")
        assert [reading.text for reading in found.readings] == [likely, other]
        assert [reading.weight for reading in found.readings] == pytest.approx([0.8, 0.2])
        assert (found.material, "Porto" in found.turn) == (("log", "table") if p > 0.5 else ("table",), True)
        assert ("timeout" in found.turn) == (p > 0.5)
        classes = [PREDICTOR.read(routing_input_of_text(text))[0].classes for text in (likely, other)]
        mixed = 0.8 * np.array(classes[0]) + 0.2 * np.array(classes[1])
        assert PREDICTOR.read(found)[0].classes == pytest.approx(mixed, abs=3e-4)


def test_one_reading_decides_where_it_is_certain_and_the_turn_keeps_the_material() -> None:
    joined, alone, plain = said(0.99, ERRORS, "and failures?"), said(0.01, "Hello", ERRORS), said(0.2, ERRORS, "Why?")
    assert [reading.text for reading in joined.readings] == ["Is there any error? here is the log and failures?"]
    assert [reading.text for reading in alone.readings] == ["Is there any error? here is the log"]
    assert joined.readings[0].weight == alone.readings[0].weight == 1.0
    assert all("timeout" in one.turn for one in (joined, alone))
    # The likelier reading brings no material; the other one does.
    assert [reading.text for reading in plain.readings] == ["Why?", "Is there any error? here is the log Why?"]
    assert (plain.turn, plain.material) == ("Why?", ())


PIECES = (
    "\x1e",
    *PASTED.values(), "Summarize this text in one sentence:", "How many rows are there?", "Why?", "```", "```python",
    "---", "\n", "\n\n", "> quoted", '"', "“", "- an item", "A. an option", "<document>", "</document>", "{", "}",
    "Dear Ann,", "word " * 50, "x" * 3000, "é", "\ud800", "下面的文章", "", ":", "?", "a,b,c", "1  2  3",
)  # fmt: skip
TURNS = st.lists(st.sampled_from(PIECES), max_size=10).flatmap(
    lambda pieces: st.sampled_from(["\n", " ", "\n\n"]).map(lambda between: between.join(pieces))
)


@settings(max_examples=examples(300), deadline=None)
@given(TURNS | st.text(max_size=400))
def test_materials_are_parts_of_the_turn_in_order_and_the_rest_is_read(text: str) -> None:
    text = text.replace(STAND_IN, " ")
    found, end = materials_of(text), 0
    for one in found:
        assert end <= one.start <= one.end <= len(text)
        end = one.end
    read = as_read(text)
    starts, ends = [0, *(one.end for one in found)], [*(one.start for one in found), len(text)]
    outside = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    if any(character.isalnum() for part in outside for character in part):
        assert all(part in read for part in outside)
    assert len(read) <= len(text) + 16 * len(found)


@settings(max_examples=examples(50), deadline=None)
@given(TURNS, st.integers(1, 400))
def test_only_so_many_lines_of_a_turn_are_looked_at(text: str, times: int) -> None:
    seen: list[str] = []

    def count(line: str) -> str:
        seen.append(line)
        return kind_of(line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(material, "kind_of", count)
        materials_of(f"{text}\n" * times)
    assert len(seen) <= HEAD_LINES + TAIL_LINES
    assert sum(map(len, seen)) <= HEAD + TAIL


# Words of requests and of programs, whole and cut, and characters next to which they are read otherwise.
WORDS = sorted(
    {word.rstrip("*+") + end for word in request_words.words_by_bit() for end in ("", "s", "en")}
    | UNLIKE_PROSE
    | UNLIKE_PROSE_WITH_MARKS
    | {"the", "of", "a", "x", "Error", "foo.Exception", "12", "1.5", "2024-01-02", "10:11:12", "_"}
)
MARKS = st.sampled_from(
    [*" \n\t:=(){}[]<>\"',;.?!-+*/|&$#@%_~\\", *"“”„«’—–•²½\xa0éßαя下：？ſİ", "  ", "\n\n", ": ", ", "]
)
MIXED = st.lists(st.sampled_from(WORDS) | MARKS, max_size=40).map("".join)
SPACED = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
# What the rules look for at the beginning of a line and in a request, by their own patterns.
ASCII = st.characters(min_codepoint=32, max_codepoint=126)
OF_PROGRAMS = st.one_of(
    *(st.from_regex(rf"\A(?:{pattern})", alphabet=ASCII) for pattern in line_kinds._OPENINGS.values())
)
ASKED = st.one_of(
    *(
        st.from_regex(pattern)
        for pattern in (request_words.ON_TEXT, request_words.TEXT, request_words.POINTS, request_words.TASK)
    ),
    st.sampled_from(["Write it to them", "Who is it?", "It says:", "Hi", "My own"]),
)
PROSE = ["The bees fly only on days on which the tuba rests. " * 9, "I keep bees, and I sleep well. " * 20, PUZZLE]
LINES = st.one_of(
    OF_PROGRAMS,
    st.tuples(MIXED, SPACED, MIXED).map("".join),
    st.sampled_from(["- an item", "1. one", "A. an option", "", "Ann: hi", "a, b, c", "- x/1", "word " * 30, '"a b']),
)
NEAR_TURNS = st.one_of(
    st.tuples(ASKED, st.sampled_from(["\n\n", ": ", "\n\nDear Ann,\n"]), st.sampled_from(PROSE)).map("".join),
    st.tuples(st.sampled_from(PROSE), st.sampled_from(["\n\n", "\n\n- x\n\n"]), ASKED).map("".join),
    st.lists(st.tuples(LINES, st.sampled_from([1, 1, 1, 2, 4, 8, 40])), min_size=1, max_size=8).map(
        lambda lines: "\n".join(line for line, times in lines for _ in range(times))
    ),
)


@pytest.mark.skipif(KERNELS is None, reason="the kernels were not built")
@settings(max_examples=examples(1000), deadline=None)
@given(NEAR_TURNS | TURNS | MIXED)
def test_what_the_kernel_reads_as_it_is_has_no_material_by_the_rules(text: str) -> None:
    assert_read_alike(text)


@pytest.mark.skipif(KERNELS is None, reason="the kernels were not built")
@settings(max_examples=examples(1000), deadline=None)
@given(OF_PROGRAMS, st.sampled_from(["", " and so on", " of it {", " of it:"]))
def test_the_kernel_takes_no_lines_of_a_program_for_prose(line: str, rest: str) -> None:
    assert_read_alike("\n".join([line + rest] * 4))


def assert_read_alike(text: str) -> None:
    if KERNELS.has_no_material(material._rules(), text):
        assert STAND_IN not in text
        assert materials_of(text) == []


@pytest.mark.skipif(KERNELS is None, reason="the kernels were not built")
@pytest.mark.parametrize(
    "text",
    [
        "Which of these is a prime number?\nA. 21\nB. 27\nC. 31\nD. 33",
        "Write a command-line tool in Go.\n\nRequirements:\n- reads CSV from stdin\n1. fast",
        "Clue(s): it’s “there”, he said. " * 9,
        PUZZLE + "\n\nWho lives in the red house?",
        "\n".join(f"{number}. Explain in a few words what is meant by {'x' * number}." for number in range(1, 60)),
    ],
)
def test_the_kernel_knows_usual_requests(text: str) -> None:
    assert KERNELS.has_no_material(material._rules(), text)


def test_words_that_speak_against_a_material_are_found_by_the_rules() -> None:
    certain = {2: request_words.MAKING, 3: request_words.MYSELF, 5: request_words.TASK}
    missed = [
        word
        for word, bits in request_words.words_by_bit().items()
        for place, pattern in certain.items()
        if bits >> place & 1 and not pattern.search(f"a {word.replace('*', '').replace('+', 'x')} b")
    ]
    assert missed == []
