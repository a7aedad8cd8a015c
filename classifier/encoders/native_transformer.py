"""A checkpoint of a BERT-like encoder through the native extension, in INT8: no torch, no transformers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from classifier.encoders.checkpoint import CONFIG, TOKENIZER, checkpoint_files
from classifier.errors import CheckpointError
from classifier.native import KERNELS
from inference_core.tokenization.tokenizer_trial import require_small_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Float = npt.NDArray[np.float32]

MAX_TOKENS = 256
HEAD_SHARE = 0.75  # the share of a long prompt that is taken from its start (docs/routing.md: 192 and 64 words)
# The kernels of `make_transformer`, from the slowest: plain code, AVX2, AVX-512 VNNI, AMX.
KERNEL_SETS = ("plain", "avx2", "vnni", "amx")

_BERT = {
    "words": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "types": "embeddings.token_type_embeddings.weight",
    "norm": "embeddings.LayerNorm",
    "layers": "encoder.layer.",
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "rest": (
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ),
}
_DISTILBERT = _BERT | {
    "types": None,
    "layers": "transformer.layer.",
    "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "rest": ("attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
}
# Names of tensors by `model_type`. RoBERTa's positions start after its pad token's.
_NAMES: Mapping[str, Mapping[str, Any]] = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
}


class NativeTransformer:
    """Texts → token ids → the mean of their last hidden states, float32 [n, hidden]; thread-safe.

    Layers of BERT, DistilBERT and RoBERTa: learned positions, GELU, norms after attention and after the inner layer.
    Weights are int8 with a scale an output channel, activations int8 with one a token; the rest is float32. A long text
    is cut to its first and last tokens (`token_ids`).
    """

    def __init__(
        self,
        arrays: Sequence[Float],
        tokenizer: "Tokenizer",
        *,
        heads: int,
        epsilon: float,
        max_tokens: int,
        kernels: str = KERNEL_SETS[-1],
    ) -> None:
        """`arrays` as for the extension's `make_transformer`, whose positions bound `max_tokens`. Raises `ValueError`
        for shapes that disagree."""
        self.tokenizer, self.hidden = tokenizer, len(arrays[2])
        self.max_tokens = min(max_tokens, len(arrays[1]))
        self._native = KERNELS.make_transformer(
            tuple(np.ascontiguousarray(array, np.float32) for array in arrays),
            heads,
            epsilon,
            KERNEL_SETS.index(kernels),
        )

    @classmethod
    def load(cls, folder: Path, *, max_tokens: int = MAX_TOKENS, kernels: str = KERNEL_SETS[-1]) -> "NativeTransformer":
        """Load the checkpoint in `folder`; `kernels`: the fastest of `KERNEL_SETS` to use. Raises `CheckpointError` for
        a damaged one or another architecture, and without the extension or the `tokenizers` package."""
        config = servable_config(folder)
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise CheckpointError(f"{folder} needs tokenizers: pip install 'aio-gateway[encoder]'.") from error
        try:
            arrays = _arrays(folder, config)
            require_small_file(folder / TOKENIZER)
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            heads, epsilon = _heads(config), float(config.get("layer_norm_eps", 1e-12))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            transformer = cls(arrays, tokenizer, heads=heads, epsilon=epsilon, max_tokens=max_tokens, kernels=kernels)
        except Exception as error:  # tokenizers raises plain exceptions
            raise CheckpointError(f"{folder} cannot be loaded: {error}") from error
        vocabulary, rows = tokenizer.get_vocab_size(), len(arrays[0])
        if vocabulary > rows:
            raise CheckpointError(f"{folder}: the tokeniser knows {vocabulary} tokens, the model has {rows} rows.")
        return transformer

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ids of each text with special tokens, as `cut_to` cuts them."""
        return [cut_to(encoding.ids, self.max_tokens) for encoding in self.tokenizer.encode_batch(list(texts))]

    def encode(self, texts: Sequence[str]) -> Float:
        """Return pooled states float32 [n, hidden], each computed by itself: none depends on its neighbours."""
        return self.encode_ids(self.token_ids(texts))

    def encode_ids(self, rows: Sequence[Sequence[int]]) -> Float:
        """Like `encode`, for token ids; at most `max_tokens` of each. Raises `ValueError` for others."""
        states = np.empty((len(rows), self.hidden), np.float32)
        for ids, state in zip(rows, states, strict=True):
            KERNELS.pool_tokens(self._native, np.array(ids, np.int32), state)
        return states


def cut_to(ids: Sequence[int], max_tokens: int) -> list[int]:
    """Return the first three quarters and the last quarter of `max_tokens` ids of a longer text; of one without tokens
    the first row's, since it still needs a state."""
    if len(ids) > max_tokens:
        head = int(max_tokens * HEAD_SHARE)
        ids = [*ids[:head], *ids[head - max_tokens :]]
    return list(ids) or [0]


def servable_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the checkpoint in `folder`, whose architecture the extension computes. Raises
    `CheckpointError` for another one, and without the extension."""
    checkpoint_files(folder)
    if KERNELS is None:
        raise CheckpointError(f"{folder} is computed by the native extension, which this installation does not have.")
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
        kind, activation = config["model_type"], config.get("hidden_act", config.get("activation", "gelu"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read: {error!r}.") from error
    relative = config.get("position_embedding_type", "absolute") != "absolute"
    if kind not in _NAMES or activation != "gelu" or relative:
        architecture = f"{kind} with {activation}{' and relative positions' if relative else ''}"
        wanted = f"one of {', '.join(_NAMES)} with gelu and absolute positions"
        raise CheckpointError(f"{folder}: {architecture} is not served; give {wanted}.")
    return config


def _heads(config: Mapping[str, Any]) -> int:
    return int(config["num_attention_heads" if "num_attention_heads" in config else "n_heads"])


def _arrays(folder: Path, config: Mapping[str, Any]) -> list[Float]:
    names, tensors = _NAMES[config["model_type"]], _tensors(folder)

    def pair(name: str) -> list[Float]:
        return [tensors[f"{name}.weight"], tensors[f"{name}.bias"]]

    positions = tensors[names["positions"]]
    if names["types"] is not None:
        positions = positions + tensors[names["types"]][0]
    if "roberta" in config["model_type"] or config["model_type"] == "camembert":
        positions = positions[int(config.get("pad_token_id", 1)) + 1 :]
    arrays = [tensors[names["words"]], positions, *pair(names["norm"])]
    layers = int(config["num_hidden_layers" if "num_hidden_layers" in config else "n_layers"])
    for number in range(layers):
        layer = f"{names['layers']}{number}."
        together = zip(*(pair(layer + part) for part in names["qkv"]), strict=True)
        arrays += [np.concatenate(parts) for parts in together]
        for part in names["rest"]:
            arrays += pair(layer + part)
    return arrays


def _tensors(folder: Path) -> dict[str, Float]:
    """Return the checkpoint's tensors by name in float32, without the name of a model around the encoder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            kind, _, rest = name.partition(".")
            tensors[rest if kind in ("bert", "roberta", "distilbert") else name] = tensor.astype(np.float32)
    return tensors
