"""Every operation of a model in bfloat16 computes in the type that docs/results/exactness.md gives for it
(SPEC TI-15)."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_device import SLAB, SLABS, TinyModels
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference_core.device.device_decoder import DeviceDecoder
from inference_core.engine.core import Core
from inference_core.linear.device import EightBitLinear, Int4Linear, stack_experts
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.ops import route
from inference_core.triton_kernels.weights import Int4Weight, pack_int4, quantize_blocks, quantize_channels
from tests.inference_core.models.test_decoder_against_transformers import checkpoint_folder
from tests.inference_core.triton_kernels.int4_tensors import int4_tensor

ROOT = Path(__file__).parents[3]
ACTIVATIONS = torch.bfloat16
# The row of the page for each op, and for what is outside of them.
NORM, ROTATION = "norm, alone and with the addition to the residual stream", "rotation and cache write"
ATTENTION, GATED = "attention: scores, softmax, weighted sum", "SwiGLU, GEGLU"
ROUTES, EXPERTS = "routes and weights of experts", "products of experts, their weighted sum"
INT4, EIGHT_BIT = "product with 4-bit weights", "product with 8-bit weights"
SAMPLING, REST = "edits of logits, draws", "dense product, last addition to the residual stream"
OPERATIONS = {
    "aio::rms_norm": NORM,
    "aio::add_rms_norm": NORM,
    "aio::rope_and_write": ROTATION,
    "aio::paged_attention": ATTENTION,
    "aio::swiglu": GATED,
    "aio::geglu": GATED,
    "aio::route_experts": ROUTES,
    "aio::dense_experts": EXPERTS,
    "aio::int4_experts": EXPERTS,
    "aio::add_experts": EXPERTS,
    "aio::int4_linear": INT4,
    "aio::eight_bit_linear": EIGHT_BIT,
}
SAMPLING_OPS = {"aio::edit_logits", "aio::draw_tokens", "aio::row_totals"}
# Calls that compute nothing: they allocate, view, copy, choose or convert numbers.
MOVES = {
    "_local_scalar_dense", "_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "chunk", "clone", "copy_",
    "detach", "embedding", "empty", "empty_like", "empty_strided", "expand", "fill_", "full", "index", "index_put_",
    "index_select", "lift_fresh", "masked_fill", "masked_fill_", "new_empty", "new_zeros", "numpy_T", "permute",
    "repeat", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "to", "transpose",
    "unbind", "unsqueeze", "view", "where", "zero_", "zeros", "zeros_like",
}  # fmt: skip


class PrecisionRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Notes under the `operation` that runs what types it computes in: those of all floating results."""

    def __init__(self) -> None:
        super().__init__()
        self.operation: str | None = None
        self.found: dict[str, set[tuple[str, torch.dtype]]] = defaultdict(set)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in OPERATIONS:
            # Not `func`, which would leave this mode for what the op computes.
            return self.within(OPERATIONS[name], ops.ON_CPU[name.removeprefix("aio::")])(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if name in SAMPLING_OPS:
            # Temperatures and the like are parameters of a row, not its numbers.
            self._note(SAMPLING, name, [arg for arg in args if arg.dim() == 2])
        elif self.operation and name.startswith("aten::") and name.removeprefix("aten::") not in MOVES:
            self._note(self.operation, name, result)
        return result

    def _note(self, operation: str, name: str, tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.found[operation].add((name, tensor.dtype))

    def within(self, operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, noted under `operation`."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            before, self.operation = self.operation, operation
            try:
                with self:
                    return function(*args, **kwargs)
            finally:
                self.operation = before

        return noted


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> PrecisionRecorder:
    made = PrecisionRecorder()
    monkeypatch.setattr(DeviceDecoder, "compute", made.within(REST, DeviceDecoder.compute))
    return made


def policy() -> dict[str, str]:
    """The page's table: operations and what they compute in."""
    page = (ROOT / "docs" / "results" / "exactness.md").read_text(encoding="utf-8")
    table = page.partition("| operation | computes in | stores |")[2].partition("\n\n")[0]
    return dict(line.strip("| ").split(" | ")[:2] for line in table.splitlines()[2:])


def run_model(folder: Path, family: str | None = None) -> None:
    """Prompts in chunks and tokens, greedy, drawn, and with edited logits, of a random model of `family` (Llama's)."""
    if family is not None:
        checkpoint_folder(family, folder / family)
    model = None if family is None else folder / family
    runner = TinyModels(folder, norms=True, model=model).device_runner(dtype=ACTIVATIONS)
    knobs = Knobs(prefill_chunk=5, max_num_batched_tokens=32, max_num_seqs=8)
    core = Core({"m": runner}, arena_bytes=SLABS * SLAB, slab_bytes=SLAB, knobs=knobs, seed=0)
    for number, sampling in enumerate(
        [
            SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
            SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=4, ignore_eos=True, presence_penalty=1.5),
        ]
    ):
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=list(range(1, 12)), sampling=sampling))
    while core.has_work:
        assert all(output.error is None for output in core.step())


def run_quantised_products() -> None:
    outputs, inputs = 12, 256
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1)) * 0.1
    x, out = torch.ones(3, inputs, dtype=ACTIVATIONS), torch.zeros(3, outputs, dtype=ACTIVATIONS)
    Int4Linear(Int4Weight.load(pack_int4(int4_tensor("Q4_1", outputs, inputs)), inputs, "cpu"), None).apply(x, out)
    EightBitLinear(quantize_channels(weight, torch.int8), None).apply(x, out, accumulate=True)
    EightBitLinear(quantize_blocks(weight), None).apply(x, out)


def run_int4_experts() -> None:
    rows = route(torch.randn(3, 2), torch.zeros(3, dtype=torch.int64), 1, normalise=True)
    packed = Int4Weight.load(pack_int4(int4_tensor("Q4_1", 12, 256)), 256, "cpu")
    x, out = torch.ones(3, 256, dtype=ACTIVATIONS), torch.zeros(3, 12, dtype=ACTIVATIONS)
    stack_experts([Int4Linear(packed, None)] * 2, "cpu", ACTIVATIONS).apply(x, out, rows, 1)


def names(found: dict[str, set[tuple[str, torch.dtype]]]) -> Iterator[tuple[str, str]]:
    for operation, noted in found.items():
        types = {dtype for _, dtype in noted}
        assert len(types) == 1, (operation, sorted(noted, key=str))
        yield operation, "activations' type" if types == {ACTIVATIONS} else str(types.pop()).removeprefix("torch.")


def test_each_operation_computes_in_the_type_of_its_row(recorder: PrecisionRecorder, tmp_path: Path) -> None:
    with recorder:
        run_model(tmp_path)
        for family in ("mixtral", "gemma3"):
            run_model(tmp_path, family)
        run_quantised_products()
        run_int4_experts()

    assert dict(names(recorder.found)) == policy()
