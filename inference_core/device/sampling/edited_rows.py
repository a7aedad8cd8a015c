"""What edits the logits of sequences, on the device: brought up to date by differences as tokens are drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from inference_core.device.step_inputs import NO_ROW
from inference_core.step_plan import PENDING, SampleSpec
from inference_core.triton_kernels.sampling.sampling_batch import EditTables, is_penalised, row_bias, row_uses

MOST_BIASED = 512  # token ids of one sequence that are biased or masked


@dataclass(slots=True)
class _Row:
    """What a row of the tables holds: of the sequence with this list of `outputs`, its first `counted` ones."""

    number: int
    outputs: list[int] | None = None
    counted: int = -1
    masked: bool = False


@dataclass(slots=True)
class RowUpdates:
    """For each draw of a step its row of the tables, or `NO_ROW`; and tokens to be counted before it: in which row,
    which, and, where the host does not know it, at which place of the last step's draws it is (else `NO_ROW`)."""

    rows: list[int]
    counted_in: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class EditedRows:
    """Of at most `rows` sequences in a step. A sequence keeps its row while it is in steps; who has been in none for
    longest gives way. Per step the host does a few operations for each edited row, however long its history is."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.tables = EditTables.empty(rows, MOST_BIASED, vocabulary, device)
        self._rows = rows
        self._vocabulary = vocabulary
        self._known: dict[str, _Row] = {}

    def place(
        self, owners: Sequence[str], specs: Sequence[SampleSpec | None], rows_of_last: Mapping[str, int]
    ) -> RowUpdates | None:
        """Rows for a step's draws, each of a sequence (`owners`, by id) and as its spec says, None where the host
        draws; None if none of them is edited.

        `rows_of_last`: where in the last step's draws a sequence's pending token is. Raises InvalidRequestError for
        a biased, stop or earlier token outside the vocabulary.
        """
        updates = RowUpdates([NO_ROW] * len(owners))
        for draw, (sequence_id, spec) in enumerate(zip(owners, specs, strict=True)):
            if spec is not None and is_edited(spec):
                row = self._row(sequence_id)
                self._bring_up_to_date(row, sequence_id, spec, updates, rows_of_last)
                updates.rows[draw] = row.number
        return updates if any(row != NO_ROW for row in updates.rows) else None

    def count(self, updates: RowUpdates, drawn_before: torch.Tensor) -> None:
        """Count the tokens of `updates`; `drawn_before` int64: what the last step drew, -1 where nothing could be."""
        if not updates.tokens:
            return
        added = torch.tensor([updates.counted_in, updates.tokens, updates.places], dtype=torch.int64)
        rows, tokens, places = added.to(self.tables.uses.device, non_blocking=True)
        tokens = torch.where(places >= 0, drawn_before.index_select(0, places.clamp(min=0)), tokens)
        amounts = torch.where(tokens >= 0, 2, 0).int()
        self.tables.uses.view(-1).index_add_(0, rows * self._vocabulary + tokens.clamp(min=0), amounts)

    def forget(self) -> None:
        """What the tables hold may be anything."""
        for row in self._known.values():
            row.outputs = None

    def _bring_up_to_date(
        self, row: _Row, sequence_id: str, spec: SampleSpec, updates: RowUpdates, rows_of_last: Mapping[str, int]
    ) -> None:
        outputs, position, known = spec.output_token_ids, spec.position, row.outputs is spec.output_token_ids
        masked = position < spec.params.min_tokens
        if not known or row.masked != masked:
            self.tables.set_bias(row.number, row_bias(spec, self._vocabulary))
        row.outputs, row.masked = outputs, masked
        if not is_penalised(spec.params):
            return
        pending = position > 0 and outputs[position - 1] == PENDING
        if not known or row.counted not in (position - 1, position):
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
                # The first was asked for longest ago: in no draw of this step, of which there are at most `rows`.
                row = _Row(self._known.pop(next(iter(self._known))).number)
        self._known[sequence_id] = row
        return row


def is_edited(spec: SampleSpec) -> bool:
    """Whether the logits that `spec` draws from are not those of the model."""
    params = spec.params
    return bool(params.logit_bias) or spec.position < params.min_tokens or is_penalised(params)


def fits_tables(spec: SampleSpec) -> bool:
    """Whether a row of the tables holds all that edits this sequence's logits, now or later; no grammar does."""
    params = spec.params
    biased = len(params.logit_bias)
    if params.min_tokens:
        biased += len(spec.eos_token_ids) + len(params.stop_token_ids)
    return spec.matcher is None and biased <= MOST_BIASED
