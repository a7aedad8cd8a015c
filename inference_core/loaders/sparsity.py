"""Finds out whether a model is 2:4 sparse (SPEC TI-11): no kernel skips zeros, so its owner should know."""

from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, dequantize

_SAMPLED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def describe_sparsity(checkpoint: Checkpoint) -> str | None:
    """How a 2:4 sparse model is computed, None for any other one.

    A model is sparse if its settings say so, or if two of every four weights are zero in one row of each of two
    matrices in every layer; only unquantised weights are looked at.
    """
    if checkpoint.stated_sparsity == "2:4" or _is_two_of_four(checkpoint):
        return "2:4 sparse: held and multiplied as dense, zeros included"
    return None


def _is_two_of_four(checkpoint: Checkpoint) -> bool:
    tensors, found = checkpoint.tensors, False
    for layer in range(checkpoint.config.num_layers):
        for name in (f"model.layers.{layer}.{part}" for part in _SAMPLED):
            if name not in tensors:
                continue  # a network of experts
            tensor = tensors[name]
            if tensor.kind not in PLAIN_DTYPES or tensor.shape[1] % 4:
                return False
            row = dequantize(checkpoint.cut(name, range(1))).reshape(-1, 4)
            if ((row == 0).sum(axis=1) < 2).any() or not row.any():
                return False
            found = True
    return found
