"""A closed core frees its weights and its arena at once, where no garbage collection would find them."""

import gc
import weakref
from pathlib import Path

import torch

from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.quantization.tiny_model import write_tiny_model


def tensors_of(size: int) -> list[torch.Tensor]:
    """All tensors of `size` bytes, such as an arena, that Python code can reach."""
    return [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.nbytes == size]


def test_a_closed_core_leaves_no_weights_and_no_arena(tmp_path: Path) -> None:
    arena_bytes = 17 << 20
    models = [
        ModelSpec(name="small", path=str(write_tiny_model(tmp_path / "small")), compute="float32"),
        ModelSpec(
            name="large",
            path=str(write_tiny_model(tmp_path / "large", 1)),
            compute="float32",
            draft="small",
            knobs={"speculation": "draft_model"},
        ),
    ]
    gc.collect()
    gc.disable()
    try:
        core = load_core(CoreSpec(models=models, arena_bytes=arena_bytes, slab_bytes=1 << 20), tmp_path)
        for model in ("small", "large"):
            sampling = SamplingParams(temperature=0.0, max_tokens=8)
            core.add(AddRequest(request_id=model, model=model, prompt_token_ids=[1, 2, 3], sampling=sampling))
        while core.has_work:
            core.step()
        runners = [weakref.ref(model.runner) for model in core._models.values()]
        assert tensors_of(arena_bytes)
        core.close()
        del core
        assert [runner() for runner in runners] == [None, None]
        assert not tensors_of(arena_bytes)
    finally:
        gc.enable()
