"""Runs StepPlans of one model on the native CPU kernels: one call computes the step, one samples it."""

import torch

from inference_core.attention.batches import BlockAddresses
from inference_core.execution.host_blocks import HostBlocks
from inference_core.execution.layered_forward import LayeredForward
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.execution.native_adapter_bank import NativeAdapterBank
from inference_core.execution.native_decoder import NativeDecoder, StepTimes
from inference_core.kv_cache.block_io import HostBlockBytes
from inference_core.kv_cache.layout import KVLayout
from inference_core.lora.packing import Storage
from inference_core.model_config import ModelConfig
from inference_core.models.transformer import Decoder
from inference_core.native.cpu import extension
from inference_core.protocol import ModelInfo
from inference_core.step_plan import ScheduledSequence

# The computes that gain something in each format of prompts: who asks for float32 gets it for prompts too, and spans
# are of INT8 activations.
_COMPUTES = {"tiles": ("int4-int8", "int4", "bfloat16"), "spans": ("int4-int8",)}


class NativeRunner(LogitsRunner):
    """A decoder of `config` over the shared `arena` uint8 [bytes], cut into slabs of `slab_bytes`; `cos_sin` as
    `rotary_table` makes it. It computes once `load` has given it weights. `times`: where the last step's time went.

    `adapter_slots`: how many adapters may lie ready at once, as `adapter_storage` numbers; 0 for a model without any.
    """

    def __init__(
        self,
        info: ModelInfo,
        config: ModelConfig,
        layout: KVLayout,
        arena: torch.Tensor,
        slab_bytes: int,
        cos_sin: torch.Tensor,
        adapter_slots: int = 0,
        adapter_storage: Storage = "bfloat16",
    ) -> None:
        self.info = info
        self.config = config
        self.is_loaded = False
        self.layout = layout
        self.times = StepTimes(0, 0, 0, 0, 0, 0)
        self._decoder = NativeDecoder(config, layout, arena, slab_bytes, cos_sin)
        addresses = BlockAddresses(layout.block_size, layout.block_bytes, slab_bytes)
        self._host = HostBlocks(arena, addresses.offsets, layout.block_bytes)
        self.blocks = HostBlockBytes(arena.numpy(), addresses.offsets, layout.block_bytes)
        self.has_prompt_arithmetic = info.compute in _COMPUTES.get(extension().prompt_format(), ())
        if adapter_slots:
            self.adapters = NativeAdapterBank(self._decoder, config, adapter_slots, adapter_storage)

    def load(self, decoder: Decoder) -> None:
        """Take the weights of `decoder`, whose configuration is this runner's, from any thread."""
        self._decoder.load(decoder)
        self.is_loaded = True

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        logits, self.times = self._decoder.decode(sequences, rows)
        return logits

    def layered_forward(self, sequences: list[ScheduledSequence]) -> LayeredForward:
        return LayeredForward(self._decoder, sequences)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._decoder.copy_blocks(copies)

    def offload_blocks(self, offloads: list[tuple[int, int]]) -> None:
        self._host.offload(offloads)

    def restore_blocks(self, restores: list[tuple[int, int]]) -> None:
        self._host.restore(restores)
