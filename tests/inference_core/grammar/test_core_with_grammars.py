"""A core with grammars: answers follow them, other requests are unaffected, and nothing is left behind."""

import gc
import json
import threading
import weakref

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.engine.core import Core
from inference_core.errors import InvalidRequestError
from inference_core.grammar.remote import RemoteMatcher
from inference_core.protocol import AddRequest, Grammar, Knobs, SamplingParams, SequenceOutput
from tests.examples import examples
from tests.inference_core.grammar.byte_vocabulary import SIZE, ByteVocabulary
from tests.inference_core.grammar.hostile_grammars import LATE
from tests.inference_core.hash_model import GREEDY, HashModelRunner

VOCABULARY = ByteVocabulary()
SLAB_BYTES, BLOCK = 1024, 4
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["ab", "na"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
AS_PERSON = Grammar(kind="json_schema", text=json.dumps(PERSON))


class World:
    """A core of one hash model over the byte vocabulary, and what it said of each choice."""

    def __init__(self, slabs: int = 16, **knobs: object) -> None:
        memory = bytearray(slabs * SLAB_BYTES)
        self.runner = HashModelRunner("m", memory, SLAB_BYTES, block_size=BLOCK, vocab_size=SIZE, eos_probability=0.02)
        self.core = Core(
            {"m": self.runner},
            arena_bytes=len(memory),
            slab_bytes=SLAB_BYTES,
            knobs=Knobs(**knobs),  # type: ignore[arg-type]
            seed=0,
            vocabulary_of=lambda info: VOCABULARY,
        )
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], SequenceOutput] = {}

    def add(self, request_id: str, sampling: SamplingParams, prompt: tuple[int, ...] = (1, 2, 3), n: int = 1) -> None:
        request = AddRequest(request_id=request_id, model="m", prompt_token_ids=list(prompt), sampling=sampling, n=n)
        self.core.add(request)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for output in self.core.step():
                key = (output.request_id, output.index)
                self.tokens.setdefault(key, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    self.ends[key] = output
            self.core.check_integrity()

    def drain(self) -> None:
        for _ in range(5000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("work is left")

    def text(self, request_id: str, index: int = 0) -> str:
        return VOCABULARY.text(self.tokens[request_id, index])


def bound(seed: int, max_tokens: int = 120, grammar: Grammar = AS_PERSON) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, grammar=grammar)


def test_answers_that_stop_are_valid_and_those_that_are_cut_say_so() -> None:
    world = World()
    for seed in range(12):
        world.add(f"r{seed}", bound(seed, max_tokens=30 if seed % 3 == 0 else 120), prompt=(seed + 1, 2))
    world.drain()
    reasons = {key: end.finish_reason for key, end in world.ends.items()}
    assert set(reasons.values()) == {"stop", "length"}
    for (request_id, index), reason in reasons.items():
        if reason == "stop":
            jsonschema.validate(json.loads(world.text(request_id, index)), PERSON)


def test_neighbours_without_a_grammar_draw_what_they_draw_alone() -> None:
    world = World()
    free = SamplingParams(temperature=1.0, max_tokens=40)
    for seed in range(5):
        world.add(f"bound{seed}", bound(seed), prompt=(seed + 1, 2))
        world.add(f"free{seed}", SamplingParams(temperature=1.0, max_tokens=40, seed=seed), prompt=(seed + 5, 9))
    world.drain()
    for seed in range(5):
        assert world.tokens[f"free{seed}", 0] == world.runner.expected_tokens((seed + 5, 9), 40, free, seed)


def test_choices_of_one_request_follow_the_grammar_each_on_its_own() -> None:
    world = World()
    world.add("r", bound(3), n=4)
    world.drain()
    assert len({tuple(tokens) for tokens in world.tokens.values()}) > 1
    for index in range(4):
        if world.ends["r", index].finish_reason == "stop":
            jsonschema.validate(json.loads(world.text("r", index)), PERSON)


def test_a_preempted_answer_goes_on_as_if_it_had_not_been() -> None:
    calm, crowded = World(slabs=64), World(slabs=2)
    for world in (calm, crowded):
        for seed in range(6):
            world.add(f"r{seed}", bound(seed, max_tokens=100), prompt=(seed + 1, 2, 3, 4, 5))
        world.drain()
    assert crowded.core.stats().models[0].preemptions > 0
    assert calm.tokens == crowded.tokens


def test_a_grammar_that_cannot_be_compiled_refuses_its_request_and_no_other() -> None:
    world = World()
    world.add("fine", bound(1))
    world.add("bad", bound(1, grammar=Grammar(kind="regex", text="(", param="structured_outputs.regex")))
    world.drain()
    refused = world.ends["bad", 0]
    assert (refused.finish_reason, refused.error_kind) == ("error", "invalid")
    assert refused.error_param == "structured_outputs.regex"
    assert world.ends["fine", 0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_forbids_the_end_cannot_be_combined_with_a_grammar(fields: dict[str, object]) -> None:
    world = World()
    with pytest.raises(InvalidRequestError) as caught:
        world.add("r", SamplingParams(grammar=AS_PERSON, **fields))  # type: ignore[arg-type]
    assert caught.value.param == next(iter(fields))


def test_a_model_without_a_tokeniser_refuses_grammars_by_name() -> None:
    memory = bytearray(4096)
    runner = HashModelRunner("m", memory, SLAB_BYTES)
    core = Core({"m": runner}, arena_bytes=4096, slab_bytes=SLAB_BYTES)
    core.add(AddRequest(request_id="r", model="m", prompt_token_ids=[1], sampling=SamplingParams(grammar=AS_PERSON)))
    outputs: list[SequenceOutput] = []
    while core.has_work:
        outputs += core.step()
    assert [o.error_kind for o in outputs] == ["invalid"]
    assert "no tokeniser" in str(outputs[0].error)


class HeldVocabulary(ByteVocabulary):
    """A vocabulary that takes until `go` to be read."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def encode_continued(self, text: str) -> list[int]:
        self.go.wait()
        return super().encode_continued(text)

    def token_bytes(self, token_id: int) -> bytes:
        self.go.wait()
        return super().token_bytes(token_id)


def test_steps_go_on_while_a_grammar_is_being_compiled() -> None:
    held = HeldVocabulary()
    world = World()
    world.core = Core(
        {"m": world.runner}, arena_bytes=16 * SLAB_BYTES, slab_bytes=SLAB_BYTES, seed=0, vocabulary_of=lambda _: held
    )
    world.add("slow", bound(1))
    world.add("free", SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    with pytest.raises(InvalidRequestError, match="in use"):
        world.add("slow", GREEDY)
    world.step(5)
    assert world.ends["free", 0].finish_reason == "length"
    assert world.core.has_work
    held.go.set()
    world.drain()
    assert world.ends["slow", 0].finish_reason in ("stop", "length")


def test_a_request_can_be_aborted_while_its_grammar_is_compiled_whole_or_by_choice() -> None:
    held = HeldVocabulary()
    world = World()
    world.core = Core(
        {"m": world.runner}, arena_bytes=16 * SLAB_BYTES, slab_bytes=SLAB_BYTES, seed=0, vocabulary_of=lambda _: held
    )
    world.add("gone", bound(1))
    world.add("half", bound(2), n=2)
    assert world.core.abort("gone") == []
    assert world.core.abort("half", 1) == []
    held.go.set()
    world.drain()
    assert ("gone", 0) not in world.ends
    assert world.ends["half", 1].finish_reason == "abort"
    assert world.ends["half", 0].finish_reason in ("stop", "length")


def test_a_grammar_that_turns_hostile_later_ends_its_own_answer_as_the_callers_fault() -> None:
    world = World()
    world.add("fine", bound(1))
    late = Grammar(kind="lark", text=LATE, param="structured_outputs.grammar")
    world.add("late", bound(1, grammar=late), n=2)
    world.drain()
    for index in range(2):
        ended = world.ends["late", index]
        assert (ended.finish_reason, ended.error_kind) == ("error", "invalid")
        assert ended.error_param == "structured_outputs.grammar"
    assert world.ends["fine", 0].finish_reason in ("stop", "length")


@pytest.mark.usefixtures("earlier_objects_frozen")
@settings(max_examples=examples(8))
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=8), st.integers(2, 8)
)
def test_no_matcher_outlives_its_sequence(requests: list[tuple[bool, int, int]], slabs: int) -> None:
    alive: weakref.WeakSet[RemoteMatcher] = weakref.WeakSet()
    world = World(slabs=slabs)
    for number, (has_grammar, _, n) in enumerate(requests):
        sampling = bound(number, 40) if has_grammar else SamplingParams(temperature=1.0, seed=number, max_tokens=40)
        world.add(f"r{number}", sampling, prompt=(number + 1, 5, 6), n=n)
    for number, (_, abort_after, n) in enumerate(requests):
        for sequence in world.core._models["m"].scheduler.running.values():
            if sequence.sample_spec.matcher is not None:
                alive.add(sequence.sample_spec.matcher)  # type: ignore[arg-type]
        if abort_after % 2:
            world.step(abort_after % 5)
            world.core.abort(f"r{number}", None if abort_after % 3 else n - 1)
    world.drain()
    gc.collect()
    assert not alive


def test_a_grammar_decides_even_where_a_seed_and_a_bias_want_something_else() -> None:
    world = World()
    world.add("r", SamplingParams(temperature=0.0, max_tokens=20, grammar=Grammar(kind="choice", text='["yes", "no"]')))
    world.drain()
    assert world.text("r") in ("yes", "no")
    assert world.ends["r", 0].finish_reason == "stop"


def test_forced_tokens_are_skipped_ahead_and_change_no_answer() -> None:
    """SPEC SO-02: fewer forwards than tokens."""
    slow, quick = World(max_draft_tokens=0), World(max_draft_tokens=8)
    for world in (slow, quick):
        for seed in range(4):
            world.add(f"r{seed}", bound(seed), prompt=(seed + 1, 2))
        world.drain()
    assert quick.tokens == slow.tokens
    tokens = max(len(tokens) for tokens in quick.tokens.values())
    assert slow.core.stats().steps > tokens
    assert quick.core.stats().steps < 0.9 * tokens


@settings(max_examples=examples(12))
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.integers(0, 6)), min_size=1, max_size=6),
    st.sampled_from([("off", "fixed"), ("prompt_lookup", "fixed"), ("prompt_lookup", "adaptive")]),
    st.integers(2, 8),
    st.integers(1, 7),
)
def test_guesses_and_forced_tokens_together_change_no_answer(
    requests: list[tuple[bool, int, int]], ways: tuple[str, str], slabs: int, most: int
) -> None:
    way, control = ways
    plain = World(slabs=64, max_draft_tokens=0)
    mixed = World(slabs=slabs, speculation=way, draft_control=control, max_draft_tokens=most, lookup_ngram=1)
    for number, (has_grammar, max_tokens, pause) in enumerate(requests):
        sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=max_tokens)
        sampling = bound(number, max_tokens) if has_grammar else sampling
        for world in (plain, mixed):
            world.add(f"r{number}", sampling, prompt=(number + 1, 5, 6, 5))
        mixed.step(pause)
    plain.drain()
    mixed.drain()
    assert mixed.tokens == plain.tokens
    assert {k: e.finish_reason for k, e in mixed.ends.items()} == {k: e.finish_reason for k, e in plain.ends.items()}


def test_drafts_towards_an_invalid_end_are_rejected_and_the_answer_goes_on() -> None:
    prompt = tuple(VOCABULARY.encode_continued('{"n": 5} {"n": 5} '))
    values = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]}
    schema = {"type": "object", "properties": {"n": values}, "required": ["n"], "additionalProperties": False}
    grammar = Grammar(kind="json_schema", text=json.dumps(schema))
    plain = World(slabs=64, max_draft_tokens=0)
    drafted = World(slabs=64, speculation="prompt_lookup", draft_control="fixed", max_draft_tokens=7, lookup_ngram=1)
    for world in (plain, drafted):
        for seed in range(40):
            world.add(f"r{seed}", bound(seed, 12, grammar), prompt)
        world.drain()
    assert {k: e.finish_reason for k, e in drafted.ends.items()} == {k: e.finish_reason for k, e in plain.ends.items()}
    assert drafted.tokens == plain.tokens
