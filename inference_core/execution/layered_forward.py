"""A step that returns hidden states: the first layers range by range, then the rest up to the logits."""

from itertools import accumulate
from typing import Protocol, TypeVar

import numpy as np
import torch

from inference_core.step_plan import ScheduledSequence, States

T = TypeVar("T")


class LayeredModel(Protocol):
    """A model whose steps can be computed in parts, with the bits that they have in one."""

    def layers(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor | None, begin: int, end: int
    ) -> torch.Tensor:
        """Layers [begin, end) of every token of `sequences`: hidden states float32 [T, hidden], from `hidden` of the
        same shape, or from the embedding where `begin` is 0."""

    def head(
        self, sequences: list[ScheduledSequence], hidden: torch.Tensor, begin: int, rows: list[int] | None
    ) -> torch.Tensor:
        """The layers from `begin` on and the logits of `rows`; see `LogitsRunner.logits`."""


class LayeredForward:
    """`states`: what the `state` of each of `sequences` asks for, float32 [rows, hidden]. `active`: the sequences that
    continue after the deepest requested layer."""

    def __init__(self, model: LayeredModel, sequences: list[ScheduledSequence]) -> None:
        self.states: list[States] = [np.empty((0, 0), np.float32)] * len(sequences)
        self._model = model
        self._active = list(range(len(sequences)))
        self._sequences = sequences
        self._hidden: torch.Tensor | None = None
        self._layer = 0
        for layer in sorted({s.state.layer for s in sequences if s.state is not None}):
            self._advance(layer)

    @property
    def active(self) -> list[ScheduledSequence]:
        return [self._sequences[place] for place in self._active]

    def logits(self, sequences: list[ScheduledSequence], rows: list[int] | None = None) -> torch.Tensor:
        """`LogitsRunner.logits` of the `active` sequences."""
        assert self._hidden is not None  # a layer was asked for
        return self._model.head(sequences, self._hidden, self._layer, rows)

    def scatter(self, results: list[list[T]]) -> list[list[T]]:
        """Put the results of the active sequences at the indices of all sequences; the others get an empty list."""
        scattered: list[list[T]] = [[] for _ in self._sequences]
        for place, result in zip(self._active, results, strict=True):
            scattered[place] = result
        return scattered

    def _advance(self, layer: int) -> None:
        sequences = self.active
        hidden = self._model.layers(sequences, self._hidden, self._layer, layer)
        ends = list(accumulate(len(s.token_ids) for s in sequences))
        staying: list[tuple[int, int, int]] = []
        for place, sequence, end in zip(self._active, sequences, ends, strict=True):
            begin, spec = end - len(sequence.token_ids), sequence.state
            if spec is not None and spec.layer == layer:
                self.states[place] = hidden[begin + spec.first : end - sequence.num_drafts].cpu().numpy().copy()
            if spec is None or spec.layer != layer or not spec.exits:
                staying.append((place, begin, end))
        if len(staying) < len(self._active):
            hidden = torch.cat([hidden[:0], *(hidden[begin:end] for _, begin, end in staying)])
            self._active = [place for place, _, _ in staying]
        self._hidden, self._layer = hidden, layer
