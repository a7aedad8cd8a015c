"""A core answers once its first model is loaded; requests for models that are still packed wait, and lose nothing."""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.loading import load_core as loading
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.quantization.tiny_model import write_tiny_model
from tests.polling import until

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="only the native kernels pack weights")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> CoreSpec:
    folder = tmp_path_factory.mktemp("models")
    small, large = (str(write_tiny_model(folder / name, seed)) for seed, name in enumerate(("small", "large")))
    models = [
        ModelSpec(name="large", path=large, compute="bfloat16", draft="draft", knobs={"speculation": "draft_model"}),
        ModelSpec(name="draft", path=large, compute="int4-int8"),
        ModelSpec(name="small", path=small, compute="bfloat16"),
    ]
    return CoreSpec(models=models, arena_bytes=16 << 20, slab_bytes=1 << 20)


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What the loading of later models waits for."""
    event, load = threading.Event(), loading.load_decoder

    def held(*arguments: Any) -> Any:
        if threading.current_thread().name == "aio-load":
            assert event.wait(60)
        return load(*arguments)

    monkeypatch.setattr(loading, "load_decoder", held)
    return event


def ask(core: Core, *models: str) -> None:
    for model in models:
        sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        core.add(AddRequest(request_id=model, model=model, prompt_token_ids=[1, 2, 3], sampling=sampling))


def answers(core: Core, until_done: Callable[[], bool] | None = None) -> dict[str, list[int]]:
    said: dict[str, list[int]] = defaultdict(list)
    while core.has_work and not (until_done and until_done()):
        for output in core.step():
            assert output.error is None
            said[output.request_id] += output.token_ids
        core.check_integrity()
    return dict(said)


def not_loaded(core: Core) -> set[str]:
    return {model.name for model in core.stats().models if not model.is_loaded}


def test_the_first_model_answers_while_others_are_packed_and_their_requests_wait(
    spec: CoreSpec, tmp_path: Path, let_go: threading.Event
) -> None:
    whole = load_core(spec, tmp_path / "whole")
    ask(whole, "small", "draft", "large")
    expected = answers(whole)

    core = load_core(spec, tmp_path / "cache", first_model="small")
    assert not_loaded(core) == {"draft", "large"}
    assert {model.name for model in core.model_infos} == {"draft", "large", "small"}
    ask(core, "large", "small")
    assert core.pause_seconds == 0
    first = answers(core, lambda: core.pause_seconds > 0)
    assert first == {"small": expected["small"]}
    assert core.step() == []
    ask(core, "draft")
    let_go.set()
    assert answers(core) == {"draft": expected["draft"], "large": expected["large"]}
    assert not_loaded(core) == set()


def test_a_first_model_waits_for_its_draft(spec: CoreSpec, tmp_path: Path, let_go: threading.Event) -> None:
    core = load_core(spec, tmp_path, first_model="large")
    assert not_loaded(core) == {"small"}
    ask(core, "large")
    assert len(answers(core)["large"]) == 12
    let_go.set()


def test_packed_models_are_loaded_before_a_core_answers(spec: CoreSpec, tmp_path: Path) -> None:
    load_core(spec, tmp_path)
    assert not_loaded(load_core(spec, tmp_path, first_model="small")) == set()


def test_a_model_that_cannot_be_loaded_ends_the_core_once_it_is_asked_for(
    spec: CoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = loading.load_decoder

    def broken(*arguments: Any) -> Any:
        if threading.current_thread().name == "aio-load":
            raise ModelFileError("the disk is broken")
        return load(*arguments)

    monkeypatch.setattr(loading, "load_decoder", broken)
    core = load_core(spec, tmp_path, first_model="small")
    until(lambda: all(core._models[name].runner.load_error for name in ("draft", "large")))
    ask(core, "small")
    assert len(answers(core)["small"]) == 12
    ask(core, "large")
    with pytest.raises(ModelFileError, match="the disk is broken"):
        core.step()


def test_statistics_tell_the_bytes_of_every_models_weights(spec: CoreSpec, tmp_path: Path) -> None:
    core = load_core(spec, tmp_path)
    shown = {model.name: model.weight_bytes for model in core.stats().models}
    assert shown == {info.name: info.weight_bytes for info in core.model_infos}
    assert len(shown) == 3
    assert all(shown.values())
