"""The tuner never leaves its limits, does nothing when switched off, and finds the step that keeps the objective."""

import sys
from itertools import pairwise
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from inference_core.engine.auto_tuner import AutoTuner
from inference_core.protocol import Knobs

TUNED = ("max_num_batched_tokens", "max_num_seqs", "prefill_chunk")
BUSY = 1_000_000  # a backlog that asks for all the room there is
BASE, PER_SEQUENCE, PER_TOKEN, PER_PAIR = 0.006, 0.0006, 0.00027, 3e-7


def step_seconds(sequences: int, tokens: int, depth: float = 0.0) -> float:
    return BASE + PER_SEQUENCE * sequences + (PER_TOKEN + PER_PAIR * depth) * (tokens - sequences)


def serve(
    tuner: AutoTuner,
    steps: int,
    *,
    decodes: int,
    spread: int = 0,
    slower: float = 1.0,
    others: float = 0.0,
    sharing: int = 1,
    backlog: int = BUSY,
) -> None:
    """Steps as large as the knobs allow with about `decodes`, each after `others` seconds of another model."""
    now, random, usual = 0.0, Random(0), decodes
    for _ in range(steps):
        decodes = usual + random.randint(-spread, spread)
        room = min(tuner.knobs.max_num_batched_tokens - decodes, tuner.knobs.prefill_chunk) if decodes else 512
        tokens = decodes + random.choice([0, max(room, 1)])
        sequences = decodes + (tokens > decodes)
        took = slower * step_seconds(sequences, tokens)
        now += others + took
        tuner.after_step(max(sequences, 1), max(tokens, 1), decodes, took, now, backlog=backlog, sharing=sharing)


def test_switched_off_the_limits_hold_unchanged() -> None:
    limits = Knobs(itl_objective_ms=1)
    tuner = AutoTuner(limits)
    serve(tuner, 500, decodes=30)
    assert tuner.knobs is limits
    assert tuner.tuning().decisions == 0
    assert tuner.model.is_warm


def test_a_full_step_takes_as_long_as_the_objective_allows() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50, prefill_chunk=4096, max_num_batched_tokens=4096))
    serve(tuner, 600, decodes=20)
    tokens = tuner.knobs.max_num_batched_tokens
    assert 0.042 < step_seconds(21, tokens) <= 0.051
    assert tuner.knobs.prefill_chunk == tokens - 20
    assert "50 ms are aimed at" in tuner.tuning().reason


def test_a_loose_objective_leaves_the_operators_limits() -> None:
    limits = Knobs(auto_tune=True, itl_objective_ms=10_000)
    tuner = AutoTuner(limits)
    serve(tuner, 600, decodes=20)
    assert tuner.knobs == limits


def first_token_seconds(room: int, decodes: int, backlog: int, prompts: float) -> float:
    """Until a backlog is through at `room` tokens a step, for one who arrives in mid-step; `prompts`: share of steps
    that hold any."""
    fixed = BASE + PER_SEQUENCE * decodes
    return (fixed + prompts * PER_TOKEN * room) / 2 + -(-backlog // room) * fixed + PER_TOKEN * backlog


@pytest.mark.parametrize(("decodes", "backlog"), [(4, 300), (20, 300), (20, 2000), (30, 128)])
def test_within_the_objective_a_step_is_as_long_as_lets_first_tokens_come_soonest(decodes: int, backlog: int) -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=10_000, max_num_batched_tokens=4096, prefill_chunk=4096))
    tuner.after_answer(0.1, prompt_tokens=16, answer_tokens=16)
    serve(tuner, 600, decodes=20, spread=15)
    tuner.after_step(1, 1, decodes, step_seconds(1, 1), 1e6, backlog=backlog)
    prompts = 0.5  # of the steps that `serve` makes
    soonest = min(first_token_seconds(room, decodes, backlog, prompts) for room in range(16, 4096))
    chosen = first_token_seconds(tuner.knobs.prefill_chunk, decodes, backlog, prompts)
    assert chosen <= 1.07 * soonest


def test_a_prompt_of_the_usual_length_is_not_cut() -> None:
    """The shortest prompt comes first: one as long would wait for all of it, however it is cut."""
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=10_000, max_num_batched_tokens=4096, prefill_chunk=4096))
    tuner.after_answer(0.1, prompt_tokens=1024, answer_tokens=16)
    serve(tuner, 600, decodes=20, spread=15)
    tuner.after_step(1, 1, 4, step_seconds(1, 1), 1e6, backlog=1024)
    assert 1024 <= tuner.knobs.prefill_chunk < 4096


def test_before_the_first_answer_a_queue_of_unknown_prompts_leaves_the_operators_limits() -> None:
    limits = Knobs(auto_tune=True, itl_objective_ms=10_000)
    tuner = AutoTuner(limits)
    serve(tuner, 600, decodes=20)
    tuner.after_step(1, 1, 20, step_seconds(1, 1), 1e6, backlog=0, waiting=31)
    assert tuner.knobs == limits


def test_all_decodes_continue_during_a_prompt() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=20))
    serve(tuner, 600, decodes=30)
    budget, penalty = tuner.knobs.max_num_batched_tokens, tuner.knobs.max_join_penalty
    assert int(budget - budget / penalty) == 30


def test_an_objective_out_of_reach_still_lets_a_prompt_advance() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=1))
    serve(tuner, 600, decodes=20)
    assert (tuner.knobs.max_num_batched_tokens, tuner.knobs.prefill_chunk) == (
        20 + AutoTuner.LEAST_ROOM,
        AutoTuner.LEAST_ROOM,
    )
    assert tuner.knobs.max_num_seqs == 1


def test_the_deeper_a_prompt_the_fewer_of_its_tokens_a_step_takes() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=30))
    now, decodes, position, took_all, rooms = 0.0, 8, 0, [], []
    serve(tuner, 600, decodes=decodes)
    while position < 8000:
        room = min(tuner.knobs.max_num_batched_tokens - decodes, tuner.knobs.prefill_chunk)
        depth = position + room / 2
        took = step_seconds(decodes + 1, decodes + room, depth)
        now, position = now + took, position + room
        rooms.append(room)
        took_all.append(took)
        tuner.after_step(decodes + 1, decodes + room, decodes, took, now, backlog=8000 - position, depth=depth)
    assert rooms[-1] < rooms[0] / 3
    assert sorted(took_all)[int(0.95 * len(took_all))] <= 0.03


def test_seats_are_limited_so_that_prompts_are_computed_as_fast_as_seats_get_free() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50, max_num_seqs=256))
    for _ in range(200):
        tuner.after_answer(0.1, prompt_tokens=100, answer_tokens=100)
    serve(tuner, 600, decodes=20, spread=15)
    seats = tuner.knobs.max_num_seqs
    # One prompt token per step and sequence, besides its decode.
    assert BASE + seats * (PER_SEQUENCE + PER_TOKEN) == pytest.approx(0.05 * tuner.tuning().margin, rel=0.05)


def test_a_past_of_long_prompts_and_short_answers_leaves_seats_for_long_answers() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50, max_num_seqs=256))
    for _ in range(200):
        tuner.after_answer(0.1, prompt_tokens=8000, answer_tokens=1)
    serve(tuner, 600, decodes=8)
    decodes = tuner.knobs.max_num_seqs
    # A quarter of what 50 ms have beyond the base.
    assert decodes * PER_SEQUENCE == pytest.approx((0.05 * tuner.tuning().margin - BASE) / 4, rel=0.1)


def test_if_every_step_is_slow_waiting_sequences_may_still_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a prompt would wait until the long answers that run have ended, though a step has time for both."""
    monkeypatch.setattr(sys.modules[__name__], "BASE", 0.03)
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50, max_num_seqs=256))
    for _ in range(200):
        tuner.after_answer(0.1, prompt_tokens=8000, answer_tokens=1)
    serve(tuner, 600, decodes=12)
    assert tuner.knobs.max_num_seqs == 13


def test_without_decodes_a_step_may_take_a_share_of_the_objective_for_first_tokens() -> None:
    limits = Knobs(auto_tune=True, itl_objective_ms=20, ttft_objective_ms=400, max_num_batched_tokens=4096)
    tuner = AutoTuner(limits)
    serve(tuner, 600, decodes=20, spread=15)
    busy = tuner.knobs.max_num_batched_tokens
    tuner.after_step(1, 1, 0, step_seconds(1, 1), 1e6, backlog=BUSY)
    assert busy < 64
    assert step_seconds(1, tuner.knobs.max_num_batched_tokens) == pytest.approx(0.1, rel=0.12)


def test_models_that_share_a_core_share_the_objective() -> None:
    alone, shared = (AutoTuner(Knobs(auto_tune=True, itl_objective_ms=80)) for _ in range(2))
    serve(alone, 600, decodes=20)
    serve(shared, 600, decodes=20, sharing=2)
    assert step_seconds(21, alone.knobs.max_num_batched_tokens) == pytest.approx(0.08, rel=0.12)
    assert step_seconds(21, shared.knobs.max_num_batched_tokens) == pytest.approx(0.04, rel=0.12)


def test_time_that_no_model_explains_is_taken_off_the_target() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=80))
    serve(tuner, 3000, decodes=20, others=0.02)
    assert step_seconds(21, tuner.knobs.max_num_batched_tokens) + 0.02 == pytest.approx(0.08, rel=0.12)
    assert tuner.tuning().margin < 0.85


def test_new_limits_hold_at_once_and_tuning_goes_on_from_them() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50))
    serve(tuner, 600, decodes=20)
    tuned = tuner.knobs
    limits = msgspec.structs.replace(tuner.limits, max_waiting=7)
    assert tuner.set_limits(limits) is limits
    serve(tuner, 16, decodes=20)
    assert tuner.knobs == msgspec.structs.replace(tuned, max_waiting=7)


def test_decisions_are_rare_under_a_steady_load() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50))
    serve(tuner, 200, decodes=20)
    before = tuner.tuning().decisions
    serve(tuner, 2000, decodes=20)
    assert tuner.tuning().decisions - before <= 5


def test_growth_takes_several_decisions() -> None:
    tuner = AutoTuner(Knobs(auto_tune=True, itl_objective_ms=50, max_num_batched_tokens=4096, prefill_chunk=4096))
    serve(tuner, 400, decodes=20, slower=8.0)
    rooms = [tuner.knobs.max_num_batched_tokens - 20]
    for _ in range(60):
        serve(tuner, AutoTuner.EVERY, decodes=20)
        rooms.append(tuner.knobs.max_num_batched_tokens - 20)
    assert rooms[0] < rooms[-1]
    assert all(after <= max(before, 16) * 1.5 + 16 for before, after in pairwise(rooms))


steps = st.tuples(
    st.integers(1, 5000),
    st.integers(0, 70_000),
    st.integers(0, 5000),
    st.floats(0, 1e7),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.integers(1, 8),
)
limits = st.builds(
    Knobs,
    auto_tune=st.booleans(),
    max_num_batched_tokens=st.integers(1, 65_536),
    max_num_seqs=st.integers(1, 4096),
    prefill_chunk=st.integers(1, 1_048_576),
    itl_objective_ms=st.floats(1, 60_000),
    ttft_objective_ms=st.floats(1, 3_600_000),
)
events = st.lists(st.one_of(steps, limits, st.tuples(st.floats(0, 1e6), st.integers(0, 10**6), st.integers(0, 10**6))))


@given(limits, events, st.integers(1, 40))
def test_whatever_happens_the_tuned_knobs_stay_within_the_limits(first: Knobs, happens: list, repeats: int) -> None:
    tuner, now = AutoTuner(first), 0.0
    for event in happens * repeats:
        if isinstance(event, Knobs):
            tuner.set_limits(event)
        elif len(event) == 3:
            tuner.after_answer(*event)
        else:
            sequences, further, decodes, seconds, backlog, waiting, sharing = event
            now += seconds
            tokens = sequences + further
            tuner.after_step(
                sequences, tokens, decodes, seconds, now, backlog=backlog, waiting=waiting, sharing=sharing
            )
        for name in TUNED:
            assert 1 <= getattr(tuner.knobs, name) <= getattr(tuner.limits, name)
        assert 1 <= tuner.limits.max_join_penalty <= tuner.knobs.max_join_penalty <= 1000
        fixed = {name: getattr(tuner.limits, name) for name in (*TUNED, "max_join_penalty")}
        assert msgspec.structs.replace(tuner.knobs, **fixed) == tuner.limits
        tuner.tuning()


def test_the_same_steps_give_the_same_knobs() -> None:
    tuners = [AutoTuner(Knobs(auto_tune=True, itl_objective_ms=30)) for _ in range(2)]
    for tuner in tuners:
        serve(tuner, 300, decodes=12)
    assert tuners[0].knobs == tuners[1].knobs
    assert tuners[0].tuning() == tuners[1].tuning()
