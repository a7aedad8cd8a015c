"""The histogram for many observations at once shows what prometheus_client's own shows."""

import random

from prometheus_client import CollectorRegistry, Histogram

from gateway.telemetry.many_histogram import ManyHistogram

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
    many = ManyHistogram("gap_seconds", "Gaps.", BOUNDS)
    ours.register(many)
    one = Histogram("gap_seconds", "Gaps.", ["model_name"], registry=theirs, buckets=BOUNDS)
    draw = random.Random(3)
    for model in ("a", "b", "a"):
        values = [*BOUNDS, 0.0, 7.0, *(draw.choice((0.25, 0.5, 0.0078125, 2.0)) for _ in range(50))]
        many.observe_all(model, values)
        for value in values:
            one.labels(model).observe(value)

    got, expected = samples(ours), samples(theirs)

    assert got.keys() == expected.keys()
    assert all(abs(got[key] - expected[key]) < 1e-9 for key in expected)


def test_a_model_without_observations_is_listed_with_zeros() -> None:
    registry = CollectorRegistry()
    many = ManyHistogram("gap_seconds", "Gaps.", BOUNDS)
    registry.register(many)

    many.observe_all("a", [])

    assert set(samples(registry).values()) == {0.0}
