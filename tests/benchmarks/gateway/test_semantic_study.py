"""What is counted of a semantic cache, with its guard and without."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.commands.gateway.semantic_cache import semantic_cache
from benchmarks.gateway.lookup_cost import lookup_cost
from benchmarks.gateway.semantic_study import PromptPair, SemanticStudy, read_pairs, semantic_study
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import default_artefact, load_artefact
from gateway.inference.routing.active_classifier import ActiveClassifier
from gateway.inference.routing.router import RoutingService
from tiers.catalog.load import load_catalog

REWORDED = PromptPair(
    "same", "A juggler has 16 balls. How many are blue?", "A juggler has 16 balls.  How many are blue?"
)
RACE = PromptPair(
    "race", "You overtake the second person. Where are you?", "You overtake the last person. Where are you?"
)
FIELDS = [f"Find the degree of the field extension Q(sqrt(2){mark} sqrt(3)) over Q." for mark in ",*+"]


@pytest.fixture(scope="module")
def model() -> OutcomeModel:
    return load_artefact(default_artefact())


def test_right_and_false_hits_are_counted_apart(model: OutcomeModel) -> None:
    study = semantic_study(model, [REWORDED, RACE], {"race"}, thresholds=[0.5, 1.01])
    low, high = study.thresholds
    assert (low.same.count, low.same_guarded.count, low.same.total) == (1, 1, 1)
    assert (low.different.count, low.different_guarded.count, low.different.total) == (1, 0, 1)
    assert (high.same.count, high.different.count, high.others.total) == (0, 0, 0)


def test_each_prompt_is_compared_with_all_others(model: OutcomeModel) -> None:
    study = semantic_study(model, [], (), [*FIELDS, REWORDED.a, REWORDED.b, "Sorting integers"], thresholds=[0.95])
    (row,) = study.thresholds
    assert (row.others.count, row.others_guarded.count, row.others.total) == (5, 2, 6)


def hits(study: SemanticStudy, *, harmless: bool) -> tuple[int, int]:
    rows = [row for row in study.edits if row.harmless is harmless]
    return sum(row.near.count for row in rows), sum(row.guarded.count for row in rows)


def test_edits_that_ask_for_something_else_are_near_and_guarded_against(model: OutcomeModel) -> None:
    study = semantic_study(model, [], (), [*FIELDS, RACE.a, "What isn't 3 + 4, is it nine?"], threshold=0.9)
    near, guarded = hits(study, harmless=False)
    assert near > 0
    assert guarded == 0
    assert hits(study, harmless=True)[1] > 0
    assert study == semantic_study(model, [], (), [*FIELDS, RACE.a, "What isn't 3 + 4, is it nine?"], threshold=0.9)


def test_equal_prompts_are_left_to_the_exact_cache(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(msgspec.json.Encoder().encode_lines([REWORDED, PromptPair("equal", "Hi", "Hi")]))
    assert read_pairs(file) == [REWORDED]


def test_an_id_that_no_pair_has_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(msgspec.json.Encoder().encode_lines([REWORDED]))
    found = CliRunner().invoke(semantic_cache, ["--pairs", str(file), "--different", "typo"])
    assert found.exit_code == 2
    assert "typo" in found.output


def test_a_lookup_is_timed_over_prompts_that_answers_are_kept_of(tmp_path: Path) -> None:
    catalog = load_catalog("laptop")
    classifier = ActiveClassifier(tmp_path, catalog.fingerprint)
    classifier.load()
    cost = asyncio.run(lookup_cost(RoutingService(catalog, {}, classifier, None), [*FIELDS, RACE.a, RACE.b]))
    assert cost.entries == 5
    assert 0 < cost.p50_us <= cost.p99_us
