"""The teacher of the static encoder: mean hidden states of a small language model, computed once and cached in a
file."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import use_threads
from inference_core.loading.outliers import load_decoder
from inference_core.models.transformer import Decoder, DecoderLayer, rms_norm, rotary_table, silu_mul
from inference_core.tokenization.load_tokenizer import load_tokenizer

Float = npt.NDArray[np.float32]
Progress = Callable[[str, float], None]

LAYERS = 15  # of SmolLM2's 30: the middle layers predict difficulty best
MAX_TOKENS = 256
_BATCH_TOKENS = 3072
_PART = 512  # prompts between saves


class HiddenStates:
    """Computes the mean over a prompt's tokens of the hidden state after `layers` blocks, float32 [n, hidden].

    The model is computed as the product serves it: INT4 weights, INT8 activations. Results are cached under `folder` by
    prompt, rounded to float16, so that other sets of prompts reuse them and an interrupted run resumes.
    """

    def __init__(
        self,
        model: str,
        folder: Path | None = None,
        layers: int = LAYERS,
        progress: Progress = lambda stage, share: None,
    ) -> None:
        """`model` as for `resolve_model_path`; `folder` is by default the user's cache, which may be deleted. Raises
        `ModelFileError` if there is no such model."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aio" / "teacher"
        self.name, self._model = model, resolve_model_path(model)
        self._folder, self._count, self._progress = folder or cache, layers, progress

    def __call__(self, prompts: Sequence[str]) -> Float:
        self._folder.mkdir(parents=True, exist_ok=True)
        stored = self._stored()
        missing = sorted({p for p in prompts if self._key(p) not in stored})
        decoder = self._load() if missing else None
        for start in range(0, len(missing), _PART):
            part = missing[start : start + _PART]
            assert decoder is not None
            with torch.inference_mode():
                self._store(part, self._states(decoder, part))
            self._progress("asking the teacher", 0.3 * (start + len(part)) / len(missing))
        stored = self._stored() if missing else stored
        return np.stack([stored[self._key(p)] for p in prompts]).astype(np.float32)

    def _key(self, prompt: str) -> str:
        asked = f"{self._model.name} {self._count} {MAX_TOKENS} {prompt}"
        return hashlib.sha256(asked.encode(errors="replace")).hexdigest()[:24]

    def _stored(self) -> dict[str, npt.NDArray[np.float16]]:
        states: dict[str, npt.NDArray[np.float16]] = {}
        for file in sorted(self._folder.glob("*.states.npz")):
            with np.load(file) as stored:
                states.update(zip(stored["keys"].tolist(), stored["states"], strict=True))
        return states

    def _store(self, prompts: Sequence[str], states: Float) -> None:
        keys = [self._key(p) for p in prompts]
        unfinished = self._folder / f"{keys[0]}.npz"
        np.savez(unfinished, keys=np.array(keys), states=states.astype(np.float16))
        unfinished.rename(unfinished.with_suffix(".states.npz"))

    def _load(self) -> Decoder:
        use_threads(None)
        self._tokenizer = load_tokenizer(self._model)
        decoder = load_decoder(open_checkpoint(self._model, self._folder), "int4-int8", self._folder)
        self._cos_sin = rotary_table(decoder.config, MAX_TOKENS)
        return decoder

    def _states(self, decoder: Decoder, prompts: Sequence[str]) -> Float:
        encoded = [self._tokenizer.encode(prompt)[:MAX_TOKENS] or [0] for prompt in prompts]
        states = np.zeros((len(prompts), decoder.config.hidden_size), np.float32)
        batch: list[int] = []
        for i in np.argsort([len(ids) for ids in encoded], kind="stable").tolist():
            # Sorted by length, so the last prompt is as long as the batch is wide.
            if batch and (len(batch) + 1) * len(encoded[i]) > _BATCH_TOKENS:
                states[batch] = self._means(decoder, [encoded[j] for j in batch])
                batch = []
            batch.append(i)
        states[batch] = self._means(decoder, [encoded[j] for j in batch])
        return states

    def _means(self, decoder: Decoder, batch: list[list[int]]) -> Float:
        """Return mean hidden states [b, hidden] of token ids; padding is at the end, where no token attends to it."""
        width = max(map(len, batch))
        real = torch.tensor([[1.0] * len(ids) + [0.0] * (width - len(ids)) for ids in batch])[..., None]
        hidden = decoder.embedding.rows([t for ids in batch for t in (*ids, *[0] * (width - len(ids)))])
        for layer in decoder.layers[: self._count]:
            self._block(decoder, layer, hidden, len(batch))
        hidden = hidden.view(len(batch), width, -1)
        means: Float = ((hidden * real).sum(1) / real.sum(1)).numpy()
        return means

    def _block(self, decoder: Decoder, layer: DecoderLayer, hidden: torch.Tensor, count: int) -> None:
        """Compute one block in place on `hidden` [count x width, hidden]: whole prompts, so there is no KV cache."""
        config = decoder.config
        normed = torch.empty_like(hidden)
        rms_norm(hidden, layer.attention_norm, config.rms_eps, normed)
        heads, kv_heads, d = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = torch.empty(len(hidden), (heads + 2 * kv_heads) * d)
        layer.qkv.apply(normed, qkv)
        rows = qkv.view(count, -1, heads + 2 * kv_heads, d).transpose(1, 2)
        query, key, value = rows.split([heads, kv_heads, kv_heads], dim=1)
        mixed = functional.scaled_dot_product_attention(
            self._rotated(query), self._rotated(key), value, is_causal=True, enable_gqa=True
        )
        layer.output.apply(mixed.transpose(1, 2).reshape(len(hidden), heads * d), hidden, accumulate=True)
        rms_norm(hidden, layer.mlp_norm, config.rms_eps, normed)
        gate_up = torch.empty(len(hidden), 2 * config.intermediate_size)
        layer.gate_up.apply(normed, gate_up)
        activated = torch.empty(len(hidden), config.intermediate_size)
        silu_mul(gate_up, activated)
        layer.down.apply(activated, hidden, accumulate=True)

    def _rotated(self, part: torch.Tensor) -> torch.Tensor:
        """Apply rotary embedding to [b, heads, width, d], split in halves."""
        cos, sin = self._cos_sin[: part.shape[2]].chunk(2, dim=-1)
        first, second = part.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
