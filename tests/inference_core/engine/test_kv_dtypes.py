"""The dtype of a model's KV cache changes while it serves: answers go on, and no block stays behind (SPEC FR-04)."""

from collections import defaultdict
from pathlib import Path

import pytest
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.engine.core import Core
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.engine.pinned_prefixes import PinnedPrefix
from inference_core.errors import InvalidRequestError, KVTransferError
from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loading import load_core as loading
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, Knobs, KnobValue, SamplingParams
from inference_core.protocol.kv_blocks import BlockChain
from tests.inference_core.hash_model import hash_core
from tests.inference_core.lora.adapters import write_adapter
from tests.inference_core.quantization.tiny_model import tiny_config, write_tiny_model

PROMPT = [7 * i % 40 for i in range(22)]


def driver_of(**fields: object) -> CoreDriver:
    return CoreDriver(**{"slabs": 4, "knobs": Knobs(max_num_batched_tokens=24)} | fields)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_runs_goes_on_with_its_tokens_and_the_arena_holds_more_of_the_smaller_blocks(overlap: bool) -> None:
    driver = driver_of(overlap=overlap)
    before = driver.pool().capacity
    for start in range(4):
        driver.add(PROMPT[start:], sampling=greedy(20))
    driver.step(8)
    drawing = {key: len(tokens) for key, tokens in driver.tokens.items()}
    assert any(drawing.values())

    driver.core.set_knobs({"kv_dtype": "bfloat16"})
    driver.core.check_integrity()

    assert driver.pool().num_referenced == driver.pool().num_evictable == 0
    assert driver.pool().capacity == 2 * before
    driver.drain()
    assert all(output.finish_reason == "length" for output in driver.finished.values())
    driver.assert_all_free()


def test_a_dtype_may_change_again_and_back_between_any_steps() -> None:
    driver = driver_of()
    for turn in range(12):
        driver.add([*PROMPT[turn:], turn], sampling=greedy(15))
        driver.step(2)
        driver.core.set_knobs({"kv_dtype": ("bfloat16", "float32", None)[turn % 3]})
    driver.drain()
    assert len(driver.finished) == 12
    driver.assert_all_free()


def test_nothing_that_was_cached_before_is_found_after() -> None:
    driver = driver_of(knobs=Knobs(host_cache_blocks=50))
    driver.add(PROMPT, sampling=greedy(4))
    driver.drain()
    driver.core.set_knobs({"kv_dtype": "bfloat16"})
    for _ in range(2):
        driver.add(PROMPT, sampling=greedy(4))
        driver.drain()
    cached = [driver.finished[f"r{number}", 0].cached_tokens for number in range(3)]
    assert cached == [0, 0, len(PROMPT) // BLOCK * BLOCK]


def test_a_change_to_the_dtype_that_it_has_already_keeps_the_cache() -> None:
    driver = driver_of()
    driver.add(PROMPT, sampling=greedy(4))
    driver.drain()
    driver.core.set_knobs({"kv_dtype": "float32", "max_waiting": 9})
    assert driver.pool().num_evictable > 0


def test_a_draft_model_drafts_on_in_blocks_of_its_new_dtype() -> None:
    driver = CoreDriver({"draft": 1, "target": 1}, drafts={"target": "draft"}, slabs=12)
    driver.core.set_knobs({"speculation": "draft_model", "draft_control": "fixed"}, "target")
    driver.runners["draft"].wrong_of_ten = 0
    for start in range(4):
        driver.add(PROMPT[start:], "target", greedy(60))
    for dtype in ("bfloat16", "float32"):
        driver.step(4)
        driver.core.set_knobs({"kv_dtype": dtype}, "draft")
        driver.core.check_integrity()
        stats = {model.name: model for model in driver.core.stats().models}
        assert (stats["draft"].kv_dtype, stats["target"].kv_dtype) == (dtype, "float32")
    driver.drain()
    speculation = driver.core.stats().models[1].speculation
    assert speculation is not None
    assert speculation.accepted == speculation.proposed
    driver.assert_all_free()


# -- refusals --------------------------------------------------------------------------------------


def refused(core: Core, value: KnobValue, said: str, model: str | None = None) -> None:
    knobs = core.knobs
    with pytest.raises(InvalidRequestError, match=said) as caught:
        core.set_knobs({"max_waiting": 5, "kv_dtype": value}, model)
    assert caught.value.param == "kv_dtype"
    assert core.knobs == knobs
    core.check_integrity()


def test_a_dtype_that_the_kernels_do_not_read_is_refused_with_those_that_they_do() -> None:
    driver = driver_of()
    refused(driver.core, "fp8", "kv_dtype is fp8; m can have float32, bfloat16 where it runs")
    refused(driver.core, "float8", 'kv_dtype is "float8"; allowed: ')


def test_where_the_cache_cannot_change_the_refusal_says_what_to_do() -> None:
    driver = driver_of()
    driver.runners["m"].kv_dtypes = ()
    refused(driver.core, "bfloat16", "m runs where the cache keeps the float32 .*change kv_dtype in the catalogue")
    driver.core.set_knobs({"kv_dtype": "float32"})


def test_a_request_in_flight_that_larger_blocks_could_not_hold_is_not_lost() -> None:
    driver = driver_of(slabs=1, knobs=Knobs(kv_dtype="bfloat16"))
    driver.add(PROMPT, sampling=greedy(80))
    driver.step(3)
    refused(driver.core, "float32", "a request in flight at m may need 26 blocks, and the arena would have 16")
    driver.drain()
    driver.core.set_knobs({"kv_dtype": "float32"})
    with pytest.raises(InvalidRequestError, match="too large for memory"):
        driver.add(PROMPT, sampling=greedy(80))


def test_pinned_prefixes_are_computed_again_or_refuse_blocks_that_have_no_room_for_them() -> None:
    driver = driver_of(slabs=4, knobs=Knobs(kv_dtype="bfloat16"))
    driver.pin(PinnedPrefix(name="p", model="m", token_ids=list(range(40)) * 3))
    driver.drain()
    driver.core.set_knobs({"kv_dtype": "float32"})
    driver.drain()
    (prefix,) = driver.core.stats().models[0].prefixes
    assert prefix.ready
    driver.core.set_knobs({"kv_dtype": "bfloat16"})
    driver.pin(PinnedPrefix(name="q", model="m", token_ids=[5] * 40))
    driver.drain()
    refused(driver.core, "float32", "pinned prefixes take 3 slabs of 1024 bytes, and pinned_share allows 2 of 4")


def test_blocks_of_another_dtype_are_not_taken_from_other_cores() -> None:
    chain = BlockChain(model="m", token_ids=PROMPT)
    source, target = driver_of(), driver_of(knobs=Knobs(kv_dtype="bfloat16"))
    source.add(PROMPT, sampling=greedy(1))
    source.drain()
    with pytest.raises(KVTransferError, match="kind"):
        target.core.import_blocks(chain, source.core.export_blocks(chain, 0, 1 << 20))
    source.core.set_knobs({"kv_dtype": "bfloat16"})
    source.add(PROMPT, sampling=greedy(1))
    source.drain()
    assert target.take(chain, source.core.export_blocks(chain, 0, 1 << 20)) == len(PROMPT) // BLOCK


def test_a_kept_dtype_is_that_of_the_next_start() -> None:
    core = hash_core("a", "b", knobs=LiveKnobs({"a": Knobs(), "b": Knobs(kv_dtype="bfloat16")}))
    assert [model.kv_dtype for model in core.stats().models] == ["float32", "bfloat16"]
    core.set_knobs({"kv_dtype": "catalogue"}, "b")
    assert [model.kv_dtype for model in core.stats().models] == ["float32", "float32"]


# -- the kernels -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", 3)


@pytest.fixture(params=["native", "torch"])
def tolerance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What a log-probability differs by in another batch of the kernels; those of torch are not invariant."""
    if request.param == "torch":
        monkeypatch.setattr(cpu, "AVAILABLE", False)
        return 1e-4
    if not cpu.AVAILABLE:
        pytest.skip("the native kernels were not built (no C++ compiler)")
    return 0.0


def core_of(path: Path, kv_dtype: CpuKVDtype, cache: Path, **fields: object) -> Core:
    spec = ModelSpec(name="m", path=str(path), compute="bfloat16", kv_dtype=kv_dtype, max_context=256, **fields)
    return load_core(CoreSpec(models=[spec], arena_bytes=4 << 20, slab_bytes=1 << 20, threads=1), cache)


Answers = dict[str, tuple[list[int], list[float]]]


def add(core: Core, *names: str, adapter: str = "") -> None:
    for number, name in enumerate(names):
        prompt = [(11 * number + 3 * i) % 200 for i in range(50 + number)]
        sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
        scope = {"salt": name, "adapter": adapter}
        core.add(AddRequest(request_id=name, model="m", prompt_token_ids=prompt, sampling=sampling, **scope))


def finish(core: Core, answers: Answers | None = None, steps: int = 1000) -> Answers:
    """Step until the core has no work, or so often: tokens and their log-probabilities by request."""
    answers = defaultdict(lambda: ([], [])) if answers is None else answers
    for _ in range(steps):
        if not core.has_work:
            break
        for output in core.step():
            assert output.error is None
            answers[output.request_id][0].extend(output.token_ids)
            answers[output.request_id][1].extend(each.logprob for each in output.logprobs or [])
    core.check_integrity()
    return answers


@pytest.mark.parametrize(("old", "new"), [("bfloat16", "int8"), ("int8", "float32"), ("float32", "bfloat16")])
def test_a_request_after_the_change_is_answered_as_by_a_core_that_was_started_with_the_dtype(
    old: CpuKVDtype, new: CpuKVDtype, tiny: Path, weight_cache: Path, tolerance: float
) -> None:
    core, started = core_of(tiny, old, weight_cache), core_of(tiny, new, weight_cache)
    add(core, "running", "also")
    answers = finish(core, steps=6)
    core.set_knobs({"kv_dtype": new})
    add(core, "a", "b")
    answers = finish(core, answers)
    add(started, "a", "b")
    for name, (tokens, logprobs) in finish(started).items():
        assert answers[name][0] == tokens
        assert answers[name][1] == pytest.approx(logprobs, rel=0, abs=tolerance)
    assert {len(tokens) for tokens, _ in answers.values()} == {24}

    # What ran had the numbers of the old dtype as long as that was the cache's, and those of the new one behind.
    unchanged = core_of(tiny, old, weight_cache)
    add(unchanged, "running", "also")
    _, before = finish(unchanged)["running"]
    _, across = answers["running"]
    assert across[:3] == pytest.approx(before[:3], rel=0, abs=tolerance)
    assert across != pytest.approx(before, rel=0, abs=max(tolerance, 1e-4))

    core.set_knobs({"kv_dtype": "catalogue"})
    add(core, "running", "also")
    assert finish(core)["running"][1] == pytest.approx(before, rel=0, abs=tolerance)


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
def test_adapters_stay_installed(tiny: Path, weight_cache: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", seed=1, config=tiny_config(tiny))
    core, started = (core_of(tiny, dtype, weight_cache, max_adapters=2) for dtype in ("bfloat16", "int8"))
    for each in (core, started):
        each.load_adapter("m", "x", str(folder))
    add(core, "warm", adapter="x")
    finish(core)
    core.set_knobs({"kv_dtype": "int8"})
    add(core, "a", adapter="x")
    add(started, "a", adapter="x")
    assert finish(core)["a"] == finish(started)["a"]


@pytest.mark.skipif(not cpu.AVAILABLE, reason="only the native kernels load models later")
def test_a_model_that_is_still_loaded_gets_the_dtype_that_was_set_meanwhile(
    tiny: Path, weight_cache: Path, tmp_path: Path
) -> None:
    spec = ModelSpec(name="m", path=str(tiny), compute="bfloat16", kv_dtype="bfloat16", max_context=256)
    whole = CoreSpec(models=[spec], arena_bytes=4 << 20, slab_bytes=1 << 20, threads=1)
    checkpoint = loading.open_checkpoint(tiny, weight_cache)
    arena = loading.allocate_arena(whole.arena_bytes)
    runner = loading._empty_runner(spec, checkpoint, checkpoint.config, whole, arena)
    core = Core({"m": runner}, arena_bytes=whole.arena_bytes, slab_bytes=whole.slab_bytes)
    core.set_knobs({"kv_dtype": "int8"})
    runner.load(loading.load_decoder(checkpoint, spec.compute, weight_cache))
    started = core_of(tiny, "int8", weight_cache)
    for each in (core, started):
        add(each, "a")
    assert finish(core)["a"] == finish(started)["a"]


def test_smaller_numbers_make_room_for_a_longer_request(tiny: Path, weight_cache: Path) -> None:
    spec = ModelSpec(name="m", path=str(tiny), compute="bfloat16", kv_dtype="float32")
    whole = CoreSpec(models=[spec], arena_bytes=64 << 10, slab_bytes=64 << 10, threads=1)
    core = load_core(whole, weight_cache)
    capacity = core.stats().models[0].blocks_total * 16
    prompt = [i % 200 for i in range(capacity + 20)]
    request = AddRequest(
        request_id="long", model="m", prompt_token_ids=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=4)
    )
    with pytest.raises(InvalidRequestError, match="too large for memory"):
        core.add(request)
    core.set_knobs({"kv_dtype": "int8"})
    core.add(request)
    assert finish(core)["long"][0]
