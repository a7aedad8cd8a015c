"""Our counters and histograms produce the output of prometheus_client's."""

import random

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.telemetry.families import CounterFamily, HistogramFamily
from gateway.telemetry.request_metrics import BoundedNames

BOUNDS = (0.001, 0.01, 0.5, 1.0, 2.5)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str, str | None], float]:
    return {
        (sample.name, sample.labels["model_name"], sample.labels.get("le")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_it_shows_the_buckets_counts_and_sums_of_an_ordinary_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    many = HistogramFamily("gap_seconds", "Gaps.", ["model_name"], BOUNDS)
    ours.register(many)
    one = Histogram("gap_seconds", "Gaps.", ["model_name"], registry=theirs, buckets=BOUNDS)
    draw = random.Random(3)
    for model in ("a", "b", "a"):
        values = [*BOUNDS, 0.0, 7.0, *(draw.choice((0.25, 0.5, 0.0078125, 2.0)) for _ in range(50))]
        many.observe_all((model,), values[5:])
        for value in values[:5]:
            many.observe((model,), value)
        for value in values:
            one.labels(model).observe(value)

    got, expected = samples(ours), samples(theirs)

    assert got.keys() == expected.keys()
    assert all(abs(got[key] - expected[key]) < 1e-9 for key in expected)


def test_a_model_without_observations_is_listed_with_zeros() -> None:
    registry = CollectorRegistry()
    many = HistogramFamily("gap_seconds", "Gaps.", ["model_name"], BOUNDS)
    registry.register(many)

    many.observe_all(("a",), [])

    assert set(samples(registry).values()) == {0.0}


def test_labels_beyond_its_own_are_summed_and_shown_under_another_name() -> None:
    registry = CollectorRegistry()
    many = HistogramFamily("gap_seconds", "Gaps.", ["model_name"], BOUNDS)
    registry.register(many)
    for model, operation, value in (("a", "chat", 0.25), ("a", "text", 7.0), ("b", "chat", 0.25), ("a", "chat", 0.25)):
        many.observe((model, operation), value)
    counts = {key[1:]: value for key, value in samples(registry).items() if key[0] == "gap_seconds_bucket"}
    assert [counts["a", le] for le in ("0.01", "0.5", "2.5", "+Inf")] == [0, 2, 2, 3]
    assert counts["b", "+Inf"] == 1
    assert samples(registry)["gap_seconds_sum", "a", None] == 7.5
    whole = [s for s in many.named("other", ["model", "operation"]).samples if s.name == "other_count"]
    assert {(s.labels["model"], s.labels["operation"]): s.value for s in whole} == {
        ("a", "chat"): 2, ("a", "text"): 1, ("b", "chat"): 1,
    }  # fmt: skip


def test_the_buckets_of_many_values_are_returned() -> None:
    many = HistogramFamily("gap_seconds", "Gaps.", [], BOUNDS)
    assert many.observe_all((), [0.001, 0.0011, 0.4, 9.0, 9.0]) == {0: 1, 1: 1, 2: 1, 5: 2}


def test_a_counter_shows_the_sum_of_each_combination_of_labels() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    family = CounterFamily("cost_usd", "Cost.", ["tier", "key"])
    ours.register(family)
    counter = Counter("cost_usd", "Cost.", ["tier", "key"], registry=theirs)
    for labels, amount in ((("1", "a"), 0.5), (("2", "a"), 1.0), (("1", "a"), 0.25)):
        family.add(labels, amount)
        counter.labels(*labels).inc(amount)
    shown = [
        {tuple(s.labels.items()): s.value for f in r.collect() for s in f.samples if s.name == "cost_usd_total"}
        for r in (ours, theirs)
    ]
    assert shown[0] == shown[1]
    assert family.value(("1", "a")) == 0.75


def test_names_that_callers_choose_are_bounded() -> None:
    names = BoundedNames(most=2)
    assert [names.label(name) for name in ("a", "b", "c", None, "a", "d")] == ["a", "b", "other", "none", "a", "other"]
