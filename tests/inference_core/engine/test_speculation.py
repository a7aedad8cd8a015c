"""Speculative decoding in the engine: answers never change, and steps are saved (SPEC SD rows)."""

from itertools import pairwise

import pytest
from core_driver import BLOCK, CoreDriver, GuessingRunner, greedy

from gateway.telemetry.core_collector import CoreCollector
from inference_core.engine.draft_model import DraftModel
from inference_core.engine.drafter import PromptLookup, Reach
from inference_core.engine.sequence import Sequence
from inference_core.engine.speculator import DraftAccount
from inference_core.errors import IntegrityError, InvalidRequestError
from inference_core.protocol import Knobs, SamplingParams
from tests.inference_core.hash_model import HashModelRunner

FIXED = Knobs(speculation="draft_model", draft_control="fixed", max_draft_tokens=5)
PAIR = {"models": {"m": 1, "d": 1}, "drafts": {"m": "d"}}


def steps_of(driver: CoreDriver) -> int:
    driver.drain()
    return driver.steps


def with_accuracy(driver: CoreDriver, wrong_of_ten: int) -> CoreDriver:
    runner = driver.runners["d"]
    assert isinstance(runner, GuessingRunner)
    runner.wrong_of_ten = wrong_of_ten
    return driver


def test_a_draft_that_is_always_right_gives_all_its_tokens_in_one_step():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 0)
    driver.add([1, 2, 3], sampling=greedy(1 + 4 * 6))

    assert steps_of(driver) == 1 + 4  # the prompt's own token, then five drafted ones and one more each time
    stats = driver.core.stats().models[0].speculation
    assert stats.proposed == stats.accepted == [4, 4, 4, 4, 4]


def test_a_draft_that_is_always_wrong_costs_no_step():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 10)
    driver.add([1, 2, 3], sampling=greedy(12))

    assert steps_of(driver) == 12
    assert sum(driver.core.stats().models[0].speculation.accepted) == 0


def test_after_a_rejected_draft_the_next_draft_follows_the_accepted_text():
    """After correct rollbacks, drafts are accepted as often as without any (SPEC SD-08)."""
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED, slabs=40), 3)
    for first in range(8):
        driver.add([first, 2, 3], sampling=greedy(100))
    driver.drain()

    stats = driver.core.stats().models[0].speculation
    assert 0.6 < stats.accepted[0] / stats.proposed[0] < 0.8


def test_sampled_answers_are_the_same_with_and_without_drafts():
    sampling = SamplingParams(temperature=1.0, seed=5, max_tokens=40)
    answers = []
    for knobs in (Knobs(), FIXED):
        driver = CoreDriver(**PAIR, knobs=knobs, eos_probability=0.02)
        key = (driver.add([1, 2, 3], sampling=sampling), 0)
        driver.drain()
        answers.append((driver.tokens[key], driver.finished[key].finish_reason))
    assert answers[0] == answers[1]


def test_drafts_count_against_the_token_budget():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=Knobs(**{**_fields(FIXED), "max_num_batched_tokens": 4})), 0)
    driver.add([1], sampling=greedy(30))
    driver.add([2], sampling=greedy(30))
    most = 0
    while driver.core.has_work:
        driver.step()
        most = max(most, driver.last_plan().num_tokens)
    assert most == 4


def test_no_more_is_drafted_than_may_be_said():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 0)
    driver.add([1, 2, 3], sampling=greedy(4))

    assert steps_of(driver) == 2
    assert driver.core.stats().models[0].speculation.proposed == [1, 1]


def test_a_stop_token_within_accepted_drafts_ends_the_answer_there():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 0)
    truth = driver.runners["m"].expected_tokens([1, 2, 3], 20, greedy(20))
    place = next(i for i in range(3, 20) if truth[i] not in truth[:i])
    key = (driver.add([1, 2, 3], sampling=greedy(20, stop_token_ids=(truth[place],))), 0)
    driver.drain()

    assert driver.tokens[key] == truth[:place]
    assert driver.finished[key].stop_token_id == truth[place]


def test_rejected_drafts_hold_no_block_after_their_step():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=Knobs(**{**_fields(FIXED), "max_draft_tokens": 3 * BLOCK})), 10)
    driver.add([1, 2, 3], sampling=greedy(20))
    driver.step(3)

    assert driver.pool().num_referenced == driver.pool().blocks_for(5)


def test_the_draft_gives_its_memory_back_before_anyone_is_preempted():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED, slabs=2), 0)
    driver.add([1, 2, 3], sampling=greedy(60))
    driver.step(3)
    assert driver.arena.num_free == 0
    driver.add(list(range(20, 40)), sampling=greedy(5))
    driver.step()

    assert driver.core.stats().models[0].running == 2
    driver.drain()
    assert driver.core.stats().models[0].preemptions == 0


def test_a_draft_that_keeps_its_memory_ends_the_step_with_an_error_and_no_loop(monkeypatch):
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED, slabs=2), 0)
    driver.add([1, 2, 3], sampling=greedy(60))
    driver.step(3)
    monkeypatch.setattr(DraftModel, "_rest", lambda self: None)
    driver.add([4] * 100, sampling=greedy(5))
    with pytest.raises(IntegrityError, match="m: drafters gave their memory back in this step, and still hold some"):
        driver.step()


def test_a_request_that_ends_frees_its_blocks_in_the_draft_model_at_once():
    driver = CoreDriver(**PAIR, knobs=FIXED)
    request_id = driver.add([1, 2, 3], sampling=greedy(60))
    driver.step(3)
    driver.abort(request_id)

    driver.assert_all_free()


def test_a_draft_model_that_fails_ends_no_request():
    driver = CoreDriver(**PAIR, knobs=FIXED)
    key = (driver.add([1, 2, 3], sampling=greedy(30)), 0)
    driver.step(2)
    driver.runners["d"].fault = RuntimeError("device lost")
    driver.drain()

    assert driver.finished[key].finish_reason == "length"


def test_a_request_may_go_without_drafts():
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 0)
    driver.add([1, 2, 3], sampling=greedy(12), speculate=False)

    assert steps_of(driver) == 12


def test_what_stood_in_the_prompt_is_drafted_without_a_model():
    driver = CoreDriver(knobs=Knobs(speculation="prompt_lookup", draft_control="fixed", lookup_ngram=1))
    truth = driver.runners["m"].expected_tokens([1, 2, 3], 12, greedy(12))
    copied = [*truth, 49, 1, 2, 3]
    driver.add(copied, sampling=greedy(6))
    driver.drain()

    assert driver.core.stats().models[0].speculation.proposed


@pytest.mark.parametrize("draft_seconds", [0.01, 0.0])
def test_where_drafts_do_not_pay_the_controller_makes_none(draft_seconds):
    """Each token of a step takes as long as a step of one: nothing is gained by verifying several, even of a draft that
    costs nothing (SPEC SD-06)."""
    knobs = Knobs(speculation="draft_model", max_draft_tokens=5)
    costs = {"m": 0.01, "d": draft_seconds}
    driver = with_accuracy(CoreDriver(**PAIR, knobs=knobs, seconds_per_step=0.0, seconds_per_token=costs, slabs=40), 6)
    driver.add([1, 2, 3], sampling=greedy(190))
    driver.drain()
    rounds = driver.core.stats().models[0].speculation.rounds

    assert rounds < 20


def seconds_of(driver: CoreDriver, answers: int) -> float:
    """Virtual seconds until so many answers of 190 tokens, one after the other, are complete."""
    began = driver.clock()
    for first in range(answers):
        driver.add([first % 40, 2, 3], sampling=greedy(190))
        driver.drain()
    return driver.clock() - began


def test_drafts_that_never_pay_cost_at_most_a_hundredth_of_the_time():
    """Every token of a step has its price, and none that is drafted is ever right."""
    costs = {"seconds_per_step": {"m": 0.01, "d": 0.0}, "seconds_per_token": {"m": 0.002, "d": 0.0}, "check": False}
    times = []
    for speculation in ("off", "draft_model"):
        driver = with_accuracy(CoreDriver(**PAIR, knobs=Knobs(speculation=speculation, decode_steps=1), **costs), 10)
        seconds_of(driver, 10)
        times.append(seconds_of(driver, 16))

    assert times[0] < times[1] < 1.01 * times[0]


def test_drafts_that_lost_time_wait_until_a_share_of_the_steps_without_has_paid_for_them():
    account = DraftAccount()
    for _ in range(5):
        account.record(-1.0)
    account.wait(400)
    assert account.is_empty
    account.wait(200)
    assert not account.is_empty
    account.record(100.0)
    for _ in range(16):
        assert not account.is_empty
        account.record(-1.0)
    assert account.is_empty


def test_drafts_without_an_account_to_lose_from_are_not_made_however_likely_they_are(monkeypatch):
    monkeypatch.setattr(DraftAccount, "record", lambda self, gain: setattr(self, "_steps", -1.0))
    knobs = Knobs(speculation="draft_model", max_draft_tokens=5)
    driver = with_accuracy(CoreDriver(**PAIR, knobs=knobs, seconds_per_step={"m": 0.1, "d": 0.01}), 0)
    driver.add([1, 2, 3], sampling=greedy(190))
    driver.drain()

    assert driver.core.stats().models[0].speculation.rounds == 1


def test_a_sequence_with_nothing_to_draft_is_looked_at_ever_more_rarely(monkeypatch):
    looked: list[int] = []

    def reach(self: PromptLookup, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        looked.append(len(sequence.output_token_ids))
        return Reach(0)

    monkeypatch.setattr(PromptLookup, "reach", reach)
    driver = CoreDriver(knobs=Knobs(speculation="prompt_lookup", decode_steps=1))
    driver.add([1, 2, 3], sampling=greedy(190))
    driver.drain()

    between = [later - earlier for earlier, later in pairwise(looked)]
    assert between == [1, 2, 4, 8, *[16] * (len(between) - 4)]
    assert sum(between) > 150


def test_a_sequence_that_copies_is_looked_at_after_every_step(monkeypatch):
    looked: list[int] = []
    find = PromptLookup.reach

    def reach(self: PromptLookup, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        looked.append(driver.steps)
        return find(self, sequence, knobs, most)

    monkeypatch.setattr(PromptLookup, "reach", reach)
    monkeypatch.setattr(HashModelRunner, "_draw", lambda self, history, seed, masked: 1)
    driver = CoreDriver(knobs=Knobs(speculation="prompt_lookup"), check=False)
    driver.add([1, 2, 3], sampling=greedy(100))
    driver.drain()

    assert driver.steps < 40
    assert looked[8:] == list(range(looked[8], looked[8] + len(looked) - 8))


def test_drafts_have_to_beat_several_steps_in_one_call():
    """Between two calls there is as much time as a step takes: ten tokens in one call are cheaper than two by a draft
    that is always right."""
    rounds = []
    for decode_steps in (1, 10):
        knobs = Knobs(
            speculation="draft_model", max_draft_tokens=1, decode_steps=decode_steps, itl_objective_ms=60_000.0
        )
        driver = with_accuracy(CoreDriver(**PAIR, knobs=knobs, seconds_per_step={"m": 0.01, "d": 0.008}), 0)
        for first in range(4):
            driver.add([first, 2, 3], sampling=greedy(190))
            while driver.core.has_work:
                driver.step()
                driver.clock.advance(0.01)
        rounds.append(driver.core.stats().models[0].speculation.rounds)

    assert rounds[0] > 200
    assert rounds[1] < rounds[0] / 3


def test_where_drafts_pay_the_controller_makes_them():
    knobs = Knobs(speculation="draft_model", max_draft_tokens=5)
    costs = {"m": 0.1, "d": 0.01}
    driver = with_accuracy(CoreDriver(**PAIR, knobs=knobs, seconds_per_step=costs), 1)
    driver.add([1, 2, 3], sampling=greedy(190))
    driver.drain()
    stats = driver.core.stats().models[0].speculation

    assert stats.plain_seconds / stats.seconds > 2
    assert driver.steps < 190 / 2


def test_switched_off_within_an_answer_nothing_is_drafted_any_more():
    plain = CoreDriver()
    expected = plain.add([1, 2, 3], sampling=greedy(60)), 0
    plain.drain()
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 3)
    answer = driver.add([1, 2, 3], sampling=greedy(60)), 0
    driver.step(3)
    driver.core.set_knobs({"speculation": "off"})
    before = driver.core.stats().models[0].speculation.rounds
    driver.step(2)
    assert driver.core._models["m"].speculator._drafters["draft_model"]._pool.num_referenced == 0
    driver.core.set_knobs({"speculation": "draft_model"}, "m")
    driver.step(2)

    assert driver.core.stats().models[0].speculation.rounds == before + 2
    driver.drain()
    assert driver.tokens[answer] == plain.tokens[expected]


def test_a_model_without_a_draft_refuses_to_use_one():
    driver = CoreDriver(**PAIR)
    with pytest.raises(InvalidRequestError, match="d was loaded without a draft model"):
        driver.core.set_knobs({"speculation": "draft_model"})
    assert driver.core.knobs["m"].speculation == "off"


def _fields(knobs: Knobs) -> dict[str, object]:
    return {name: getattr(knobs, name) for name in Knobs.__struct_fields__}


def test_the_acceptance_of_a_pair_is_counted_under_its_targets_name_by_place() -> None:
    """SD-07: a draft that errs on three tokens of ten."""
    driver = with_accuracy(CoreDriver(**PAIR, knobs=FIXED), 3)
    driver.add([1, 2, 3], sampling=greedy(60))
    driver.drain()
    collector = CoreCollector()
    collector.stats = {"cpu": driver.core.stats()}

    samples = [sample for family in collector.collect() for sample in family.samples if "spec_decode" in sample.name]

    assert {sample.labels["model_name"] for sample in samples} == {"m"}
    counted = {s.name.removeprefix("vllm:spec_decode_num_"): s.value for s in samples if "position" not in s.labels}
    by_place = [s.value for s in samples if "position" in s.labels]
    share = counted["accepted_tokens_total"] / counted["draft_tokens_total"]
    assert 0.3 < share < 0.9
    assert sum(by_place) == counted["accepted_tokens_total"]
    assert by_place[0] <= counted["drafts_total"], "a draft has one token at each place"
    assert by_place == sorted(by_place, reverse=True), "a token is accepted only after those before it"
    # Each verified draft adds a token of the target's own; the first and perhaps the last come without a draft.
    assert 58 <= counted["drafts_total"] + counted["accepted_tokens_total"] <= 59
