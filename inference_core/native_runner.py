"""Runs StepPlans of one model on the native CPU kernels: one call computes the step, one samples it."""

import time

import torch

from inference_core.kv_layout import KVLayout
from inference_core.models.decoder import Decoder
from inference_core.native.decoder import NativeDecoder, StepTimes
from inference_core.protocol import ModelInfo
from inference_core.runner import ModelRunner
from inference_core.sampler import sample
from inference_core.step_plan import StepPlan, StepResult


class NativeRunner(ModelRunner):
    """A decoder over the shared `arena`, cut into slabs of `slab_bytes`. `times`: where the last step's time went."""

    def __init__(
        self,
        info: ModelInfo,
        decoder: Decoder,
        layout: KVLayout,
        arena: torch.Tensor,
        slab_bytes: int,
        cos_sin: torch.Tensor,
    ) -> None:
        self.info = info
        self.config = decoder.config
        self.layout = layout
        self.times = StepTimes(0, 0, 0, 0, 0, 0)
        self._decoder = NativeDecoder(decoder, layout, arena, slab_bytes, cos_sin)

    def run(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        logits, self.times = self._decoder.decode(plan.sequences)
        drawn = iter(sample(logits, [s.sample for s in plan.sequences if s.sample is not None]))
        tokens = [[next(drawn)] if s.sample is not None else [] for s in plan.sequences]
        return StepResult(tokens, seconds=time.perf_counter() - began)
