"""What a step draws from, row by row: which rows the device draws, which the host, and what comes of both."""

from dataclasses import dataclass

import msgspec
import torch

from inference_core.device.sampling.edited_rows import fits_tables, is_edited
from inference_core.errors import BadLogitsError
from inference_core.grammar.masks import TokenMasks, begin_masks
from inference_core.sampling.rejection_sampling import draw, while_equal
from inference_core.step_plan import SampledToken, SampleSpec, ScheduledSequence


@dataclass(slots=True, frozen=True)
class _HostDraws:
    """Sequences whose tokens the host draws, by their place among those that sample, and the `logits` of their rows."""

    places: list[int]
    shares: list[ScheduledSequence]
    logits: torch.Tensor
    masks: TokenMasks | None

    def tokens(self) -> dict[int, list[SampledToken]]:
        """By place. Raises `BadLogitsError`, whose rows are places."""
        owners = [place for place, share in zip(self.places, self.shares, strict=True) for _ in range(_rows_of(share))]
        try:
            drawn = draw(self.logits, self.shares, self.masks)
        except BadLogitsError as error:
            raise BadLogitsError([owners[row] for row in error.rows], self.logits.shape[1]) from None
        return dict(zip(self.places, drawn, strict=True))


class StepDraws:
    """The rows of a step, one sequence after another: one for each that samples, and one more for each drafted token.

    The device draws a row with the random number of its own position, whatever became of the drafts before it, so that
    drafts are verified the repeatable way by comparing them with what was drawn (`rejection_sampling`). The host
    draws for sequences under a grammar, for those that bias more tokens than the edit tables hold, and with drafts for
    those whose laws depend on the tokens before, or that are verified by rejection.
    """

    def __init__(self, sequences: list[ScheduledSequence]) -> None:
        sampling = [share for share in sequences if share.sample is not None]
        self._samples = [share.sample is not None for share in sequences]
        self._counts = [share.num_drafts + 1 for share in sampling]
        self._drafts = {place: share.drafts for place, share in enumerate(sampling) if share.num_drafts}
        self._host_places = [place for place, share in enumerate(sampling) if is_drawn_by_host(share)]
        # Plans' objects are used again for the next step.
        self._host_shares = [_copied(sampling[place]) for place in self._host_places]
        self._host: _HostDraws | None = None
        self.owners = [share.sequence_id for share in sampling for _ in range(_rows_of(share))]
        self.specs: list[SampleSpec | None] = [share.sample for share in sampling for _ in range(_rows_of(share))]
        """How the device draws each row; None where the host does."""
        for row in self._rows_of_host():
            self.specs[row] = None

    def __len__(self) -> int:
        """Rows of logits."""
        return len(self.owners)

    @property
    def last_rows(self) -> dict[str, int]:
        """The row that drew the last token of each sequence, where that is known before it is drawn: without drafts."""
        return {owner: row for row, owner in enumerate(self.owners)} if not self._drafts else {}

    @property
    def logprobs(self) -> dict[int, int]:
        """How many of the likeliest tokens each row that the device draws is to name, where any are asked for."""
        return {
            row: spec.params.logprobs
            for row, spec in enumerate(self.specs)
            if spec is not None and spec.params.logprobs is not None
        }

    def bring(self, logits: torch.Tensor) -> None:
        """Begin to copy to the host what it draws from `logits` [R, vocabulary]; nothing is waited for."""
        rows = self._rows_of_host()
        if rows:
            specs = [share.sample for share in self._host_shares if share.sample is not None]
            masks = begin_masks(specs, [share.drafts for share in self._host_shares])
            copied = logits[rows].float().to("cpu", non_blocking=True)
            self._host = _HostDraws(self._host_places, self._host_shares, copied, masks)

    def results(self, drawn: list[SampledToken], vocab_size: int) -> list[list[SampledToken]]:
        """The tokens of each sequence, once the device is done: `drawn` are those of every row.

        Raises `BadLogitsError` for sequences whose rows hold nothing that can be drawn.
        """
        tokens, row = [], 0
        for place, count in enumerate(self._counts):
            rows = drawn[row : row + count]
            tokens.append(while_equal(self._drafts[place], rows) if place in self._drafts else rows)
            row += count
        if self._host is not None:
            for place, own in self._host.tokens().items():
                tokens[place] = own
        bad = [place for place, own in enumerate(tokens) if any(token.token_id < 0 for token in own)]
        if bad:
            raise BadLogitsError(bad, vocab_size)
        of_sampling = iter(tokens)
        return [next(of_sampling) if samples else [] for samples in self._samples]

    def _rows_of_host(self) -> list[int]:
        if not self._host_places:
            return []
        rows: list[int] = []
        of_host, row = set(self._host_places), 0
        for place, count in enumerate(self._counts):
            if place in of_host:
                rows += range(row, row + count)
            row += count
        return rows


def is_drawn_by_host(share: ScheduledSequence) -> bool:
    """Whether the logits of a sequence that samples are needed on the host."""
    spec = share.sample
    assert spec is not None
    if not fits_tables(spec):
        return True
    # A row of the tables counts what stands before the first draft, and drafts are no more than proposed.
    return share.num_drafts > 0 and (share.draft_laws is not None or is_edited(spec))


def _rows_of(share: ScheduledSequence) -> int:
    return share.num_drafts + 1


def _copied(share: ScheduledSequence) -> ScheduledSequence:
    assert share.sample is not None
    return msgspec.structs.replace(share, sample=msgspec.structs.replace(share.sample))
