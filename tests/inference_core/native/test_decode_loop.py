"""Several decode steps in one native call draw what as many single ones draw, on every instruction set."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_core.engine.core import Core
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams, TokenLogprob
from tests.examples import examples
from tests.inference_core.tiny_gguf import VOCAB, decoder_weights, write_gguf

pytestmark = [
    pytest.mark.properties,
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
]

samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([{}, {3: 2.0, 7: -100.0}]),
    logprobs=st.sampled_from([None, 0, 3]),
    min_tokens=st.integers(0, 6),
    max_tokens=st.integers(6, 24),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
    seed=st.integers(0, 9),
)
requests = st.lists(st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), samplings), max_size=5)
Answer = tuple[list[int], list[TokenLogprob], str | None, int | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def core_of(path: Path, steps: int, first: list[int]) -> Core:
    """A core of at most `steps` decode steps in a call, which has learned from a prompt `first` what a step takes."""
    spec = ModelSpec(name="m", path=str(path), compute="int4-int8", max_context=64)
    core = load_core(CoreSpec(models=[spec], arena_bytes=4 << 20, slab_bytes=1 << 18, threads=2), path.parent)
    core.set_knobs({"decode_steps": steps, "itl_objective_ms": 60_000.0, "prefix_caching": False})
    bias = dict.fromkeys(range(VOCAB), -100.0) | {first[0]: 100.0}
    answers(core, [(first, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logit_bias=bias))])
    return core


@pytest.fixture
def cores(folder: Path, instruction_set: str) -> list[Core]:
    """One of single steps, and one of several."""
    path = folder / "tiny.gguf"
    if not path.exists():
        write_gguf(path, decoder_weights(seed=2))
    return [core_of(path, steps, [1]) for steps in (1, 5)]


def answers(core: Core, asked: list[tuple[list[int], SamplingParams]]) -> list[Answer]:
    """Answer all of these at once; raise if a block is lost or held for nothing after any step."""
    said: dict[str, tuple[list[int], list[TokenLogprob]]] = {str(n): ([], []) for n in range(len(asked))}
    ends: dict[str, tuple[str | None, int | None]] = {}
    for number, (prompt, sampling) in enumerate(asked):
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            said[output.request_id][0].extend(output.token_ids)
            said[output.request_id][1].extend(output.logprobs or [])
            if output.finish_reason is not None:
                ends[output.request_id] = output.finish_reason, output.stop_token_id
        core.check_integrity()
    assert core.stats().models[0].blocks_in_use == 0
    return [(*said[name], *ends[name]) for name in said]


@given(asked=requests)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_and_log_probabilities_are_those_of_single_steps(
    cores: list[Core], asked: list[tuple[list[int], SamplingParams]]
) -> None:
    single, several = (answers(core, asked) for core in cores)

    assert several == single


def test_several_tokens_come_out_of_one_call(cores: list[Core]) -> None:
    calls = []
    for core in cores:
        before = core.stats()
        core.add(AddRequest(request_id="a", model="m", prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=21)))
        sizes = [len(output.token_ids) for _ in range(40) if core.has_work for output in core.step()]
        calls.append(sizes)
        assert core.stats().steps - before.steps == sum(sizes)

    assert max(calls[0]) == 1
    assert max(calls[1]) == 5


def test_a_row_without_a_token_ends_alone_after_the_tokens_before_it(cores: list[Core], folder: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    ((plain, *_),) = answers(cores[0], [([1, 2], greedy)])
    weights = decoder_weights(seed=2)
    # What follows the fourth token cannot be computed.
    weights["model.embed_tokens.weight"][plain[3]] = np.nan
    path = write_gguf(folder / f"{cpu.extension().instruction_set()}.gguf", weights)
    core = core_of(path, 5, first=[(plain[3] + 1) % VOCAB])
    free = next(token for token in range(VOCAB) if token not in plain[:4])
    for name, banned in (("ends", {}), ("goes on", {plain[3]: -100.0})):
        prompt = [1, 2] if name == "ends" else [free]
        core.add(
            AddRequest(
                request_id=name,
                model="m",
                prompt_token_ids=prompt,
                sampling=msgspec.structs.replace(greedy, logit_bias=banned),
            )
        )
    outputs = [output for _ in range(40) for output in core.step()]

    assert [t for o in outputs if o.request_id == "ends" for t in o.token_ids] == plain[:4]
    assert {o.request_id: o.finish_reason for o in outputs if o.finish_reason} == {"ends": "error", "goes on": "length"}
    assert core.stats().models[0].blocks_in_use == 0


def test_an_interruption_that_is_set_ends_the_call_after_one_step(cores: list[Core]) -> None:
    core = cores[1]
    sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    core.add(AddRequest(request_id="a", model="m", prompt_token_ids=[1, 2], sampling=sampling))
    core.step()
    core.interrupt()

    sizes = [len(output.token_ids) for _ in range(2) for output in core.step()]

    assert sizes == [1, 5]
    core.abort("a")
    assert core.stats().models[0].blocks_in_use == 0


def test_other_sequences_than_decodes_are_refused(cores: list[Core]) -> None:
    (model,) = cores[1]._models.values()
    decoder, interruption = model.runner._decoder, model.runner.interruption
    core = cores[1]
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    core.add(AddRequest(request_id="a", model="m", prompt_token_ids=[1, 2, 3], sampling=sampling))
    core.step()
    (sequence,) = core._models["m"].scheduler.running.values()
    share = sequence.share
    share.token_ids, share.start, share.sample = [1], sequence.kv.num_computed_tokens, sequence.sample_spec

    with pytest.raises(IndexError, match="do not fit a table"):
        decoder.decode_several([share], 17, interruption, [])
    with pytest.raises(ValueError, match="steps"):
        decoder.decode_several([share], 0, interruption, [])
    share.token_ids = [1, 2]
    with pytest.raises(ValueError, match="not one generated token"):
        decoder.decode_several([share], 1, interruption, [])
    assert np.int32(0) == interruption._word[0]
