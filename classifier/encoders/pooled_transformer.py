"""A Hugging Face encoder as a function from texts to pooled hidden states, without padding.

Batches are formed by a token budget and packed; attention stays within each sequence of a packed batch, as an
attention implementation that transformers can call.
"""

import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoModel

from classifier.encoders.checkpoint import TOKENIZER, EncoderPooling, checkpoint_files
from classifier.encoders.native_transformer import MAX_TOKENS, cut_to
from classifier.errors import CheckpointError
from inference_core.tokenization.tokenizer_trial import require_small_file

Indices = npt.NDArray[np.intp]


class Run(NamedTuple):
    """Sequences of equal length that are adjacent in a packed batch, from token `start` on."""

    start: int
    rows: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.length


def batches_by_length(lengths: Sequence[int], budget: int) -> list[Indices]:
    """Return all rows in batches of at most `budget` tokens, shortest first; a longer row is a batch of its own.

    Neighbours have similar lengths, so that attention finds long runs of equal ones.
    """
    return cut(np.argsort(np.asarray(lengths), kind="stable"), lengths, budget)


def shuffled_batches(lengths: Sequence[int], budget: int, seed: Sequence[int]) -> list[Indices]:
    """Return the same batches in random order, for training; equal seeds give equal batches."""
    return cut(np.random.default_rng(list(seed)).permutation(len(lengths)), lengths, budget)


def cut(order: Indices, lengths: Sequence[int], budget: int) -> list[Indices]:
    """Split `order` into batches of at most `budget` tokens each."""
    batches: list[Indices] = []
    start = tokens = 0
    for end, row in enumerate(order):
        if end > start and tokens + lengths[row] > budget:
            batches.append(order[start:end])
            start, tokens = end, 0
        tokens += lengths[row]
    if len(order):
        batches.append(order[start:])
    return batches


def runs(sorted_lengths: Sequence[int]) -> list[Run]:
    """Group adjacent sequences, sorted by length, into runs of equal length."""
    grouped: list[Run] = []
    start = 0
    for length, count in zip(*np.unique(np.asarray(sorted_lengths, np.intp), return_counts=True), strict=True):
        grouped.append(Run(start, int(count), int(length)))
        start = grouped[-1].end
    return grouped


NAME = "aio_packed"


def packed_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed_runs: Sequence[Run] | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Map `query`, `key`, `value` [batch, heads, tokens, head_dim] to [batch, tokens, heads, head_dim].

    With `packed_runs` the batch is one row of sequences sorted by length, and attention stays within each sequence.
    Every run is one call of torch's kernel, without padding and without a tokens x tokens mask. Without `packed_runs`,
    rows are whole sequences of one length. `sliding_window`: only tokens closer than that attend to each other.
    """
    if getattr(module, "is_causal", False):
        raise ValueError("packed attention is for encoders, whose tokens see each other in both directions")
    if packed_runs is None:
        return _within(query, key, value, dropout, scaling, sliding_window), None
    parts = []
    for run in packed_runs:
        # [1, heads, tokens, d] → [rows, heads, length, d]
        q, k, v = (
            x[0, :, run.start : run.end].unflatten(1, (run.rows, run.length)).transpose(0, 1)
            for x in (query, key, value)
        )
        parts.append(_within(q, k, v, dropout, scaling, sliding_window).flatten(0, 1))
    return torch.cat(parts).unsqueeze(0), None


def _within(query: Any, key: Any, value: Any, dropout: float, scaling: float | None, window: int | None) -> Any:
    length, mask = query.shape[-2], None
    if window is not None and length > window:
        position = torch.arange(length, device=query.device)
        mask = (position[:, None] - position[None, :]).abs() < window
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.transpose(1, 2)


AttentionInterface.register(NAME, packed_attention)


log = logging.getLogger(__name__)

TOKENS_PER_BATCH = 4096
# Largest rounding difference between two computations of the same float32 state.
TOLERANCE = 1e-3

Float = npt.NDArray[np.float32]


class PooledTransformer:
    """Texts → token ids → hidden states → one state for each text by `pooling`, float32 [n, hidden].

    Texts of different lengths are packed into a single row if the architecture accepts external positions and
    attention; otherwise texts of equal length form a batch. There is no padding either way, and the result for a text
    does not depend on its neighbours beyond rounding.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, max_tokens: int = MAX_TOKENS, pooling: EncoderPooling = "mean"
    ) -> None:
        """`model`: a bidirectional transformers model with `last_hidden_state`; `tokenizer` adds special tokens.
        `max_tokens` is limited to the model's number of positions."""
        self.model, self.tokenizer, self.pooling = model.eval(), tokenizer, pooling
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        positions = int(getattr(model.config, "max_position_embeddings", max_tokens))
        # RoBERTa's positions start after its pad token's.
        self.max_tokens = min(max_tokens, positions - (int(model.config.pad_token_id or 0) + 1) * _offset(model))
        self.hidden = int(model.config.hidden_size)
        self.packs = self._takes_packing()

    @classmethod
    def load(
        cls, folder: Path, *, max_tokens: int = MAX_TOKENS, pooling: EncoderPooling = "mean"
    ) -> "PooledTransformer":
        """Load the checkpoint in `folder`: safetensors only, no remote code, no download. Raises `CheckpointError`."""
        checkpoint_files(folder)
        try:
            model = AutoModel.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
            ).float()
            require_small_file(folder / TOKENIZER)
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # each library raises its own errors for damaged files
            raise CheckpointError(f"{folder} cannot be loaded by transformers: {error}") from error
        vocabulary, rows = tokenizer.get_vocab_size(), model.get_input_embeddings().num_embeddings
        if vocabulary > rows:
            raise CheckpointError(f"{folder}: the tokeniser knows {vocabulary} tokens, the model has {rows} rows.")
        return cls(model, tokenizer, max_tokens=max_tokens, pooling=pooling)

    @property
    def device(self) -> Any:
        """The torch device that computes: the CPU until the model is moved."""
        return self.model.device

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ids of each text with special tokens, as `cut_to` cuts them."""
        return [cut_to(encoding.ids, self.max_tokens) for encoding in self.tokenizer.encode_batch(list(texts))]

    def states(self, rows: Sequence[Sequence[int]], lengths: Sequence[Run]) -> Any:
        """Return hidden states [tokens, hidden] of `rows`, which are sorted by length; differentiable."""
        if not self.packs:
            parts, first = [], 0
            for run in lengths:
                ids = torch.tensor(rows[first : first + run.rows], device=self.device)
                parts.append(self.model(input_ids=ids).last_hidden_state.flatten(0, 1))
                first += run.rows
            return torch.cat(parts)
        ids = torch.tensor([[token for row in rows for token in row]], device=self.device)
        positions = (
            torch.cat([torch.arange(run.length).repeat(run.rows) for run in lengths]).unsqueeze(0).to(self.device)
        )
        return self.model(input_ids=ids, position_ids=positions, packed_runs=lengths).last_hidden_state[0]

    def pooled(self, rows: Sequence[Sequence[int]]) -> Any:
        """Return one state for each row [n, hidden], all rows in one batch; differentiable."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        lengths = runs([len(rows[i]) for i in order])
        states = self.states([rows[i] for i in order], lengths)
        parts = [self._pool(states[run.start : run.end].unflatten(0, (run.rows, run.length))) for run in lengths]
        back = torch.empty(len(rows), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(rows))
        return torch.cat(parts)[back]

    def _pool(self, states: Any) -> Any:
        """Return one state [rows, hidden] of each row of `states` [rows, tokens, hidden]."""
        match self.pooling:
            case "cls":
                return states[:, 0]
            case "last":
                return states[:, -1]
            case "max":
                return states.amax(1)
            case _:
                return states.mean(1)

    def encode(self, texts: Sequence[str], budget: int = TOKENS_PER_BATCH) -> Float:
        """Return pooled states float32 [n, hidden] of any number of texts, in batches of at most `budget` tokens."""
        return self.encode_ids(self.token_ids(texts), budget)

    def encode_ids(self, rows: Sequence[Sequence[int]], budget: int = TOKENS_PER_BATCH) -> Float:
        """Like `encode`, for token ids."""
        states = np.zeros((len(rows), self.hidden), np.float32)
        self.model.eval()
        with torch.inference_mode():
            for batch in batches_by_length([len(row) for row in rows], budget):
                states[batch] = self.pooled([rows[i] for i in batch]).cpu().numpy()
        return states

    def _takes_packing(self) -> bool:
        """Return whether packed sequences give the same states as single ones. This is tested on the model, because
        architectures differ in where positions start and in what they pass to attention."""
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            return False
        # From the token after the pad token, which RoBERTa gives no position.
        first, rows = int(self.model.config.pad_token_id or 0) + 1, self.model.get_input_embeddings().num_embeddings
        ids = [[(first + i) % rows for i in range(n)] for n in (3, 5, 5)]
        before = self.model.config._attn_implementation
        with torch.inference_mode():
            self.packs = False
            alone = self.pooled(ids)
            try:
                self.model.set_attn_implementation(NAME)
                self.packs = self.model.config._attn_implementation == NAME
                together = self.pooled(ids)
            except (TypeError, ValueError, KeyError, IndexError, RuntimeError, AttributeError) as error:
                log.info("%s is computed in batches of equal length: %s", type(self.model).__name__, error)
                together = None
        same = together is not None and bool(torch.allclose(alone, together, atol=TOLERANCE, rtol=TOLERANCE))
        if not (self.packs and same):
            self.model.set_attn_implementation(before)
            return False
        return True


def _offset(model: Any) -> int:
    """Return 1 for architectures whose positions start after the pad token's id, 0 for others."""
    return int(model.config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer"))
