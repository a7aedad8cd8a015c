"""Sampling on a device: which rows the device draws and which the host, logit edits, and log-probabilities.

The inputs of a step's draws besides the logits are flat arrays. Biases and masks edit few logits of a row and are
stored as lists of token ids; penalties edit many, so a table counts the tokens of prompt and output. Both are updated
incrementally as tokens are drawn. The remaining parameters are a few numbers per row (`step_inputs.param_columns`).
Log-probabilities of drawn tokens, of the most likely ones and of prompts come from the model's raw logits.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.device.step_inputs import NO_ROW
from inference_core.errors import BadLogitsError, InvalidRequestError
from inference_core.grammar.workers import TokenMasks, begin_masks
from inference_core.protocol import SamplingParams, TokenLogprob
from inference_core.sampling.reference_sampler import ONE
from inference_core.sampling.sampler import draw, while_equal
from inference_core.step_plan import PENDING, SampledToken, SampleSpec, ScheduledSequence
from inference_core.triton_kernels import ops  # noqa: F401  it registers the custom ops


@dataclass(frozen=True, slots=True)
class EditTables:
    """The logit edits of up to N sequences, one row each."""

    token_ids: torch.Tensor
    """int32 [N, K]: the tokens to edit; the first `num_biased` of each row are used, and they are distinct."""
    bias: torch.Tensor
    """float32 [N, K]: added to these tokens' logits; -inf masks a token."""
    num_biased: torch.Tensor
    """int32 [N]: used entries of each row."""
    uses: torch.Tensor
    """int32 [N, V]: twice a token's count in the output, plus one if it is in the prompt."""

    @classmethod
    def empty(cls, rows: int, most_biased: int, vocabulary: int, device: torch.device) -> "EditTables":
        """Tables without edits; N is `rows`, K is `most_biased`."""
        return cls(
            torch.zeros(rows, most_biased, dtype=torch.int32, device=device),
            torch.zeros(rows, most_biased, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, vocabulary, dtype=torch.int32, device=device),
        )

    def set_bias(self, row: int, bias: dict[int, float]) -> None:
        """Set the biases of a row."""
        # Copies from pageable memory are staged before these calls return, so they do not wait for a running step.
        count = len(bias)
        self.token_ids[row, :count].copy_(torch.tensor(list(bias), dtype=torch.int32), non_blocking=True)
        self.bias[row, :count].copy_(torch.tensor(list(bias.values()), dtype=torch.float32), non_blocking=True)
        self.num_biased[row].fill_(count)

    def set_uses(self, row: int, uses: NDArray[np.int32]) -> None:
        """Set the counts [V] of a row."""
        self.uses[row].copy_(torch.from_numpy(uses), non_blocking=True)


def is_penalised(params: SamplingParams) -> bool:
    """Whether earlier tokens change the distribution."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def row_bias(spec: SampleSpec, vocabulary: int) -> dict[int, float]:
    """The bias by token id, added before penalties; -inf for tokens that must not be drawn.

    Raises InvalidRequestError for a biased or stop token id outside the vocabulary.
    """
    params = spec.params
    bias = dict(params.logit_bias)
    _check(bias, vocabulary, "logit_bias")
    if spec.position < params.min_tokens:
        _check(spec.eos_token_ids, vocabulary, "eos_token_ids")
        _check(params.stop_token_ids, vocabulary, "stop_token_ids")
        bias |= dict.fromkeys((*spec.eos_token_ids, *params.stop_token_ids), -math.inf)
    return bias


def row_uses(spec: SampleSpec, outputs: Sequence[int], vocabulary: int) -> NDArray[np.int32]:
    """A row of `EditTables.uses` with these `outputs`. Raises InvalidRequestError for an id outside the vocabulary."""
    _check(spec.prompt_token_ids, vocabulary, "prompt_token_ids")
    _check(outputs, vocabulary, "output_token_ids")
    uses = 2 * np.bincount(np.array(outputs, np.int64), minlength=vocabulary).astype(np.int32)
    uses[spec.prompt_token_ids] += 1
    return uses


def _check(ids: Collection[int], vocabulary: int, param: str) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocabulary:
            raise InvalidRequestError(
                f"token id {token_id} in {param} is not in the vocabulary (0..{vocabulary - 1})", param
            )


MOST_BIASED = 512  # biased or masked token ids per sequence


@dataclass(slots=True)
class _Row:
    """What a row of the tables counts: the first `counted` tokens of a sequence's `outputs`."""

    number: int
    outputs: list[int] | None = None
    counted: int = -1
    masked: bool = False


@dataclass(slots=True)
class RowUpdates:
    """Which rows of the tables a step's draws use, and which tokens are counted before it."""

    rows: list[int]
    """For each draw of a step its row of the tables, or `NO_ROW`."""
    counted_in: list[int] = field(default_factory=list)
    """The rows in which a token is counted."""
    tokens: list[int] = field(default_factory=list)
    """The tokens to count."""
    places: list[int] = field(default_factory=list)
    """Indices of the last draws, for tokens that the host does not know yet; else `NO_ROW`."""


class EditedRows:
    """Edit tables for at most `rows` sequences per step. A sequence keeps its row between steps; the least recently
    scheduled sequence is evicted. The host's work per step and edited row does not grow with the history."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.tables = EditTables.empty(rows, MOST_BIASED, vocabulary, device)
        self._rows = rows
        self._vocabulary = vocabulary
        self._known: dict[str, _Row] = {}

    def place(
        self, owners: Sequence[str], specs: Sequence[SampleSpec | None], rows_of_last: Mapping[str, int]
    ) -> RowUpdates | None:
        """Assign rows to a step's draws: `owners` are their sequence ids; a spec is None if the host draws. Returns
        None if no draw is edited.

        `rows_of_last`: index of a sequence's pending token among the last step's draws. Raises InvalidRequestError for
        a biased, stop or earlier token outside the vocabulary.
        """
        updates = RowUpdates([NO_ROW] * len(owners))
        for index, (sequence_id, spec) in enumerate(zip(owners, specs, strict=True)):
            if spec is not None and is_edited(spec):
                row = self._row(sequence_id)
                self._bring_up_to_date(row, sequence_id, spec, updates, rows_of_last)
                updates.rows[index] = row.number
        return updates if any(row != NO_ROW for row in updates.rows) else None

    def count(self, updates: RowUpdates, drawn_before: torch.Tensor) -> None:
        """Count the tokens of `updates`. `drawn_before` int64: the last step's draws, -1 if nothing could be drawn."""
        if not updates.tokens:
            return
        added = torch.tensor([updates.counted_in, updates.tokens, updates.places], dtype=torch.int64)
        rows, tokens, places = added.to(self.tables.uses.device, non_blocking=True)
        tokens = torch.where(places >= 0, drawn_before.index_select(0, places.clamp(min=0)), tokens)
        amounts = torch.where(tokens >= 0, 2, 0).int()
        self.tables.uses.view(-1).index_add_(0, rows * self._vocabulary + tokens.clamp(min=0), amounts)

    def forget(self) -> None:
        """Forget what the tables hold, so that all of it is copied again."""
        for row in self._known.values():
            row.outputs = None

    def _bring_up_to_date(
        self, row: _Row, sequence_id: str, spec: SampleSpec, updates: RowUpdates, rows_of_last: Mapping[str, int]
    ) -> None:
        outputs, position, is_same = spec.output_token_ids, spec.position, row.outputs is spec.output_token_ids
        masked = position < spec.params.min_tokens
        if not is_same or row.masked != masked:
            self.tables.set_bias(row.number, row_bias(spec, self._vocabulary))
        row.outputs, row.masked = outputs, masked
        if not is_penalised(spec.params):
            return
        pending = position > 0 and outputs[position - 1] == PENDING
        if not is_same or row.counted not in (position - 1, position):
            row.counted = position - pending
            self.tables.set_uses(row.number, row_uses(spec, outputs[: row.counted], self._vocabulary))
        if row.counted < position:
            row.counted = position
            updates.counted_in.append(row.number)
            updates.tokens.append(0 if pending else outputs[position - 1])
            updates.places.append(rows_of_last[sequence_id] if pending else NO_ROW)

    def _row(self, sequence_id: str) -> _Row:
        row = self._known.pop(sequence_id, None)
        if row is None:
            if len(self._known) < self._rows:
                row = _Row(len(self._known))
            else:
                # The first is the least recently used. A step has at most `rows` sequences, so it is not of this step.
                row = _Row(self._known.pop(next(iter(self._known))).number)
        self._known[sequence_id] = row
        return row


def is_edited(spec: SampleSpec) -> bool:
    """Whether `spec` edits the model's logits before the draw."""
    params = spec.params
    return bool(params.logit_bias) or spec.position < params.min_tokens or is_penalised(params)


def fits_tables(spec: SampleSpec) -> bool:
    """Whether a row of the tables can hold all edits of this sequence's logits, now and later. Grammars never fit."""
    params = spec.params
    biased = len(params.logit_bias)
    if params.min_tokens:
        biased += len(spec.eos_token_ids) + len(params.stop_token_ids)
    return spec.matcher is None and biased <= MOST_BIASED


_ROWS_AT_ONCE = 16  # so that scratch memory stays small
_ID_BITS = 20  # more than the largest vocabulary that can be sampled from


class LogProbabilities:
    """Log-probabilities of one step with `logits` [R, V] and `drawn` int64 [R] on a device. `wanted`: by row, how many
    of the most likely tokens to list.

    The constructor launches the work and the copies to the host without waiting. Sums are exact, and the host finishes
    in double precision, so the numbers equal those of `reference_sampler` bit by bit.
    """

    def __init__(self, logits: torch.Tensor, drawn: torch.Tensor, wanted: dict[int, int]) -> None:
        self._wanted = wanted
        self._parts: list[tuple[list[int], torch.Tensor, torch.Tensor]] = []
        rows = list(wanted)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            places = torch.tensor(part).to(logits.device, non_blocking=True)
            most = max(wanted[row] for row in part)
            values, whole = _measured(logits.index_select(0, places).float(), drawn.index_select(0, places), most)
            self._parts.append((part, _to_host(values), _to_host(whole)))

    def by_row(self) -> dict[int, TokenLogprob]:
        """The log-probabilities by row; call it after the device has finished the step."""
        by_row: dict[int, TokenLogprob] = {}
        for rows, values, whole in self._parts:
            for row, (best, own, *top), (total, token, *ids) in zip(rows, values.tolist(), whole.tolist(), strict=True):
                if total <= 0 or token < 0:
                    continue  # nothing could be drawn
                log_total, count = math.log(total / ONE), self._wanted[row]
                named = list(zip(ids[:count], top[:count], strict=True))
                by_row[row] = TokenLogprob(token, own - best - log_total, [(i, x - best - log_total) for i, x in named])
        return by_row


def _measured(logits: torch.Tensor, drawn: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [n, 2 + k]: the logits of the best, the drawn and the k best tokens; int64 [n, 2 + k]: the sum of
    weights, and the tokens' ids."""
    best = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    totals = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    torch.ops.aio.row_totals(best, totals, logits)
    top = best_tokens(logits, min(most, logits.shape[1]))
    own = logits.gather(1, drawn.clamp(min=0)[:, None])
    values = torch.cat([best[:, None], own, logits.gather(1, top)], 1)
    return values, torch.cat([totals[:, None], drawn[:, None], top], 1)


def best_tokens(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids int64 [n, count] of the largest of logits float32 [n, V], in descending order; ties by ascending id."""
    bits = torch.where(logits == 0, 0.0, logits).view(torch.int32).long()
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (order << _ID_BITS) - ids
    return -keys.topk(count, dim=1).values & ((1 << _ID_BITS) - 1)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A copy to the host that is complete when the current stream has reached it."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)


def scored_rows(sequences: list[ScheduledSequence], device: torch.device) -> torch.Tensor | None:
    """The rows that the sequences' `score` names, as indices of the step's tokens, int32 [E] on `device`, or None."""
    starts = accumulate((len(s.token_ids) for s in sequences), initial=0)
    rows = [
        row
        for start, sequence in zip(starts, sequences, strict=False)
        if sequence.score is not None
        for row in range(start, start + len(sequence.score.token_ids))
    ]
    return torch.tensor(rows, dtype=torch.int32).to(device, non_blocking=True) if rows else None


class PromptScores:
    """Log-probabilities from `logits` [E, vocabulary] of `scored_rows`. Only `by_sequence` waits for the device."""

    def __init__(self, sequences: list[ScheduledSequence], logits: torch.Tensor) -> None:
        specs = [sequence.score for sequence in sequences]
        targets = [token for spec in specs if spec is not None for token in spec.token_ids]
        tops = [spec.top for spec in specs if spec is not None for _ in spec.token_ids]
        self._counts = [0 if spec is None else len(spec.token_ids) for spec in specs]
        drawn = torch.tensor(targets).to(logits.device, non_blocking=True)
        self._logprobs = LogProbabilities(logits, drawn, dict(enumerate(tops)))

    def by_sequence(self) -> list[list[TokenLogprob]]:
        """Call it after the device has finished the step. Raises ValueError if a row holds NaN or infinity."""
        rows = self._logprobs.by_row()
        if len(rows) < sum(self._counts):
            raise ValueError("the logits of a prompt hold NaN or infinity; its tokens have no log-probabilities")
        ends = list(accumulate(self._counts))
        return [[rows[row] for row in range(end - count, end)] for end, count in zip(ends, self._counts, strict=True)]


@dataclass(slots=True, frozen=True)
class _HostDraws:
    """Sequences whose tokens the host draws, by their index among the sampled ones, and their rows' `logits`."""

    places: list[int]
    shares: list[ScheduledSequence]
    logits: torch.Tensor
    masks: TokenMasks | None

    def tokens(self) -> dict[int, list[SampledToken]]:
        """Tokens by index. Raises `BadLogitsError`, whose rows are these indices."""
        owners = [index for index, share in zip(self.places, self.shares, strict=True) for _ in range(_rows_of(share))]
        try:
            drawn = draw(self.logits, self.shares, self.masks)
        except BadLogitsError as error:
            raise BadLogitsError([owners[row] for row in error.rows], self.logits.shape[1]) from None
        return dict(zip(self.places, drawn, strict=True))


class StepDraws:
    """The sampled rows of a step in sequence order: one per sampling sequence, and one more per drafted token.

    The device draws each row with the random number of its position, so drafts are verified reproducibly by comparing
    them with the drawn tokens (`sampling.rejection_sampling`). The host draws for sequences with a grammar, for those
    that bias more tokens than the edit tables hold, and for those with drafts whose distributions depend on earlier
    tokens or that are verified by rejection.
    """

    def __init__(self, sequences: list[ScheduledSequence]) -> None:
        sampling = [share for share in sequences if share.sample is not None]
        self._samples = [share.sample is not None for share in sequences]
        self._counts = [share.num_drafts + 1 for share in sampling]
        self._drafts = {index: share.drafts for index, share in enumerate(sampling) if share.num_drafts}
        self._host_places = [index for index, share in enumerate(sampling) if is_drawn_by_host(share)]
        # A plan's objects are reused for the next step.
        self._host_shares = [_copied(sampling[index]) for index in self._host_places]
        self._host: _HostDraws | None = None
        self.owners = [share.sequence_id for share in sampling for _ in range(_rows_of(share))]
        self.specs: list[SampleSpec | None] = [share.sample for share in sampling for _ in range(_rows_of(share))]
        """How the device draws each row; None if the host does."""
        for row in self._rows_of_host():
            self.specs[row] = None

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def last_rows(self) -> dict[str, int]:
        """The row of each sequence's last token, for sequences without drafts, whose last row is known beforehand."""
        return {owner: row for row, owner in enumerate(self.owners)} if not self._drafts else {}

    @property
    def logprobs(self) -> dict[int, int]:
        """How many of the most likely tokens to list for each row that the device draws, if any are requested."""
        return {
            row: spec.params.logprobs
            for row, spec in enumerate(self.specs)
            if spec is not None and spec.params.logprobs is not None
        }

    def bring(self, logits: torch.Tensor) -> None:
        """Start copying the host's rows of `logits` [R, vocabulary], without waiting."""
        rows = self._rows_of_host()
        if rows:
            specs = [share.sample for share in self._host_shares if share.sample is not None]
            masks = begin_masks(specs, [share.drafts for share in self._host_shares])
            copied = logits[rows].float().to("cpu", non_blocking=True)
            self._host = _HostDraws(self._host_places, self._host_shares, copied, masks)

    def results(self, drawn: list[SampledToken], vocab_size: int) -> list[list[SampledToken]]:
        """The tokens of each sequence; call it after the device has finished. `drawn`: the tokens of every row.

        Raises `BadLogitsError` for sequences with rows from which no token can be drawn.
        """
        tokens, row = [], 0
        for index, count in enumerate(self._counts):
            rows = drawn[row : row + count]
            tokens.append(while_equal(self._drafts[index], rows) if index in self._drafts else rows)
            row += count
        if self._host is not None:
            for index, own in self._host.tokens().items():
                tokens[index] = own
        bad = [index for index, own in enumerate(tokens) if any(token.token_id < 0 for token in own)]
        if bad:
            raise BadLogitsError(bad, vocab_size)
        of_sampling = iter(tokens)
        return [next(of_sampling) if samples else [] for samples in self._samples]

    def _rows_of_host(self) -> list[int]:
        if not self._host_places:
            return []
        rows: list[int] = []
        of_host, row = set(self._host_places), 0
        for index, count in enumerate(self._counts):
            if index in of_host:
                rows += range(row, row + count)
            row += count
        return rows


def is_drawn_by_host(share: ScheduledSequence) -> bool:
    """Whether the host draws for a sampling sequence and needs its logits."""
    spec = share.sample
    assert spec is not None
    if not fits_tables(spec):
        return True
    # A row of the tables counts only the tokens before the first draft.
    return share.num_drafts > 0 and (share.draft_laws is not None or is_edited(spec))


def _rows_of(share: ScheduledSequence) -> int:
    return share.num_drafts + 1


def _copied(share: ScheduledSequence) -> ScheduledSequence:
    assert share.sample is not None
    return msgspec.structs.replace(share, sample=msgspec.structs.replace(share.sample))
