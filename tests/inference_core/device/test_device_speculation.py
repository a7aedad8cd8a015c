"""Drafts on a device change only the time: eager and captured, drawn by device and host, preempted and aborted
(SPEC SD-02, SD-08, SD-10)."""

import logging
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_device_runner import (
    GREEDY,
    NAMED,
    PENALISED,
    PROMPTS,
    REPETITIVE,
    WARM,
    Answers,
    Launches,
    answers,
    answers_of,
    assert_same,
)
from tiny_device import SLAB, SLABS, RecordingGraphs, TinyModels

from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.device_runner import DeviceRunner
from inference_core.device.step_inputs import Capacity
from inference_core.engine.core import Core
from inference_core.execution.runner import ModelRunner
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from inference_core.sampling import sampler
from inference_core.sampling.reference_sampler import distribution
from inference_core.step_plan import SampleSpec, ScheduledSequence, StepPlan

# Copied text, so that it can be looked up; long enough to cross blocks of 16 tokens with drafts that are wrong.
SAMPLINGS = [msgspec.structs.replace(s, max_tokens=40) for s in (GREEDY, WARM, REPETITIVE, NAMED, PENALISED)]


class Pair:
    """A target and a draft that often says the same, over one arena."""

    def __init__(self, folder: Path) -> None:
        self.target, self.drafting = TinyModels(folder), TinyModels(folder, noise=0.05)
        # One whose laws are others.
        self.far = TinyModels(folder, noise=0.3)

    def core(
        self,
        graphs: Callable[[], Graphs] = NoGraphs,
        slabs: int = SLABS,
        clock: Callable[[], float] | None = None,
        **knobs: Any,
    ) -> Core:
        arena = torch.zeros(SLABS * SLAB, dtype=torch.uint8)
        runners: dict[str, ModelRunner] = {
            "m": self.target.device_runner(graphs(), arena),
            "d": self.drafting.device_runner(graphs(), arena),
        }
        given = {"draft_control": "fixed", "max_draft_tokens": 5, "lookup_ngram": 1} | knobs
        given = {"prefill_chunk": 5, "max_num_batched_tokens": 64, "max_num_seqs": 8} | given
        with_clock = {} if clock is None else {"clock": clock}
        core = Core(
            runners, arena_bytes=slabs * SLAB, slab_bytes=SLAB, knobs=Knobs(**given), seed=0, drafts={"m": "d"},
            **with_clock,
        )  # fmt: skip
        core.set_knobs({"speculation": "off"}, "d")
        return core


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def expected(pair: Pair) -> Answers:
    """What the oracle says without drafts."""
    return answers(pair.target.oracle(), PROMPTS, SAMPLINGS)


def accepted(core: Core) -> int:
    stats = core.stats().models[0].speculation
    return 0 if stats is None else sum(stats.accepted)


@pytest.mark.parametrize(("way", "graphs"), [("prompt_lookup", RecordingGraphs), ("draft_model", NoGraphs)])
def test_answers_are_the_oracles_token_by_token(
    pair: Pair, expected: Answers, way: str, graphs: type[Graphs], caplog: pytest.LogCaptureFixture
) -> None:
    """Greedy, seeded, penalised, and with log-probabilities, in flight together."""
    core = pair.core(graphs, speculation=way)
    assert_same(answers_of(core, PROMPTS, SAMPLINGS), expected)
    assert accepted(core) > (5 if way == "prompt_lookup" else 40)
    assert not caplog.records  # no step was repeated without its drafts


def test_steps_with_drafts_are_captured_like_those_without(pair: Pair, expected: Answers) -> None:
    """Tokens padded to a bucket, queries bounded by 1, 4 or 16; the first work of each is repeated for all others."""
    made: list[RecordingGraphs] = []

    def graphs() -> RecordingGraphs:
        made.append(RecordingGraphs())
        return made[-1]

    core = pair.core(graphs, speculation="draft_model", max_draft_tokens=3)
    assert_same(answers_of(core, PROMPTS, SAMPLINGS), expected)
    shapes = set(made[0].works)
    assert {shape.longest_query for shape in shapes} >= {1, 4}
    assert all(shape.tokens in (1, 2, 4, 8, 24, 72) for shape in shapes)
    assert len(shapes) < made[0].replays / 2


def test_preempted_sequences_give_the_same_answers(pair: Pair, expected: Answers) -> None:
    """Eight blocks for five answers of up to four: drafts take blocks, give them back, and others take these."""
    core = pair.core(slabs=1, speculation="draft_model", max_draft_tokens=20)
    assert_same(answers_of(core, PROMPTS, SAMPLINGS), expected)
    assert core.stats().models[0].preemptions > 0


def test_aborting_a_request_with_drafts_leaves_other_requests_unchanged(pair: Pair, expected: Answers) -> None:
    core = pair.core(speculation="draft_model")
    said: dict[str, list[int]] = {str(number): [] for number in range(len(PROMPTS))}
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            said[output.request_id] += output.token_ids
        for name in ("1", "3"):
            if len(said[name]) > 10:
                core.abort(name)
        core.check_integrity()
    for number, tokens in said.items():
        whole = [token for token, _ in expected[number]]
        assert tokens == (whole[: len(tokens)] if number in "13" else whole)
    assert 10 < len(said["1"]) < 40
    assert core.stats().models[0].blocks_in_use == 0


def test_a_step_has_no_more_drafts_than_memory_was_set_aside_for(
    pair: Pair, expected: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small = Capacity(tokens=128, sequences=8, draws=12, table_updates=64)
    runner = pair.target.device_runner(capacity=small)
    assert runner.most_drafts == 4
    most: list[int] = []
    launch = runner.launch
    monkeypatch.setattr(runner, "launch", lambda plan: (most.append(plan.num_drafts), launch(plan))[1])
    knobs = Knobs(speculation="prompt_lookup", draft_control="fixed", lookup_ngram=1, prefill_chunk=5, max_num_seqs=8)
    core = Core({"m": runner}, arena_bytes=SLABS * SLAB, slab_bytes=SLAB, knobs=knobs, seed=0)
    assert_same(answers_of(core, PROMPTS, SAMPLINGS), expected)
    assert max(most) == 4
    assert not caplog.records


def test_where_drafts_do_not_pay_steps_overlap(pair: Pair, expected: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller rests once there was nothing to draft for a while, and steps need not wait for their tokens."""
    ticks = count()
    core = pair.core(
        clock=lambda: next(ticks) * 1e-3, speculation="prompt_lookup", draft_control="adaptive", lookup_ngram=8
    )
    runner = core._models["m"].runner
    assert isinstance(runner, DeviceRunner)
    launches = Launches(runner, monkeypatch)
    assert_same(answers_of(core, PROMPTS, SAMPLINGS), expected)
    assert launches.overlapped > 10


def test_a_failing_draft_on_the_device_ends_no_request(
    pair: Pair, expected: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = pair.core(speculation="draft_model")
    runner, calls = core._models["d"].runner, count()
    launch = runner.launch  # type: ignore[attr-defined]

    def failing(plan: StepPlan) -> Any:
        if next(calls) == 6:
            raise RuntimeError("lost")
        return launch(plan)

    monkeypatch.setattr(runner, "launch", failing)
    with caplog.at_level(logging.CRITICAL):
        assert_same(answers_of(core, PROMPTS, SAMPLINGS), expected)


def test_greedy_answers_are_the_same_under_rejection(pair: Pair) -> None:
    samplings = [msgspec.structs.replace(GREEDY, max_tokens=20)] * len(PROMPTS)
    core = pair.core(speculation="draft_model", draft_acceptance="rejection")
    assert_same(answers_of(core, PROMPTS, samplings), answers(pair.target.oracle(), PROMPTS, samplings))
    assert accepted(core) > 10


SAMPLES = 1_600
LAWS = [
    SamplingParams(temperature=3.0),
    SamplingParams(temperature=4.0, top_p=0.8, top_k=12),
    SamplingParams(temperature=3.0, min_p=0.05, presence_penalty=0.7),
]


@pytest.mark.parametrize("rejecting", [True, False])
def test_the_device_verifies_as_the_host_does(pair: Pair, rejecting: bool) -> None:
    """The law of what `rejection_sampling.draw` draws is held by tests of its own."""
    device, oracle, rng = pair.target.device_runner(), pair.target.oracle(), np.random.default_rng(0)
    for step in range(4):
        shares = []
        for place, params in enumerate([*LAWS, GREEDY, WARM, PENALISED]):
            spec = SampleSpec(params, [3], [], 10 * step + place, 0, ())
            laws = list(rng.dirichlet(np.ones(40), 3)) if rejecting else None
            drafts = [int(token) for token in rng.choice([20, 33, 39, 5], 3)]
            shares.append(ScheduledSequence(f"s{place}", [3, *drafts], 0, [place], spec, num_drafts=3, draft_laws=laws))
        with torch.inference_mode():
            expected = sampler.draw(oracle.logits(shares, sampler.verification_rows(shares)), shares)
        assert device.run(StepPlan(step, "m", shares)).sampled == expected


def drawn_with_a_draft(pair: Pair, params: SamplingParams, way: str) -> tuple[Counter[int], int]:
    """How often each token follows token 3, where a draft was drawn for it; and how many drafts were accepted."""
    target, drafting = pair.target.device_runner(), pair.far.device_runner()
    counts: Counter[int] = Counter()
    right = 0
    for first in range(0, SAMPLES, 8):
        specs = [SampleSpec(params, [3], [], seed, 0, ()) for seed in range(first, first + 8)]
        names = [f"s{place}" for place in range(8)]
        shares = [ScheduledSequence(n, [3], 0, [p], s) for p, (n, s) in enumerate(zip(names, specs, strict=True))]
        plan = StepPlan(0, "d", shares)
        if way == "rejection":
            drafts = drafting.draft(plan)
        else:
            drafts = [(drawn[0].token_id, None) for drawn in drafting.run(plan).sampled]
        verified = [
            msgspec.structs.replace(
                share, token_ids=[3, token], num_drafts=1, draft_laws=None if law is None else [law]
            )
            for share, (token, law) in zip(shares, drafts, strict=True)
        ]
        for said in target.run(StepPlan(0, "m", verified)).sampled:
            counts[said[0].token_id] += 1
            right += len(said) == 2
    return counts, right


def law_of(pair: Pair, params: SamplingParams) -> np.ndarray:
    oracle = pair.target.oracle()
    spec = SampleSpec(params, [3], [], 0, 0, ())
    with torch.inference_mode():
        return distribution(oracle.logits([ScheduledSequence("s", [3], 0, [0], spec)])[0].numpy(), spec)


def p_value_of(counts: Counter[int], law: np.ndarray) -> float:
    expected = law * SAMPLES
    likely = expected >= 5
    seen = np.array([counts[token] for token in range(len(law))], dtype=float)
    assert not seen[law == 0].any(), "a token without probability was drawn"
    rest = [expected[~likely].sum()] if expected[~likely].sum() > 0 else []
    seen_rest = [seen[~likely].sum()] if rest else []
    total = [*expected[likely], *rest]
    return float(chisquare([*seen[likely], *seen_rest], np.array(total) * seen.sum() / sum(total)).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "params"), [("rejection", LAWS[1]), ("rejection", LAWS[2]), ("repeatable", LAWS[1])])
def test_what_is_drawn_with_drafts_has_the_law_of_the_target(pair: Pair, params: SamplingParams, way: str) -> None:
    counts, right = drawn_with_a_draft(pair, params, way)
    assert p_value_of(counts, law_of(pair, params)) > 1e-3
    assert 0.02 * SAMPLES < right < SAMPLES


@pytest.mark.slow
def test_without_the_residual_it_would_have_another(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "residual", lambda p, q: p)
    counts, _ = drawn_with_a_draft(pair, LAWS[0], "rejection")
    assert p_value_of(counts, law_of(pair, LAWS[0])) < 1e-6
