"""The replay's parts without a gateway: ladders, the upstream over HTTP, the recorded judge, figures and baselines."""

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import insert

from benchmarks.replay.baselines import at_equal_cost, by_length, fixed, mixing, shuffled
from benchmarks.replay.comparisons import comparison_in
from benchmarks.replay.deployment import Conditions, Deployment
from benchmarks.replay.figures import chosen, gain, oracle, worth
from benchmarks.replay.judge import RecordedJudge
from benchmarks.replay.ladder import Answer, Ladder, Prompt, declared_tiers, tokens_of
from benchmarks.replay.own_prompts import KINDS, MODELS, NEW_KIND, own_prompts
from benchmarks.replay.plans import own_plans, recorded_plans
from benchmarks.replay.recorded import CUSTOMER_MODELS, arena, customers
from benchmarks.replay.upstream import ReplayUpstream, running_upstream
from migrations.tables.quality import training_rows
from quality.judges.judge import Judge
from quality.judges.pairwise import PairwiseJudge, Word
from quality.judges.panel import rule_based_judges
from quality.judges.rules import ExactJudge
from tests.shared_data import data_file
from tests.support.database import migrated
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.load import load_catalog
from tiers.remote.remote_tier import RemoteTier


def ladder_of(*marks: tuple[float, float, float, float]) -> Ladder:
    prompts = [
        Prompt(f"p{n}", "kind", f"question {n}", tuple(Answer(f"{n} by tier {k}", mark) for k, mark in enumerate(row)))
        for n, row in enumerate(marks)
    ]
    return Ladder("made", declared_tiers(("a", "b", "c", "d")), tuple(prompts))


@pytest.fixture
async def upstream() -> AsyncIterator[ReplayUpstream]:
    ladder = own_prompts(40, seed=1)
    async with running_upstream(ReplayUpstream(ladder, RecordedJudge(ladder, 0.0), faster=1e6)) as running:
        yield running


async def test_a_look_waits_until_all_stored_labels_count(sqlite_url: str) -> None:
    counted = iter((0, 1, 2))
    async with migrated(sqlite_url) as engine:
        deployment = Deployment("http://gateway.test", "key", engine, Conditions())
        row = {"source": "verification", "feature_spec": "a", "embedding": b"", "no_worse": [True], "weights": [1.0]}
        async with engine.begin() as connection:
            await connection.execute(insert(training_rows), [row | {"created_at": float(n)} for n in range(2)])

        def metrics(request: httpx.Request) -> httpx.Response:
            assert request.url.path == "/metrics"
            return httpx.Response(200, text=f"# TYPE aio_own_labels gauge\naio_own_labels {next(counted)}.0\n")

        deployment._admin = httpx.AsyncClient(base_url="http://gateway.test", transport=httpx.MockTransport(metrics))
        await deployment.learned()

        assert list(counted) == []
        await deployment.close()


async def answered(url: str, body: Mapping[str, object]) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{url}/chat/completions", json=body)


async def test_the_upstream_answers_whole_and_streamed_as_the_tier_of_that_model_name_did(
    upstream: ReplayUpstream,
) -> None:
    prompt = own_prompts(40, seed=1).prompts[3]
    body = {"model": MODELS[1], "messages": [{"role": "user", "content": prompt.text}]}
    whole = (await answered(upstream.url, body)).json()
    assert whole["choices"][0]["message"]["content"] == prompt.answers[1].text
    assert whole["usage"]["completion_tokens"] == prompt.answers[1].tokens
    streamed = await answered(upstream.url, body | {"stream": True, "stream_options": {"include_usage": True}})
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    said = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert said == prompt.answers[1].text
    assert events[-1]["usage"] == whole["usage"]
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_the_upstream_cuts_answers_at_the_limit_and_refuses_what_was_not_recorded(
    upstream: ReplayUpstream,
) -> None:
    prompt = own_prompts(40, seed=1).prompts[0]
    body = {"model": MODELS[0], "messages": [{"role": "user", "content": prompt.text}], "max_tokens": 5}
    choice = (await answered(upstream.url, body)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert tokens_of(choice["message"]["content"]) == 5
    for other, status in (
        (body | {"model": "unknown"}, 404),
        (body | {"messages": [{"role": "user", "content": "never asked"}]}, 422),
        (body | {"messages": []}, 400),
    ):
        refused = await answered(upstream.url, other)
        assert refused.status_code == status
        assert refused.json()["error"]["param"] in ("model", "messages")


async def test_a_tier_gets_worse_in_the_middle_of_a_run_and_the_judge_says_so(upstream: ReplayUpstream) -> None:
    before = own_prompts(40, seed=1)
    after = before.degraded(2, 1.0)
    upstream.serve(after)
    prompt = after.prompts[0]
    body = {"model": MODELS[1], "messages": [{"role": "user", "content": prompt.text}]}
    text = (await answered(upstream.url, body)).json()["choices"][0]["message"]["content"]
    assert text == prompt.answers[1].text != before.prompts[0].answers[1].text
    assert not after.no_worse[:, 1].any()
    assert (after.no_worse[:, [0, 2, 3]] == before.no_worse[:, [0, 2, 3]]).all()


async def test_the_gateways_own_pairwise_judge_gets_the_recorded_marks_from_the_upstream(
    upstream: ReplayUpstream, tmp_path: Path
) -> None:
    catalogue = tmp_path / "catalogue.toml"
    catalogue.write_text(upstream.catalogue("replayed"))
    catalog = load_catalog(str(catalogue))
    tier = RemoteTier(catalog.tiers[-1])
    try:
        for prompt in own_prompts(40, seed=1).prompts:
            verdict = await PairwiseJudge(tier).judge(
                prompt=prompt.text, answer=prompt.answers[0].text, reference_answer=prompt.answers[-1].text
            )
            assert verdict.no_worse is prompt.no_worse(1)
    finally:
        await tier.close()


def comparison(prompt: Prompt, first: int, second: int) -> str:
    """The gateway's own question about the answers of two tiers."""
    texts = (prompt.answers[tier - 1].text for tier in (first, second))
    tier = ScriptedTier(4)
    tier.max_context = 1 << 16
    [request, *_] = PairwiseJudge(tier).requests(prompt.text, *texts)
    assert request.messages is not None
    return request.messages[-1].text


def word_for(judge: RecordedJudge, message: str) -> Word:
    """What the judge's label means."""
    asked, label = comparison_in(message), judge.reply(message)
    assert asked is not None
    assert label is not None
    return asked.word(label)


def test_the_judge_errs_about_as_many_pairs_as_it_declares_alike_in_both_orders() -> None:
    ladder = own_prompts(400, seed=2)
    right, noisy = RecordedJudge(ladder, 0.0), RecordedJudge(ladder, 0.2)
    turned = {"first": "second", "second": "first", "tie": "tie"}
    wrong = 0
    for prompt in ladder.prompts:
        said = word_for(noisy, comparison(prompt, 1, 4))
        assert word_for(noisy, comparison(prompt, 4, 1)) == turned[said]
        wrong += said != word_for(right, comparison(prompt, 1, 4))
    assert 0.14 < wrong / 400 < 0.26


def test_shuffled_verdicts_keep_their_rates_and_say_nothing_of_the_prompt() -> None:
    ladder = own_prompts(400, seed=2)
    judge = RecordedJudge(ladder, 0.0)
    honest = np.array([word_for(judge, comparison(prompt, 1, 4)) == "second" for prompt in ladder.prompts])
    judge.shuffled = True
    dealt = np.array([word_for(judge, comparison(prompt, 1, 4)) == "second" for prompt in ladder.prompts])
    assert honest.sum() == dealt.sum()
    assert abs(np.corrcoef(honest, dealt)[0, 1]) < 0.15


async def test_no_judge_of_rules_decides_about_answers_that_are_made_to_carry_an_outcome() -> None:
    judges: list[Judge] = rule_based_judges()
    assert any(isinstance(judge, ExactJudge) for judge in judges)
    for prompt in own_prompts(60, seed=3).prompts:
        for judge in judges:
            verdict = await judge.judge(
                prompt=prompt.text, answer=prompt.answers[0].text, reference_answer=prompt.answers[3].text
            )
            assert verdict.no_worse is None, (judge.name, prompt.text)


def test_own_prompts_are_the_same_for_a_seed_and_as_good_as_declared() -> None:
    ladder = own_prompts(900, seed=4)
    assert ladder.prompts == own_prompts(900, seed=4).prompts
    assert len({prompt.text for prompt in ladder.prompts}) == 900
    for kind in KINDS:
        mine = ladder.of([prompt for prompt in ladder.prompts if prompt.kind == kind.name])
        assert np.abs((mine.marks > 5).mean(axis=0) - kind.abilities).max() < 0.15
    assert {prompt.kind for prompt in own_prompts(30, 5, (NEW_KIND,)).prompts} == {"menus"}


def test_templates_that_have_not_so_many_prompts_say_so() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        own_prompts(1000, 0, (KINDS[0],))


def test_no_prompt_of_a_plan_is_both_asked_and_held_out() -> None:
    ladder = own_prompts(300, seed=6)
    plans = [
        *recorded_plans(ladder, 4, prompts=300, labels=1, rounds=1, seed=0),
        *own_plans(200, labels=1, rounds=1, seed=0),
    ]
    for plan in plans:
        asked = {prompt.text for part in (plan.traffic, plan.after, plan.measured_on) for prompt in part.prompts}
        assert not asked & {prompt.text for prompt in plan.held.prompts}
        if plan.new is not None and plan.new_held is not None:
            assert not {p.text for p in plan.new.prompts} & {p.text for p in plan.new_held.prompts}
    held = [prompt.text for plan in plans[:4] for prompt in plan.held.prompts]
    assert sorted(held) == sorted(prompt.text for prompt in ladder.prompts)


def test_figures_of_fixed_tiers_and_of_the_oracle() -> None:
    ladder = ladder_of((9, 9, 9, 9), (2, 9, 9, 9), (2, 2, 2, 9), (1, 1, 1, 1))
    strongest, cheapest, best = (worth("", ladder, s) for s in (fixed(ladder, 4), fixed(ladder, 1), oracle(ladder)))
    assert (strongest.cost.value, strongest.quality.value, strongest.saving) == (1.0, 1.0, 0.0)
    assert (cheapest.quality.value, best.quality.value, best.saving) == (0.5, 1.0, 1.0)
    assert cheapest.cost.value == pytest.approx(0.01)
    assert best.cost.value == pytest.approx((0.01 + 0.05 + 1.0 + 0.01) / 4)
    assert gain(ladder, oracle(ladder), fixed(ladder, 4)).value == pytest.approx(0.3 * (1 - best.cost.value))


def test_baselines_cost_what_they_are_compared_with() -> None:
    ladder = own_prompts(300, seed=7)
    routed = chosen(np.random.default_rng(0).integers(1, 5, 300), 4)
    cost = (routed * ladder.costs).sum()
    assert (mixing(ladder, routed) * ladder.costs).sum() == pytest.approx(cost)
    assert (at_equal_cost(ladder, fixed(ladder, 2), routed) * ladder.costs).sum() == pytest.approx(cost)
    assert by_length(ladder, routed).sum(axis=0).tolist() == routed.sum(axis=0).tolist()
    assert shuffled(routed).sum(axis=0) == pytest.approx(routed.sum(axis=0))
    lengths = np.array([len(prompt.text) for prompt in ladder.prompts])
    tiers = np.argmax(by_length(ladder, routed), axis=1)
    assert (np.diff(tiers[np.argsort(lengths, kind="stable")]) >= 0).all()


def test_files_are_read_as_they_are_described(tmp_path: Path) -> None:
    answers = {
        str(k): {"model": f"m{k}", "text": f"said by {k}", "score": score}
        for k, score in zip(range(1, 5), (3, 8, 6, 9), strict=True)
    }
    row = {"id": "arena-1", "category": "code", "turns": [{"role": "user", "content": "Why?"}], "answers": answers}
    with gzip.open(tmp_path / "replay_arena.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n")
    [prompt] = arena(tmp_path).prompts
    assert [prompt.no_worse(tier) for tier in (1, 2, 3, 4)] == [False, True, False, True]
    outcomes = {"gpt35": 0.0, "fid": 1.0, "chatgpt": 0.0, "gpt4": 0.0}
    rows = [
        {
            "id": "1",
            "source": "evouna",
            "domain": "evouna_nq",
            "metric": "human",
            "prompt": "who sang it",
            "outcomes": outcomes,
        },
        {"id": "2", "source": "evouna", "domain": "evouna_nq", "prompt": "who wrote it", "outcomes": {"gpt4": 1.0}},
        {"id": "3", "source": "mmlu_pro", "domain": "math", "prompt": "how many", "outcomes": {}},
    ]
    with gzip.open(tmp_path / "customers.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    [asked] = customers(tmp_path, "evouna").prompts
    assert [answer.mark > 5 for answer in asked.answers] == [False, True, False, False]
    assert len({answer.text for answer in asked.answers}) == 4
    one = {"source": "llmrouter", "outcomes": dict.fromkeys(CUSTOMER_MODELS["llmrouter"], 1.0)}
    kinds = (("mbpp", "code", "write it"), ("trivia_qa", "f1", "who was it"), ("gsm8k", "math", "how many"))
    with gzip.open(tmp_path / "routing_outcomes.jsonl.gz", "wt") as file:
        for domain, metric, text in kinds:
            file.write(json.dumps(one | {"id": domain, "domain": domain, "metric": metric, "prompt": text}) + "\n")
    assert [prompt.text for prompt in customers(tmp_path, "llmrouter").prompts] == ["write it", "how many"]


def test_the_recorded_files_make_ladders_in_which_a_dearer_tier_is_better() -> None:
    folder = data_file("replay_arena.jsonl.gz").parent
    recorded = (customers(folder, source) for source in ("mmlu_pro", "evouna", "llmrouter"))
    for ladder in (arena(folder), *recorded):
        means = ladder.marks.mean(axis=0)
        assert (np.diff(means) > 0).all(), ladder.name
        assert len({prompt.text for prompt in ladder.prompts}) == len(ladder.prompts)
