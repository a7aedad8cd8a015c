"""The sequential test: false alarms are as rare as stated, and a shift is noticed after a few answers."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quality.estimates.verified_sample import wilson_interval
from quality.monitor.detectors import EDetector, ShiftDetector, ShiftSettings, likelihood_ratio

probability = st.floats(0.001, 0.999)


@given(allowed=probability, share=st.floats(0.0, 1.0), factor=st.floats(1.0, 50.0))
def test_an_answers_factor_has_a_mean_of_at_most_one_while_errors_are_as_rare_as_allowed(allowed, share, factor):
    p = allowed * share

    mean = p * likelihood_ratio(True, allowed, factor) + (1 - p) * likelihood_ratio(False, allowed, factor)

    assert mean <= 1 + 1e-9


def answers_until_alarm(rates, *, every, seed, most=100_000, **settings):
    """Answers of several streams in turn, each with an error rate of its own, until one alarms."""
    detector = ShiftDetector(ShiftSettings(false_alarm_every=every, **settings))
    draw = random.Random(seed)
    for number in range(most):
        rate = rates[number % len(rates)]
        if detector.observe(f"errors {rate}", draw.random() < rate, rate):
            return number + 1
    return most


@pytest.mark.parametrize("rates", [[0.3], [0.05, 0.2, 0.5]])
def test_false_alarms_are_at_least_as_far_apart_as_stated_over_all_streams_together(rates):
    # At its hardest: no tolerance, errors exactly as frequent as predicted, and the usual rate never learned.
    runs = [answers_until_alarm(rates, every=200, seed=s, tolerance=0.0, reference=10**9) for s in range(300)]

    error = statistics.stdev(runs) / len(runs) ** 0.5
    assert statistics.fmean(runs) > 200 - 3 * error


def test_without_restarting_at_every_answer_the_evidence_would_be_a_plain_likelihood_ratio():
    detector = EDetector()
    detector.observe(False, 0.2)
    first = detector.evidence
    detector.observe(True, 0.2)

    # It also counts a shift that began with the second answer.
    assert first < 1 < detector.evidence


@pytest.mark.parametrize(("before", "after", "at_most"), [(0.1, 0.9, 12), (0.2, 0.5, 80), (0.3, 0.5, 150)])
def test_a_shift_is_noticed_after_a_few_answers(before, after, at_most):
    delays = []
    for seed in range(30):
        detector = ShiftDetector(ShiftSettings(tolerance=0.0, false_alarm_every=20_000))
        draw = random.Random(seed)
        for _ in range(800):
            assert detector.observe("tier 1", draw.random() < before, before) is None
        delays.append(next(n for n in range(1, 5000) if detector.observe("tier 1", draw.random() < after, before)))

    assert statistics.median(delays) <= at_most


def test_predictions_that_are_a_little_wrong_from_the_start_are_no_shift():
    # 20% where 15% was predicted; the first answers teach what is usual.
    quiet = [answers_until_alarm([0.2], every=20_000, seed=s, most=1) for s in range(3)]
    detector = ShiftDetector(ShiftSettings())
    draw = random.Random(5)

    alarms = [detector.observe("tier 2", draw.random() < 0.2, 0.15) for _ in range(20_000)]

    assert quiet == [1, 1, 1]
    assert not any(alarms)


def test_a_new_stream_whose_predictions_are_wrong_alarms_before_it_has_a_usual_rate():
    detector = ShiftDetector(ShiftSettings())
    draw = random.Random(1)

    alarms = [detector.observe("new prompts", draw.random() < 0.8, 0.2) for _ in range(100)]

    alarm = next(a for a in alarms if a)
    assert alarms.index(alarm) < 30
    assert alarm.stream == "new prompts"
    assert alarm.rate > 0.5 > alarm.allowed
    assert alarm.evidence >= ShiftSettings().false_alarm_every
    assert "are usual" in alarm.reason


def test_an_alarm_dates_the_change():
    found = []
    for seed in range(20):
        detector, draw = ShiftDetector(ShiftSettings()), random.Random(seed)
        alarms = (
            detector.observe("tier 2", draw.random() < (0.1 if at < 300 else 0.5), 0.1, float(at)) for at in range(2000)
        )
        found.append(next(alarm for alarm in alarms if alarm).since)

    assert abs(statistics.median(found) - 300) <= 5
    assert all(250 < since < 350 for since in found)


def test_predictions_that_hold_at_the_first_look_go_on_to_be_what_answers_are_held_against():
    delays = []
    for seed in range(20):
        detector, draw = ShiftDetector(ShiftSettings()), random.Random(seed)
        for _ in range(150):
            detector.observe("tier 2", draw.random() < 0.17, 0.17)
        delays.append(next(n for n in range(1, 5000) if detector.observe("tier 2", draw.random() < 0.4, 0.17)))

    # Held against the 99% bound of its first hundred answers, such a stream takes more than twice as long.
    assert statistics.median(delays) <= 110


def test_one_stream_says_nothing_of_another():
    detector = ShiftDetector(ShiftSettings())
    for _ in range(8):
        detector.observe("tier 1", True, 0.1)
    before = detector.evidence()

    detector.observe("tier 2", False, 0.1)

    assert detector.evidence()["tier 1"] == before["tier 1"] > detector.evidence()["tier 2"]


@pytest.mark.parametrize("bad", [{"false_alarm_every": 0.5}, {"tolerance": 1.0}, {"tolerance": -0.1}, {"reference": 0}])
def test_settings_out_of_range_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ShiftSettings(**bad)


def test_one_tenants_errors_alarm_for_it_alone_however_many_and_the_others_are_not_forgotten():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=2000))
    draw, alarms = random.Random(0), []
    for number in range(600):
        alarms.append(detector.observe("tier 1", draw.random() < 0.05, 0.05, at=number, tenant=f"t{number % 5}"))
        alarms.append(detector.observe("tier 1", True, 0.05, at=number, tenant="loud"))
    found = [alarm for alarm in alarms if alarm is not None]
    assert {alarm.tenant for alarm in found} == {"loud"}
    assert all(alarm.rate == 1.0 for alarm in found)


def test_errors_of_two_tenants_that_are_each_evidence_enough_alarm_for_all():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=2000))
    alarms = [
        detector.observe("tier 1", number >= 100, 0.05, at=number, tenant=f"t{number % 4}") for number in range(160)
    ]
    [first] = [alarm for alarm in alarms if alarm is not None][:1]
    assert first.tenant is None
    assert 95 <= first.since <= 105


@pytest.mark.parametrize("tenant", ["", "the only one"])
def test_where_there_is_one_tenant_alarms_are_as_soon_as_before(tenant):
    detector, pure = ShiftDetector(ShiftSettings(false_alarm_every=2000, reference=10**9)), EDetector()
    for number in range(100):
        alarm = detector.observe("tier 1", True, 0.05, at=number, tenant=tenant)
        pure.observe(True, 0.05 + 0.03, number)
        assert (alarm is not None) == (pure.evidence >= 2000)
        if alarm is not None:
            assert alarm.tenant == tenant
            return
    raise AssertionError("no alarm")


@pytest.mark.parametrize("views", [1, 3])
def test_an_answer_that_is_in_several_streams_needs_as_many_times_the_evidence(views):
    # Each stream alone may alarm falsely every so many answers, so three of them may do so three times as often.
    detector, one = ShiftDetector(ShiftSettings(false_alarm_every=50.0), views=views), EDetector()

    while detector.observe("errors", True, 0.2) is None:
        before = detector.evidence()["errors"]
        one.observe(True, 0.23)

    one.observe(True, 0.23)
    assert before < views * 50.0 <= one.evidence


@pytest.mark.parametrize("predicted", [0.93, 0.97, 1.0])
def test_where_nearly_all_answers_are_errors_as_predicted_more_of_them_are_no_shift(predicted):
    detector = ShiftDetector(ShiftSettings(false_alarm_every=100.0))
    assert [detector.observe("s", True, predicted) for _ in range(2000)] == [None] * 2000


@pytest.mark.parametrize(
    ("worse", "allowed", "factor", "ratio"),
    [(True, 0.2, 2.0, 5 / 3), (False, 0.2, 2.0, 5 / 6), (True, 0.5, 3.0, 1.5), (False, 0.5, 3.0, 0.5)],
)
def test_an_answers_factor_is_the_ratio_of_its_likelihoods(worse, allowed, factor, ratio):
    # At twice the odds of 0.2, which are 1 to 4, an answer is worse with probability 1/3.
    assert likelihood_ratio(worse, allowed, factor) == pytest.approx(ratio)


def ratios(worse, allowed):
    return [likelihood_ratio(worse, allowed, math.exp(shift)) for shift in (0.5, 1.0, 2.0, 3.0)]


def test_the_evidence_is_the_mean_over_the_shifts_of_sums_over_all_times_of_a_change():
    detector = EDetector()
    assert detector.evidence == 0.0
    seen = [(True, 0.2), (False, 0.3), (True, 0.1), (True, 0.1)]
    for worse, allowed in seen:
        detector.observe(worse, allowed)
    sums = []
    for shift in range(4):
        each = [ratios(*one)[shift] for one in seen]
        sums.append(sum(math.prod(each[begun:]) for begun in range(4)))
    assert detector.evidence == pytest.approx(sum(sums) / 4)


def test_a_change_is_dated_by_the_beginning_of_the_most_likely_run_of_errors():
    detector = EDetector()
    for at, worse in enumerate([True, False, False, False, False, True, True, True]):
        detector.observe(worse, 0.2, float(at))
    assert detector.since == 5.0
    # Small shifts would date it at the first error, large ones at the fourth; a large one is likelier.
    mixed = EDetector()
    for at, worse in enumerate([True, False, False, True, True, True, False, False, True, True]):
        mixed.observe(worse, 0.2, float(at))
    assert mixed.since == 3.0
    lone = EDetector()
    lone.observe(False, 0.2, 7.0)
    assert lone.since == 7.0


def alarm_after(looked, predicted=0.1, reference=4, **settings):
    """The alarm that errors raise after the answers `looked`, of which true ones are worse."""
    settings = ShiftSettings(reference=reference, false_alarm_every=1e9, **settings)
    detector = ShiftDetector(settings)
    for worse in looked:
        assert detector.observe("s", worse, predicted) is None
    return next(alarm for _ in range(1000) if (alarm := detector.observe("s", True, predicted)))


def usual(answers, worse, z, predicted=0.1):
    return wilson_interval(worse, answers, z=z).high - predicted


def test_an_excess_is_learned_at_doubling_numbers_of_answers_with_bounds_that_narrow_to_99_percent():
    looked = [True, False] + [False] * 30
    # Each look is allowed no more than those before; none is allowed less than nothing.
    by_look = [usual(4, 1, 1.0), usual(8, 1, 2**0.5), usual(16, 1, 2.0), usual(32, 1, 2.3263478740408408)]
    assert by_look == sorted(by_look, reverse=True)
    for answers, looks in ((4, 1), (8, 2), (16, 3), (32, 4)):
        # The errors of the alarm are looked at too, and allow no more.
        found = alarm_after(looked[:answers])
        assert found.allowed == pytest.approx(0.1 + max(by_look[looks - 1], 0.0) + 0.03, abs=1e-9)
    assert alarm_after([False] * 4, predicted=0.9, reference=4).allowed == pytest.approx(0.93)


def test_before_its_first_look_nothing_but_the_tolerance_is_allowed_beyond_the_prediction():
    assert alarm_after([], reference=10**9).allowed == pytest.approx(0.13)
    assert alarm_after([], reference=10**9, tolerance=0.0).allowed == pytest.approx(0.1)


def test_what_is_allowed_is_not_nothing():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=1.01, tolerance=0.0, reference=10**9))
    alarm = next(alarm for _ in range(1000) if (alarm := detector.observe("s", True, 0.0)))
    assert alarm.allowed == 0.005


def test_an_alarm_shows_the_last_hundred_answers_and_the_stream_starts_over():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=1e9, reference=10**9))
    for _ in range(200):
        assert detector.observe("s", False, 0.1) is None
    number, alarm = next((n, alarm) for n in range(1, 100) if (alarm := detector.observe("s", True, 0.1)))
    assert (alarm.answers, alarm.rate, alarm.tenant) == (100, number / 100, "")
    assert detector.evidence() == {}
    assert alarm.reason == (
        f"{number}% of the last 100 verified answers were worse than the strongest tier's, at most 13% are usual "
        f"(evidence {alarm.evidence:.3g})"
    )


def test_a_threshold_that_is_just_reached_alarms():
    pure = EDetector()
    for _ in range(5):
        pure.observe(True, 0.23)
    detector = ShiftDetector(ShiftSettings(false_alarm_every=pure.evidence))
    assert [detector.observe("s", True, 0.2) is not None for _ in range(5)] == [False] * 4 + [True]


def test_a_tenants_alarm_is_of_its_own_answers_and_leaves_those_of_the_others():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=2000, reference=10**9))
    for number in range(40):
        detector.observe("s", False, 0.1, at=float(number), tenant="calm")
    others = detector.evidence()["s"]
    found = [detector.observe("s", True, 0.1, at=40.0 + number, tenant="loud") for number in range(20)]
    number, alarm = next((n, alarm) for n, alarm in enumerate(found, start=1) if alarm)
    assert (alarm.tenant, alarm.answers, alarm.rate, alarm.since) == ("loud", number, 1.0, 40.0)
    own = EDetector()
    for _ in range(number):
        own.observe(True, 0.13)
    assert alarm.evidence == pytest.approx(own.evidence)
    # What is left is the others' answers, as if the tenant had not been there.
    again = ShiftDetector(ShiftSettings(false_alarm_every=2000, reference=10**9))
    for at in range(40):
        again.observe("s", False, 0.1, at=float(at), tenant="calm")
    assert again.evidence()["s"] == others
    rest = ShiftDetector(ShiftSettings(false_alarm_every=2000, reference=10**9))
    for at in range(40):
        rest.observe("s", False, 0.1, at=float(at), tenant="calm")
    for at in range(number):
        rest.observe("s", True, 0.1, at=40.0 + at, tenant="loud")
    assert rest.evidence()["s"] == pytest.approx(others)


def test_neither_of_two_tenants_alarms_while_it_takes_both():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=2000, reference=10**9))
    together = EDetector()
    alarms = []
    for number in range(14):
        alarms.append(detector.observe("s", True, 0.2, at=float(number), tenant=f"t{number % 2}"))
        together.observe(True, 0.23)
        if together.evidence >= 2000:
            break
    assert together.evidence >= 2000
    assert alarms == [None] * len(alarms)


@pytest.mark.parametrize("good", [{"false_alarm_every": 1.0}, {"tolerance": 0.0}, {"reference": 1}])
def test_settings_at_their_bounds_are_taken(good):
    assert ShiftSettings(**good)


def errors_until_alarm(detector, tenant):
    """How many errors of `tenant` in a row it takes, and the alarm."""
    alarms = (detector.observe("s", True, 0.1, at=float(n), tenant=tenant) for n in range(1, 100))
    return next((n, alarm) for n, alarm in enumerate(alarms, start=1) if alarm)


def test_after_a_tenants_alarm_its_answers_are_gone_and_only_the_others_are_left():
    detector = ShiftDetector(ShiftSettings(false_alarm_every=2000, reference=10**9))
    for _ in range(20):
        detector.observe("s", False, 0.1, tenant="calm")
    first, alarm = errors_until_alarm(detector, "loud")
    assert (alarm.tenant, alarm.answers) == ("loud", first)
    again, alarm = errors_until_alarm(detector, "loud")
    assert (alarm.tenant, alarm.answers) == ("loud", again), "those that it alarmed by count no more"
    # The last that is left starts the stream over.
    _, alarm = errors_until_alarm(detector, "calm")
    assert (alarm.tenant, detector.evidence()) == ("calm", {})


@pytest.mark.parametrize("seed", range(20))
def test_a_change_is_dated_where_the_likelihood_ratio_of_what_followed_is_largest(seed):
    draw, detector = random.Random(seed), EDetector()
    seen = [(draw.random() < 0.4, draw.uniform(0.1, 0.4)) for _ in range(25)]
    for at, (worse, allowed) in enumerate(seen):
        detector.observe(worse, allowed, float(at))
    each = [ratios(*one) for one in seen]
    likelihoods = [
        (math.prod(one[shift] for one in each[begun:]), float(begun)) for shift in range(4) for begun in range(25)
    ]
    assert detector.since == max(likelihoods)[1]
