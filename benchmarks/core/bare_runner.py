"""A model's runner without a Core, for measurements of single steps."""

from pathlib import Path

import torch
from msgspec.structs import replace

from inference_core.execution.logits_runner import LogitsRunner
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import runner_of
from inference_core.model_spec import CoreSpec, ModelSpec


def load_runner(spec: ModelSpec, core: CoreSpec, arena: torch.Tensor, cache_dir: Path) -> LogitsRunner:
    """Load one model of `core` over `arena` uint8 [bytes], in blocks that hold all layers. Raises ModelFileError."""
    spec = replace(spec, window_groups=False)
    return runner_of(spec, open_checkpoint(resolve_model_path(spec.path), cache_dir), core, arena, cache_dir)
