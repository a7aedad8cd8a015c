"""The laboratory: the loop sees verdicts and no truth, the definitions are those stated, runs repeat."""

import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from loop_world import record

from classifier.decision import PolicyInputs, Prediction
from classifier.policy import decide
from classifier.training.dataset import TIER_MODELS, OutcomeRow
from gateway.cli.quality.simulate import simulate
from quality.laboratory.loop import LoopSettings
from quality.laboratory.page import BEGIN, END, put_on_page
from quality.laboratory.report import study_of
from quality.laboratory.router import Predictions, Rule
from quality.laboratory.run import RunResult, run
from quality.laboratory.scenario import Common, Scenario, ScenarioError, read_scenarios
from quality.laboratory.truth import Truth, cost, gap_closed, quality, utility
from quality.laboratory.verdicts import Judge, verification_cost
from quality.laboratory.world import World, build_world
from quality.sampling import SamplingSettings, Spending, affordable, draw
from quality.shift_detector import ShiftSettings

MODELS = [str(name) for name in TIER_MODELS["llmrouter"]]
COMMON = Common(
    models=MODELS,
    prices=[1.0, 2.5, 10.0, 30.0],
    metrics=["mc"],
    lambda_ref=0.1,
    warm_up_requests=2000,
    sample_rate=0.2,
    verification_budget=0.5,
    requests_per_day=1000,
)
NEW = Scenario(name="new_domain", requests=3000, domains=["gamma"], share=0.3)
SETTINGS = LoopSettings(
    sampling=SamplingSettings(rates=(0.2, 0.2, 0.05, 0.05), budget_share=0.5),
    shift=ShiftSettings(false_alarm_every=200.0),
    requests_per_day=COMMON.requests_per_day,
)
_WORDS = ["table", "window", "garden", "river", "market", "silver", "bridge", "forest", "winter", "morning", "paper"]


def _row(i: int, rng: random.Random) -> OutcomeRow:
    topic = rng.choice(["copper", "cotton", "gamma"])
    fails = {"copper": 0.6, "cotton": 0.02, "gamma": 0.9}[topic]
    right = [float(rng.random() >= fails), float(rng.random() >= 0.05), 1.0, 1.0]
    return OutcomeRow(
        id=f"row-{i}",
        source="llmrouter",
        domain=topic,
        metric="mc",
        split=rng.choices(["train", "valid", "test"], [0.6, 0.2, 0.2])[0],
        prompt=f"Tell me about {topic} {' '.join(rng.sample(_WORDS, 4))} case {i}",
        outcomes=dict(zip(MODELS, right, strict=True)),
    )


@pytest.fixture(scope="module")
def rows() -> list[OutcomeRow]:
    rng = random.Random(0)
    return [_row(i, rng) for i in range(900)]


@pytest.fixture(scope="module")
def world(rows: list[OutcomeRow], tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(rows, COMMON, NEW, tmp_path_factory.mktemp("world"), dim=8)


@pytest.fixture(scope="module")
def result(world: World) -> RunResult:
    return run(world, NEW, COMMON, SETTINGS, arm="whole", seed=3, mean_cost=3.0)


def test_the_shipped_artefact_knows_neither_the_new_domain_nor_any_prompt_of_the_traffic(world: World) -> None:
    assert set(world.traffic.domain) == set(world.fresh.domain) == {"copper", "cotton", "gamma"}
    assert np.isnan(world.traffic.encoded.labels).all()
    assert world.model.manifest.groups == ["copper", "cotton"]
    # Copper and cotton of the valid split only, gamma of the train split too.
    gamma = int((world.traffic.domain == "gamma").sum())
    assert gamma > 3 * (len(world.traffic) - gamma) / 2 - 60


def test_outcomes_that_nobody_paid_for_change_nothing_of_what_the_loop_does(world: World) -> None:
    asked: list[tuple[int, int]] = []
    judge_class = Judge.verify

    def noting(self: Judge, prompt: int, purpose: str, served: int, prices: tuple[float, ...]) -> object:
        asked.append((prompt, served))
        return judge_class(self, prompt, purpose, served, prices)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "verify", noting)
        first = run(world, NEW, COMMON, SETTINGS, arm="whole", seed=4, mean_cost=3.0)
    unseen = sorted(set(range(len(world.traffic))) - {prompt for prompt, _ in asked})
    right = world.traffic_truth.right.copy()
    right[unseen] = ~right[unseen]
    assert unseen

    again = run(replace(world, traffic_truth=Truth(right)), NEW, COMMON, SETTINGS, arm="whole", seed=4, mean_cost=3.0)

    for name in ("alarms", "fixed_rule", "retrainings", "verifications", "artefact", "days", "peak_share"):
        assert getattr(again, name) == getattr(first, name), name
    assert again.served != first.served


def test_the_same_seed_gives_the_same_run_and_another_one_another(world: World, result: RunResult) -> None:
    assert run(world, NEW, COMMON, SETTINGS, arm="whole", seed=3, mean_cost=3.0) == result
    assert run(world, NEW, COMMON, SETTINGS, arm="whole", seed=5, mean_cost=3.0) != result


def test_the_new_domain_comes_after_the_warm_up_and_verification_keeps_to_its_budget(result: RunResult) -> None:
    assert all(alarm >= result.shift for alarm in result.alarms)
    assert result.shifted_samples > 0
    assert 0.0 < result.verification_share <= 0.5


def test_the_definitions_are_those_stated() -> None:
    truth = Truth(np.array([[True, False], [False, False], [False, True]]))
    served = np.array([[2.0, 0.0], [1.0, 1.0], [3.0, 1.0]])

    assert truth.no_worse.tolist() == [[True, True], [True, True], [False, True]]
    assert quality(truth.no_worse, served) == pytest.approx(5 / 8)
    assert cost(served, [1.0, 30.0]) == pytest.approx((6 + 60) / 8)
    assert utility(truth.no_worse, served, [1.0, 30.0], 0.1) == pytest.approx(5 / 8 - 0.1 * (66 / 8) / 30)
    assert gap_closed(0.9, 0.5, 0.7) == pytest.approx(2.0)
    assert gap_closed(0.6, 0.7, 0.7) is None


def test_a_degraded_tier_loses_right_answers_only_and_the_same_ones_each_time() -> None:
    truth = Truth(np.random.default_rng(0).random((4000, 4)) < 0.7)

    worse = truth.degraded(2, 0.3, np.random.default_rng(1)).right

    assert np.array_equal(worse[:, [0, 2, 3]], truth.right[:, [0, 2, 3]])
    assert not (worse & ~truth.right).any()
    assert worse[:, 1].sum() / truth.right[:, 1].sum() == pytest.approx(0.7, abs=0.03)


def test_tiers_of_many_prompts_are_those_that_the_policy_decides_one_by_one() -> None:
    rng = np.random.default_rng(0)
    p_ok = np.hstack([rng.uniform(0.01, 0.99, (300, 3)), np.ones((300, 1))])
    predictions = Predictions(p_ok, rng.random(300), threshold=0.9, safe_tier=3)
    for lambda_ in (0.05, 0.5, 2.0):
        many = predictions.tiers(Rule(lambda_, (1.0, 2.5, 10.0, 30.0)))
        for p, novelty, tier in zip(p_ok.tolist(), predictions.novelty.tolist(), many.tolist(), strict=True):
            inputs = PolicyInputs(
                prediction=Prediction(p_ok=p, kind="measured", novelty=novelty, classifier_version="v"),
                costs=[1.0, 2.5, 10.0, 30.0],
                rule="lambda",
                quality_target=0.9,
                lambda_=lambda_,
                tau=0.9,
                novelty_threshold=0.9,
                safe_tier=3,
            )
            assert decide(inputs).tier == tier


def test_a_verification_costs_the_answers_that_were_not_served() -> None:
    prices = (1.0, 2.5, 10.0, 30.0)

    assert verification_cost("sample", 1, prices) == 30.0
    assert verification_cost("downgrade", 3, prices) == 32.5
    assert verification_cost("downgrade", 4, prices) == 10.0
    assert verification_cost("probe", 2, prices) == 41.0


def test_a_judge_who_errs_says_so_of_himself_and_never_errs_of_the_strongest() -> None:
    truth = Truth(np.ones((1, 4), np.bool_))
    judge = Judge(truth, 0.2, np.random.default_rng(0))

    said = np.array([judge.verify(0, "probe", 1, (1.0, 2.0, 3.0, 4.0)).no_worse for _ in range(2000)])

    assert judge.reliability == pytest.approx(0.8, abs=0.05)
    assert np.allclose(said.mean(axis=0), 0.8, atol=0.04)


def test_what_is_affordable_is_what_a_draw_is_thinned_by() -> None:
    settings = SamplingSettings(rates=(1.0,), least_attention=1.0, probe_rate=0.0, budget_share=0.1, probe_share=0.0)
    spending = Spending(serving_usd=100.0, answered={1: 100}, committed_usd=2.0, verifications=10)

    assert draw(record("req-1", tier=1), spending, 0.2, settings).probability == pytest.approx(
        affordable(spending, 0.2, "sample", settings)
    )


def test_the_study_has_the_stated_keys_each_with_value_and_interval(result: RunResult, tmp_path: Path) -> None:
    arms = [msgspec.structs.replace(result, arm=arm) for arm in ("repair", "retraining")]
    still = msgspec.structs.replace(result, scenario="nothing", oracle=None, retrainings=[], requests=100_000)
    study = study_of([*arms, still])
    shown = json.loads(msgspec.json.encode(study))

    for key in (
        "false_retrains_per_100k",
        "detection_samples_median",
        "gap_closed_by_promotion",
        "gap_closed_by_retraining",
        "worse_promotions",
        "verification_cost_share",
    ):
        assert {"value", "ci"} <= set(shown[key])
    # None in 100,000: the one-sided 95% bound of a Poisson rate is -ln 0.05.
    assert shown["false_retrains_per_100k"]["value"] == 0.0
    assert shown["false_retrains_per_100k"]["ci"][1] == pytest.approx(2.9957, abs=1e-3)

    page = tmp_path / "page.md"
    page.write_text(f"Before\n{BEGIN}\nold\n{END}\nafter\n")
    put_on_page(page, study, ["![plot](img/plot.png)"])
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("Before\n")
    assert text.endswith("after\n")
    assert "new_domain" in text


def test_a_scenario_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "scenarios.toml"
    file.write_text(
        "[common]\n"
        + "\n".join(f"{k} = {json.dumps(v)}" for k, v in msgspec.to_builtins(COMMON).items())
        + "\n[scenario.nothing]\nrequests = 100\n"
    )

    assert read_scenarios(file).named("nothing").requests == 100
    with pytest.raises(ScenarioError, match="there are nothing"):
        read_scenarios(file).named("everything")


@pytest.mark.slow
def test_a_run_on_the_recorded_outcomes_prints_one_json_object(tmp_path: Path) -> None:
    from shared_data import data_file

    folder = data_file("routing_outcomes.jsonl.gz").parent
    if not (folder.parent / "lab" / "scenarios.toml").is_file():
        pytest.skip("the scenarios are not here")

    printed = CliRunner().invoke(
        simulate, ["--scenario", "price_change", "--runs", "1", "--out", str(tmp_path), "--data", str(folder), "--json"]
    )

    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout)["scenarios"][0]["scenario"] == "price_change"
