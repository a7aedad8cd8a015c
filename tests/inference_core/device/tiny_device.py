"""A tiny random model on the CPU as a device, and the operator-by-operator runner that is its oracle."""

from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
import torch

from inference_core.attention import ReferenceAttention
from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.block_tables import StepBuckets
from inference_core.device.device_runner import DeviceRunner
from inference_core.device.step_inputs import Capacity
from inference_core.device.weights import load_device_decoder, stored_experts, stored_linears
from inference_core.execution.logits_runner import DecoderRunner
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.model_spec import ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import load_decoder
from inference_core.protocol import ModelInfo
from inference_core.protocol.kv_blocks import KVIdentity
from tests.inference_core.tiny_gguf import HEAD_DIM, decoder_weights, write_gguf

SLAB = 1 << 16
SLABS = 8
SPEC = ModelSpec(name="m", path="", compute="float32", kv_dtype="float32", block_size=16)
CAPACITY = Capacity(tokens=128, sequences=8, draws=72, table_updates=64)


class RecordingGraphs(Graphs):
    """Repeats the first work of every key, as a captured graph would: what later steps say is not heard. Like those of
    CUDA it does new work several times before the first repetition, which must change nothing."""

    def __init__(self) -> None:
        self.works: dict[Hashable, Callable[[], torch.Tensor]] = {}
        self.replays = 0

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self.works:
            self.works[key] = work
            work(), work()
        self.replays += 1
        return self.works[key]()

    @property
    def captured(self) -> tuple[Hashable, ...]:
        return tuple(self.works)


class TinyModels:
    """The same weights behind both runners."""

    def __init__(self, folder: Path, noise: float = 0.0, model: Path | None = None, **weights: bool) -> None:
        """`noise`: how far the weights are from those of a model without. `model`: another one, by its path."""
        self.checkpoint = open_checkpoint(model or self._written(folder, noise, weights), folder)
        self.layout = layout_of(SPEC, self.checkpoint.config)
        self.info = ModelInfo(
            name="m",
            model_path="",
            max_context=self.checkpoint.config.max_position,
            vocab_size=self.checkpoint.config.vocab_size,
            weight_bytes=0,
            compute="float32",
            kv=KVIdentity(weights="tiny", compute="float32", kernels="device", layout=self.layout),
        )
        self.folder = folder

    @staticmethod
    def _written(folder: Path, noise: float, weights: dict[str, bool]) -> Path:
        path = folder / f"tiny-{noise}.gguf"
        architecture = "qwen2" if weights.get("bias") else "qwen3" if weights.get("norms") else "llama"
        settings = {"attention.key_length": HEAD_DIM} if architecture == "qwen3" else {}
        rng = np.random.default_rng(1)
        tensors = {
            name: tensor + noise * rng.standard_normal(tensor.shape, np.float32)
            for name, tensor in decoder_weights(**weights).items()
        }
        write_gguf(path, tensors, architecture=architecture, settings=settings)
        config = open_checkpoint(path, folder).config
        assert config.attention.qkv_bias == weights.get("bias", False)
        assert config.attention.qk_norm == weights.get("norms", False)
        return path

    def device_runner(
        self,
        graphs: Graphs | None = None,
        arena: torch.Tensor | None = None,
        capacity: Capacity = CAPACITY,
        dtype: torch.dtype = torch.float32,
    ) -> DeviceRunner:
        """Over `arena`, or one of its own; `dtype` of the activations."""
        self.arena = torch.zeros(SLABS * SLAB, dtype=torch.uint8) if arena is None else arena
        device = torch.device("cpu")
        decoder = load_device_decoder(
            self.checkpoint,
            stored_linears(self.checkpoint, "dense", dtype, device, self.folder),
            self.layout,
            self.arena,
            dtype=dtype,
            max_context=self.info.max_context,
            stacks=stored_experts(self.checkpoint, "dense", dtype, device, self.folder),
        )
        return DeviceRunner(
            self.info,
            decoder,
            self.layout,
            self.arena,
            SLAB,
            graphs=graphs or NoGraphs(),
            buckets=StepBuckets((1, 2, 4, 8, 24, 72), (16, 32, 96), (4, 72)),
            capacity=capacity,
        )

    def oracle(self) -> DecoderRunner:
        config = self.checkpoint.config
        arena = torch.zeros(SLABS * SLAB, dtype=torch.uint8)
        attention = ReferenceAttention(config, self.layout, arena, rotary_table(config, self.info.max_context))
        return DecoderRunner(
            self.info, load_decoder(self.checkpoint, "float32", self.folder), self.layout, attention, SLAB
        )
