"""A Llama-family decoder in plain torch that gradients pass through: frozen weights, low-rank updates that learn."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.lora.adapter import PROJECTIONS, adapter_targets
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import EMBEDDING, vector


class LowRank(NamedTuple):
    """The shape of an adapter: its rank (0: there is none) and the factor of B (A x)."""

    rank: int
    scale: float


class AdaptedProjection(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """y = W x + b + scale * B (A x), for linear layers that share their inputs and are computed as one.

    `weight` [outputs, inputs] is frozen. `parts`: transformers' name and outputs of each layer. `down` holds their A,
    one below another, [parts * rank, inputs], `up` their B [outputs, rank], both float32. B starts as zeros, so that
    training starts from the base model (Hu et al. 2021).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        parts: list[tuple[str, int]],
        low: LowRank,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.parts, self.low = parts, low
        if low.rank:
            inputs = weight.shape[1]
            bound = 1 / math.sqrt(inputs)
            down = torch.empty(len(parts) * low.rank, inputs).uniform_(-bound, bound, generator=generator)
            self.down = nn.Parameter(down)
            self.up = nn.ParameterList(nn.Parameter(torch.zeros(outputs, low.rank)) for _, outputs in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., outputs] of the weight's type for `x` [..., inputs]. Products with the factors are of that type, too:
        in float32 they cost as much as those with the weight, and the factors themselves stay float32."""
        dtype = self.weight.dtype
        flat = x.to(dtype).flatten(0, -2)
        y = functional.linear(flat, self.weight, None if self.bias is None else self.bias.to(dtype))
        if self.low.rank:
            inner = functional.linear(flat, (self.down * self.low.scale).to(dtype))
            y = y.addmm_(inner, torch.block_diag(*self.up).to(dtype).t())
        return y.unflatten(0, x.shape[:-1])

    def factors(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """The name, A and B of each layer."""
        for index, (name, _) in enumerate(self.parts):
            rows = slice(index * self.low.rank, (index + 1) * self.low.rank)
            yield name, self.down.detach()[rows], self.up[index].detach()


class AdaptedDecoder(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The network of `checkpoint`, its frozen weights of type `dtype`, with updates of all linear layers but the head.

    Computes whole sequences without a cache. `seed`: of the first A. `longest`: tokens of the longest sequence; None:
    as many as the model was trained for. Raises ModelFileError for a bad file.
    """

    embedding: torch.Tensor
    final_norm: torch.Tensor
    head: torch.Tensor | None
    cos_sin: torch.Tensor

    def __init__(
        self, checkpoint: Checkpoint, low: LowRank, dtype: torch.dtype, seed: int = 0, longest: int | None = None
    ) -> None:
        super().__init__()
        config = self.config = checkpoint.config
        generator = torch.Generator().manual_seed(seed)
        self.low = low
        self.layers = nn.ModuleList(_Layer(checkpoint, i, low, dtype, generator) for i in range(config.num_layers))
        self.register_buffer("embedding", _matrix(checkpoint, EMBEDDING, dtype))
        self.register_buffer("final_norm", vector(checkpoint, "model.norm.weight"))
        head = None if config.tie_embeddings else _matrix(checkpoint, "lm_head.weight", dtype)
        self.register_buffer("head", head)
        positions = min(longest or config.max_position, config.max_position)
        self.register_buffer("cos_sin", rotary_table(config, positions))

    def forward(self, token_ids: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Logits float32 [N, vocabulary] at `rows`, the places (sequence [N], place [N]) of `token_ids` int64 [B, T].
        Each sequence is one text; tokens behind its end change nothing before it."""
        tokens = token_ids.shape[1]
        mask = _mask(tokens, self.config.attention.sliding_window, token_ids.device)
        return self.logits(token_ids, rows, self.cos_sin[:tokens], mask)

    def logits(
        self,
        token_ids: torch.Tensor,
        rows: tuple[torch.Tensor, torch.Tensor],
        cos_sin: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """As `forward`, by the rotations `cos_sin` of the tokens' positions; by the `mask` each token sees others."""
        hidden = self.embedding[token_ids].float()
        cos, sin = cos_sin.chunk(2, dim=-1)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask)
        final = _norm(hidden[rows], self.final_norm, self.config.rms_eps)
        head = self.embedding if self.head is None else self.head
        return functional.linear(final.to(head.dtype), head).float()

    def adapter_tensors(self) -> dict[str, torch.Tensor]:
        """A and B of every layer under PEFT's names, float32 on the CPU."""
        return {name: factor.cpu().clone() for name, factor in self.named_factors()}

    def named_factors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Views of A and B of every layer, by PEFT's names."""
        for index, layer in enumerate(self.layers):
            for projection in layer.projections.values():
                for name, down, up in projection.factors():
                    parent = adapter_targets(self.config)[name].parent
                    module = f"base_model.model.model.layers.{index}.{parent}.{name}"
                    yield f"{module}.lora_A.weight", down
                    yield f"{module}.lora_B.weight", up


class _Layer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None

    def __init__(
        self, checkpoint: Checkpoint, index: int, low: LowRank, dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = checkpoint.config
        prefix = f"model.layers.{index}"
        targets = adapter_targets(self.config)
        self.projections = nn.ModuleDict()
        for projection in PROJECTIONS:
            names = [name for name, target in targets.items() if target.projection == projection]
            modules = [f"{prefix}.{targets[name].parent}.{name}" for name in names]
            weight = torch.cat([_matrix(checkpoint, f"{module}.weight", dtype) for module in modules])
            has_bias = projection == "qkv" and self.config.attention.qkv_bias
            bias = torch.cat([vector(checkpoint, f"{module}.bias") for module in modules]) if has_bias else None
            parts = [(name, targets[name].outputs) for name in names]
            self.projections[projection] = AdaptedProjection(weight, bias, parts, low, generator)
        self.register_buffer("attention_norm", vector(checkpoint, f"{prefix}.input_layernorm.weight"))
        self.register_buffer("mlp_norm", vector(checkpoint, f"{prefix}.post_attention_layernorm.weight"))
        has_norms = self.config.attention.qk_norm
        self.register_buffer("q_norm", vector(checkpoint, f"{prefix}.self_attn.q_norm.weight") if has_norms else None)
        self.register_buffer("k_norm", vector(checkpoint, f"{prefix}.self_attn.k_norm.weight") if has_norms else None)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, T, hidden] after this layer."""
        config = self.config
        normed = _norm(hidden, self.attention_norm, config.rms_eps)
        hidden = hidden + self.projections["output"](self._attend(normed, cos, sin, mask))
        normed = _norm(hidden, self.mlp_norm, config.rms_eps)
        gate, up = self.projections["gate_up"](normed).chunk(2, dim=-1)
        out: torch.Tensor = hidden + self.projections["down"](functional.silu(gate) * up)
        return out

    def _attend(self, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = self.projections["qkv"](normed).unflatten(-1, (heads + 2 * kv_heads, config.head_dim)).transpose(1, 2)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query = _norm(query, self.q_norm, config.rms_eps)
            key = _norm(key, self.k_norm, config.rms_eps)
        dtype = value.dtype
        query, key = _rotated(query, cos, sin).to(dtype), _rotated(key, cos, sin).to(dtype)
        key, value = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return mixed.transpose(1, 2).flatten(-2)


def _matrix(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(dequantize(checkpoint.tensors[name]), np.float32)).to(dtype)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _mask(tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [T, T]: which earlier tokens each token sees."""
    at = torch.arange(tokens, device=device)
    allowed = at[None, :] <= at[:, None]
    return allowed & (at[None, :] > at[:, None] - window) if window else allowed
