"""A decoder whose norms and activations write codes computes what one does that quantises in its products."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inference_core.device import device_decoder
from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import DeviceBatch, DeviceInputs
from inference_core.device.block_tables import BlockTables
from inference_core.device.device_decoder import DeviceDecoder
from inference_core.device.step_inputs import Capacity, StepInputs, bytes_of
from inference_core.kv_cache.layout import KVLayout
from inference_core.linear.device import DenseLinear, EightBitLinear
from inference_core.linear.linear import Linear
from inference_core.model_config import ModelConfig, RotaryEmbedding
from inference_core.models.transformer import DecoderLayer, DenseMlp, rotary_table
from inference_core.step_plan import ScheduledSequence
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.weights import EightBitWeight, quantize_blocks, quantize_channels

HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 4, 2, 16, 96, 2
HIDDEN = HEADS * HEAD_DIM
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=10,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_layers=LAYERS,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position=64,
    rms_eps=1e-6,
    rope=RotaryEmbedding(theta=10000.0),
)
LAYOUT = KVLayout(num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=16, dtype="bfloat16")
CAPACITY = Capacity(tokens=16, sequences=2, draws=2, table_updates=8, adapter_slots=1)
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 1]]
KINDS = {
    "int8": lambda weight: quantize_channels(weight, torch.int8),
    "fp8": lambda weight: quantize_channels(weight, torch.float8_e4m3fn),
    "fp8-blocks": quantize_blocks,
}
# qkv, output, gate and up, down, of both layers; and which products then read codes.
MODELS = {
    "int8": (["int8"] * 8, [True, False, True, True] * 2),
    "fp8": (["fp8"] * 8, [True, False, True, True] * 2),
    "fp8-blocks": (["fp8-blocks"] * 8, [False] * 8),
    "mixed": (
        ["dense", "int8", "fp8", "dense", "int8", "dense", "fp8-blocks", "int8"],
        [False, True, True, False, True],
    ),
}


class Products(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Notes which products with 8-bit weights read codes. `launch`: ops run the functions for CUDA, whatever tensors
    are given, as the interpreter needs it."""

    def __init__(self, *, launch: bool) -> None:
        super().__init__()
        self.read_codes: list[bool] = []
        self._launch = launch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        if name == "eight_bit_linear":
            self.read_codes.append(args[2] is not None)
        if self._launch and space == "aio":
            return ops.ON_CUDA[name](*args)
        return func(*args, **(kwargs or {}))


def decoder(model: str, device: torch.device, activation: str = "silu") -> DeviceDecoder:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    def linear(kind: str, outputs: int, inputs: int) -> Linear:
        weight = random(outputs, inputs)
        if kind == "dense":
            return DenseLinear(weight.to(device, torch.bfloat16), None)
        eight = KINDS[kind](weight)
        return EightBitLinear(EightBitWeight(eight.codes.to(device), eight.scales.to(device)), None)

    def norm() -> torch.Tensor:
        return (1 + random(HIDDEN)).to(device, torch.bfloat16)

    def layer(qkv: str, output: str, gate_up: str, down: str) -> DecoderLayer:
        return DecoderLayer(
            attention_norm=norm(),
            qkv=linear(qkv, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
            q_norm=None,
            k_norm=None,
            output=linear(output, HIDDEN, HIDDEN),
            mlp_norm=norm(),
            mlp=DenseMlp(linear(gate_up, 2 * INNER, HIDDEN), linear(down, HIDDEN, INNER)),
        )

    kinds, _ = MODELS[model]
    arena = torch.zeros(4 * LAYOUT.block_bytes, dtype=torch.uint8, device=device)
    return DeviceDecoder(
        config=msgspec.structs.replace(CONFIG, activation=activation),
        dtype=torch.bfloat16,
        embedding=random(CONFIG.vocab_size, HIDDEN).to(device, torch.bfloat16),
        layers=[layer(*kinds[:4]), layer(*kinds[4:])],
        caches=[LayerCache(arena, LAYOUT, index) for index in range(LAYERS)],
        final_norm=None,
        head=None,
        cos_sin=rotary_table(CONFIG, CONFIG.max_position).to(device),
    )


def step(device: torch.device, adapter: int = -1) -> tuple[torch.Tensor, DeviceBatch]:
    """Tokens of two prompts, and their batch."""
    sequences = [
        ScheduledSequence(str(number), tokens, 0, [number], None, adapter=adapter)
        for number, tokens in enumerate(PROMPTS)
    ]
    inputs = StepInputs(CAPACITY)
    shape = inputs.fill(sequences, BlockTables(LAYOUT, LAYOUT.block_bytes * 4, rows=4, row_blocks=4), {}, renamed=False)
    memory = torch.zeros(bytes_of(CAPACITY), dtype=torch.uint8)
    memory.copy_(torch.from_numpy(inputs.memory))
    on_device = DeviceInputs(CAPACITY, memory.to(device), torch.zeros(16, dtype=torch.int64, device=device))
    on_device.apply_table_updates(shape.table_updates, inputs.apart)
    batch = on_device.batch(shape)
    return batch.token_ids, batch


def computed(
    network: DeviceDecoder, device: torch.device, *, adapter: int = -1, launch: bool = False
) -> tuple[torch.Tensor, list[bool]]:
    tokens, batch = step(device, adapter)
    products = Products(launch=launch)
    with products:
        hidden = network.compute(network.embed(tokens), batch)
    return hidden, products.read_codes


def quantise_in_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_decoder, "_takes", lambda linear, batch: None)


def assert_same_without_codes(
    monkeypatch: pytest.MonkeyPatch, model: str, device: torch.device, activation: str, *, launch: bool
) -> None:
    hidden, read = computed(decoder(model, device, activation), device, launch=launch)
    quantise_in_products(monkeypatch)
    expected, read_before = computed(decoder(model, device, activation), device, launch=launch)
    assert read == MODELS[model][1]
    assert not any(read_before)
    assert hidden.float().abs().max() > 0.1
    assert torch.equal(hidden, expected)


@pytest.mark.parametrize("activation", ["silu", "gelu-tanh"])
@pytest.mark.parametrize("model", MODELS)
def test_the_references_compute_the_same_with_codes_and_without(
    monkeypatch: pytest.MonkeyPatch, model: str, activation: str
) -> None:
    assert_same_without_codes(monkeypatch, model, torch.device("cpu"), activation, launch=False)


@pytest.mark.parametrize("model", ["int8", "fp8", "mixed"])
def test_the_kernels_compute_the_same_with_codes_and_without(
    monkeypatch: pytest.MonkeyPatch, model: str, device: torch.device
) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9) and model != "int8":
        pytest.skip("FP8 needs a device of capability 8.9")
    assert_same_without_codes(monkeypatch, model, device, "silu", launch=True)


def test_adapters_read_activations_so_nothing_is_quantised_before_its_product() -> None:
    device = torch.device("cpu")
    network = decoder("int8", device)
    plain, _ = computed(network, device)
    bank = DeviceAdapterBank(CONFIG, 1, 8, torch.bfloat16, device)  # its slot is empty: adds nothing
    adapted, read = computed(replace(decoder("int8", device), adapters=bank), device, adapter=0)
    assert not any(read)
    assert torch.equal(adapted, plain)


def test_rows_too_long_for_a_kernel_are_quantised_in_their_product() -> None:
    inputs = 36864  # Gemma 2's 27B
    weight = EightBitWeight(torch.zeros(1, inputs, dtype=torch.int8), torch.ones(1))
    assert EightBitLinear(weight, None).takes is None
