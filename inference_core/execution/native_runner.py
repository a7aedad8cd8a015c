"""Runs StepPlans of one model on the native CPU kernels: one call computes the step, one samples it.

`NativeDecoder` hands the extension the addresses of weights and keeps them alive; adapters work inside its step.
"""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from inference_core.errors import BadLogitsError, ModelFileError
from inference_core.execution.logits_runner import ArenaRunner, LayeredForward
from inference_core.execution.runner import Interruption
from inference_core.kv_cache.layout import KVDtype, KVLayout, group_layers
from inference_core.linear.linear import ConcatenatedLinear, Linear, PanelLinear
from inference_core.lora.adapter import Adapter, AdapterBank, adapter_targets
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.packing import LANES, PackedAdapter, Storage, packed_bytes
from inference_core.model_config import ModelConfig
from inference_core.models.transformer import Decoder, DecoderLayer, DenseMlp, Experts
from inference_core.models.weights import ROW_KINDS, PackedEmbedding
from inference_core.native.cpu import ACTIVATIONS, KV_DTYPES, SCHEMES, extension
from inference_core.protocol import ModelInfo
from inference_core.sampling.sampler import NativeDraw, sampled_token
from inference_core.step_plan import ChannelRows, ScheduledSequence, StepPlan, StepResult

_ENCODINGS = {kind: number for number, kind in enumerate(ROW_KINDS)}


class StepTimes(NamedTuple):
    """Seconds of one step by part, as its first thread spent them, waiting for the others included."""

    embedding: float
    linears: float
    attention: float
    rotary: float
    rows: float
    head: float


class NativeDecoder:
    """A decoder of `config` over `arena` uint8 [bytes] laid out as `layout`; embedding, norms, linears, attention and
    head run without returning to Python, on every thread of the pool. It computes once `load` has given it weights.

    `cos_sin`: float32 [tables x max position, head_dim], see `rotary_table`. Batch-invariant: a
    sequence's logits depend on it alone.
    """

    def __init__(
        self, config: ModelConfig, layout: KVLayout, arena: torch.Tensor, slab_bytes: int, cos_sin: torch.Tensor
    ) -> None:
        self._layout, self._arena, self._slab_bytes, self._cos_sin = layout, arena, slab_bytes, cos_sin
        self._decoder: Decoder | None = None
        grouped = bool(layout.window_groups)
        self._places = group_layers(config).places if grouped else [(0, i) for i in range(config.num_layers)]
        self._vocab_size = config.vocab_size
        self._hidden_size, self._num_layers = config.hidden_size, config.num_layers
        self._logits = torch.empty(0, self._vocab_size)

    def load(self, decoder: Decoder) -> None:
        """Take the weights of `decoder`, from any thread."""
        if not isinstance(decoder.embedding, PackedEmbedding):
            raise TypeError(f"the native decoder reads a PackedEmbedding, not {type(decoder.embedding).__name__}")
        layout, arena, cos_sin = self._layout, self._arena, self._cos_sin
        self._decoder = decoder
        self._alive: list[Any] = []
        self._handle = extension().make_decoder(
            self._geometry(decoder, layout, arena, self._slab_bytes, cos_sin),
            decoder.config.rms_eps,
            self._embedding(decoder.embedding),
            [self._layer(decoder.config, i, layer) for i, layer in enumerate(decoder.layers)],
            decoder.final_norm.data_ptr(),
            self._projection(decoder.head, decoder.final_norm),
            arena.data_ptr(),
        )

    def use_layout(self, layout: KVLayout) -> None:
        """Read and write blocks of `layout`, of another dtype, from the next step on; no adapter is set then."""
        self._layout = layout
        if self._decoder is not None:
            self.load(self._decoder)

    def decode(
        self, sequences: list[ScheduledSequence], rows: list[int] | None = None
    ) -> tuple[torch.Tensor, StepTimes]:
        """Compute every scheduled token, write its keys and values, and return logits float32 [rows, vocabulary].

        `rows`: which tokens' logits, ascending, counting the tokens of all sequences one after another; None for the
        last token of each sequence that samples. The logits are valid until the next call.
        Raises IndexError for a token, position, block, row or adapter slot out of range.
        """
        wanted = self._make_room(sequences, rows)
        times = extension().decode(self._handle, sequences, self._logits.data_ptr(), len(self._logits), rows)
        return self._logits[:wanted], StepTimes(*times)

    def decode_several(
        self, sequences: list[ScheduledSequence], steps: int, interruption: Interruption, channels: ChannelRows
    ) -> tuple[list[list[NativeDraw | None]], StepTimes, list[int]]:
        """Take up to `steps` decode steps, fewer as `ModelRunner.run` says; return per sequence the draws of each, and
        how many of them have left by `channels`.

        None for a draw that the first step could not make; its row ends the steps.
        Raises ValueError for other sequences than `StepPlan.decode_steps` allows, and as `decode` and `sample_rows` do.
        """
        self._make_room(sequences, None)
        sockets = [(c.descriptor, c.queued.address, c.written.address, rows) for c, rows in channels]
        room = (self._logits.data_ptr(), len(self._logits))
        times, drawn, sent = extension().decode_several(
            self._handle, sequences, *room, steps, interruption.address, sockets
        )
        return drawn, StepTimes(*times), sent

    def layers(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None, begin: int, end: int
    ) -> torch.Tensor:
        """Compute layers [begin, end) of every scheduled token: hidden states float32 [T, hidden], from `hidden`,
        contiguous and of the same shape; None where `begin` is 0. The whole step has the same bits. Raises as `decode`
        does."""
        tokens = sum(len(s.token_ids) for s in sequences)
        states = torch.empty(tokens, self._hidden_size)
        self._decode_layers(sequences, hidden, (begin, end), states.data_ptr(), tokens, [])
        return states

    def head(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor, begin: int, rows: list[int] | None = None
    ) -> torch.Tensor:
        """Compute the rest of a step whose first `begin` layers gave `hidden` float32 [T, hidden]; as `decode`."""
        if not sequences:
            return self._logits[:0]
        wanted = self._make_room(sequences, rows)
        self._decode_layers(sequences, hidden, (begin, self._num_layers), 0, len(hidden), rows)
        return self._logits[:wanted]

    def _decode_layers(
        self,
        sequences: list[ScheduledSequence],
        hidden: torch.Tensor | None,
        layers: tuple[int, int],
        output: int,
        tokens: int,
        rows: list[int] | None,
    ) -> None:
        source = 0 if hidden is None else hidden.data_ptr()
        room = (self._logits.data_ptr(), len(self._logits))
        extension().decode_layers(self._handle, sequences, *layers, source, output, tokens, *room, rows)

    def _make_room(self, sequences: list[ScheduledSequence], rows: list[int] | None) -> int:
        """Grow the logits buffer for these rows; return their number."""
        wanted = sum(s.sample is not None for s in sequences) if rows is None else len(rows)
        if len(self._logits) < wanted:
            self._logits = torch.empty(wanted, self._vocab_size)
        return wanted

    def set_adapter(self, slot: int, packed: PackedAdapter | None) -> None:
        """Use `packed` for sequences whose `adapter` is `slot` from the next step on, or no adapter (None).

        `packed` must outlive the slot's use. Raises ValueError for another number of layers.
        """
        layers = None if packed is None else packed.layers
        bfloat16 = packed is not None and packed.storage == "bfloat16"
        extension().set_adapter(self._handle, slot, bfloat16, layers)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to), in order. Raises IndexError for a block outside the arena."""
        extension().copy_blocks(self._handle, copies)

    @staticmethod
    def _geometry(
        decoder: Decoder, layout: KVLayout, arena: torch.Tensor, slab_bytes: int, cos_sin: torch.Tensor
    ) -> tuple[float, ...]:
        config, attention, experts = decoder.config, decoder.config.attention, decoder.config.experts
        return (
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.vocab_size,
            attention.sliding_window or 0,
            layout.block_size,
            len(cos_sin) // config.rope.num_tables,
            attention.qk_norm_whole,
            ACTIVATIONS[config.activation],
            config.swiglu_alpha,
            config.swiglu_limit,
            attention.softcap or 0.0,
            config.final_softcap or 0.0,
            *((0, 0, False) if experts is None else (experts.count, experts.per_token, experts.normalised)),
            KV_DTYPES[layout.dtype],
            layout.layer_bytes,
            layout.block_bytes,
            slab_bytes,
            layout.blocks_per_slab(slab_bytes),
            arena.numel(),
            1 + layout.window_groups,
            bool(layout.window) and not layout.window_groups,
        )

    def _embedding(self, embedding: PackedEmbedding) -> tuple[float, ...]:
        table = embedding.table
        data = np.ascontiguousarray(table.data)
        self._alive.append(data)
        rows, columns = table.shape
        row_bytes = data.nbytes // rows
        return (
            _ENCODINGS[table.kind],
            data.ctypes.data,
            row_bytes,
            rows,
            columns,
            embedding.round_to_bfloat16,
            embedding.scale,
        )

    def _layer(self, config: ModelConfig, index: int, layer: DecoderLayer) -> tuple[Any, ...]:
        first = config.rope_of(index) * (len(self._cos_sin) // config.rope.num_tables)
        return (
            _address(layer.attention_norm),
            _address(layer.q_norm),
            _address(layer.k_norm),
            _address(layer.mlp_norm),
            _address(layer.attention_post_norm),
            _address(layer.mlp_post_norm),
            _address(layer.sinks),
            self._cos_sin[first:].data_ptr(),
            config.window_of(index) is not None,
            *self._places[index],
            self._projection(layer.qkv, layer.attention_norm),
            self._projection(layer.output),
            isinstance(layer.mlp, Experts),
            *self._mlp(layer),
        )

    def _mlp(self, layer: DecoderLayer) -> tuple[Any, ...]:
        if isinstance(layer.mlp, DenseMlp):
            return self._projection(layer.mlp.gate_up, layer.mlp_norm), self._projection(layer.mlp.down)
        assert isinstance(layer.mlp, Experts)  # stacks are a device's
        experts = layer.mlp.experts
        gate_ups, downs = [self._projection(e.gate_up) for e in experts], [self._projection(e.down) for e in experts]
        return ((self._projection(layer.mlp.router), gate_ups, downs),)

    def _projection(self, linear: Linear, norm: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Describe `linear`; `norm` is the weight of the norm that makes its input."""
        parts = linear.parts if isinstance(linear, ConcatenatedLinear) else [linear]
        described: list[tuple[int, ...]] = []
        for part in parts:
            if not isinstance(part, PanelLinear):
                raise TypeError(f"the native decoder reads PanelLinear weights, not {type(part).__name__}")
            bias = 0 if part.bias is None else part.bias.data_ptr()
            scheme, panels = SCHEMES[part.scheme], part.panels
            apart = 0 if part.outliers is None else part.outliers.panels.data_ptr()
            described.append((scheme, panels.data_ptr(), panels.stride(0), part.out_features, bias, apart))
        return linear.in_features, linear.out_features, described, *self._outliers(parts, norm)

    def _outliers(self, parts: Sequence[Linear], norm: torch.Tensor | None) -> tuple[list[int], int]:
        """Return the inputs that the integer parts have apart, and the address of `norm` with zeros for them."""
        apart = [part.outliers for part in parts if isinstance(part, PanelLinear) and part.outliers is not None]
        if not apart:
            return [], 0
        if norm is None:
            raise TypeError("only a projection behind a norm may have outliers")
        rest = norm.clone()
        rest[apart[0].channels.long()] = 0
        self._alive.append(rest)
        return apart[0].channels.tolist(), rest.data_ptr()


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class NativeAdapterBank(AdapterBank):
    """Slots of `decoder`; adapters are held as `storage` numbers, whatever the file's."""

    def __init__(self, decoder: NativeDecoder, config: ModelConfig, num_slots: int, storage: Storage) -> None:
        self.num_slots = num_slots
        self._decoder = decoder
        self._config = config
        self._storage: Storage = storage
        self._packed: dict[int, PackedAdapter] = {}

    def read(self, folder: Path) -> Adapter:
        if any(target.column % LANES for target in adapter_targets(self._config).values()):
            raise ModelFileError(
                f"{folder}: the CPU kernels add adapters where intermediate_size is a multiple of {LANES}, "
                f"not {self._config.intermediate_size}"
            )
        return read_adapter(folder, self._config)

    def install(self, slot: int, adapter: Adapter) -> None:
        packed = PackedAdapter(adapter, adapter_targets(self._config), self._storage)
        self._decoder.set_adapter(slot, packed)
        self._packed[slot] = packed

    def reinstall(self) -> None:
        """Set all adapters again, in a decoder that has none."""
        for slot, packed in self._packed.items():
            self._decoder.set_adapter(slot, packed)

    def clear(self, slot: int) -> None:
        self._decoder.set_adapter(slot, None)
        self._packed.pop(slot, None)

    def bytes_of(self, adapter: Adapter) -> int:
        return packed_bytes(adapter, self._storage)


# The computes that gain something in each format of prompts: who asks for float32 gets it for prompts too, and spans
# are of INT8 activations.
_COMPUTES = {"tiles": ("int4-int8", "int4", "bfloat16"), "spans": ("int4-int8",)}


class NativeRunner(ArenaRunner):
    """A decoder of `config` over the shared `arena` uint8 [bytes], cut into slabs of `slab_bytes`; `cos_sin` as
    `rotary_table` makes it. It computes once `load` has given it weights. `times`: where the last step's time went.

    `adapter_slots`: how many adapters may lie ready at once, as `adapter_storage` numbers; 0 for a model without any.
    """

    most_decode_steps = sys.maxsize

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
        super().__init__(info, layout, arena, slab_bytes)
        self.config = config
        self.is_loaded = False
        self.times = StepTimes(0, 0, 0, 0, 0, 0)
        self._decoder = NativeDecoder(config, layout, arena, slab_bytes, cos_sin)
        self.has_prompt_arithmetic = info.compute in _COMPUTES.get(extension().prompt_format(), ())
        self._bank: NativeAdapterBank | None = None
        if adapter_slots:
            self.adapters = self._bank = NativeAdapterBank(self._decoder, config, adapter_slots, adapter_storage)
        # Another thread may load the weights while the layout changes.
        self._taking_weights = threading.Lock()

    def load(self, decoder: Decoder) -> None:
        """Take the weights of `decoder`, whose configuration is this runner's, from any thread."""
        with self._taking_weights:
            self._decoder.load(decoder)
            self.is_loaded = True

    def use_kv_dtype(self, dtype: KVDtype) -> None:
        super().use_kv_dtype(dtype)
        with self._taking_weights:
            self._decoder.use_layout(self.layout)
        if self._bank is not None:
            self._bank.reinstall()

    def run(self, plan: StepPlan) -> StepResult:
        if plan.decode_steps == 1:
            return super().run(plan)
        began = time.perf_counter()
        drawn, self.times, sent = self._decoder.decode_several(
            plan.sequences, plan.decode_steps, self.interruption, plan.channels
        )
        if bad := [row for row, draws in enumerate(drawn) if draws[0] is None]:
            raise BadLogitsError(bad, self.config.vocab_size)
        sampled = [[sampled_token(draw) for draw in draws if draw is not None] for draws in drawn]
        return StepResult(sampled, time.perf_counter() - began, sent=sent)

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        logits, self.times = self._decoder.decode(sequences, rows)
        return logits

    def layered_forward(self, sequences: list[ScheduledSequence]) -> LayeredForward:
        return LayeredForward(self._decoder, sequences)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._decoder.copy_blocks(copies)
