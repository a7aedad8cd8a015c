"""What is read off the computation of a sequence besides its tokens: log-probabilities and hidden states of its prompt,
and the evidence of each drawn token.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from inference_core.protocol import AddRequest, TokenLogprob
from inference_core.protocol.commands import Evidence, EvidenceRequest, Pooling
from inference_core.step_plan import SampledToken, ScoreSpec, States, StateSpec


class PromptScores:
    """Log-probabilities of the prompt tokens after the first, each with the `top` most likely tokens."""

    def __init__(self, prompt_token_ids: list[int], top: int) -> None:
        self.num_known = 0
        """How many are known; preemption computes them again."""
        self._prompt_token_ids = prompt_token_ids
        self._top = top

    @property
    def is_complete(self) -> bool:
        return self.num_known >= len(self._prompt_token_ids) - 1

    def spec(self, start: int, tokens: int) -> ScoreSpec | None:
        """Which log-probabilities a step of `tokens` tokens from position `start` on has to return."""
        targets = [] if self.is_complete else self._prompt_token_ids[start + 1 : start + tokens + 1]
        return ScoreSpec(targets, self._top) if targets else None

    def receive(self, scored: list[TokenLogprob], computed: int) -> list[TokenLogprob]:
        """Return the new log-probabilities among `scored`, which end at token `computed`."""
        num_known = min(computed, len(self._prompt_token_ids) - 1)
        fresh = num_known - self.num_known
        if fresh <= 0:
            return []
        self.num_known = num_known
        return scored[-fresh:]


class StatePool:
    """Of the first `prompt_tokens` tokens of a sequence, after `layer` layers.

    Means are sums in float64 over single tokens in their order, so that they have the same bits however a prompt was
    cut into chunks, and whether or not it was preempted. `exits`: nothing of the prompt is computed after the layer.
    """

    def __init__(self, layer: int, pooling: Pooling, prompt_tokens: int, *, exits: bool = False) -> None:
        self.layer = layer
        self.exits = exits
        self.num_taken = 0
        self._pooling = pooling
        self._prompt_tokens = prompt_tokens
        self._sum: npt.NDArray[np.float64] | None = None

    @classmethod
    def of_request(cls, wanted: EvidenceRequest | None, prompt_tokens: int, *, exits: bool) -> "StatePool | None":
        """Return the pool for a request; None if it wants no hidden state."""
        if wanted is None or wanted.layer is None:
            return None
        return cls(wanted.layer, wanted.pooling, prompt_tokens, exits=exits)

    @property
    def is_full(self) -> bool:
        """Whether all needed states have been collected."""
        return self.num_taken == self._prompt_tokens

    @property
    def num_needless(self) -> int:
        """How many first tokens need no state, so that they may come from the prefix cache."""
        if self._pooling == "last" and not self.is_full:
            return self._prompt_tokens - 1
        return self.num_taken

    def spec(self, start: int, tokens: int) -> StateSpec | None:
        """Which states a step has to return that computes `tokens` tokens from position `start` on."""
        if self.is_full:
            return None
        first = max(0, self.num_needless - start)
        if first >= tokens and not self.exits:
            return None
        return StateSpec(self.layer, min(first, tokens), self.exits)

    def take(self, states: States) -> None:
        """Add the states float32 [rows, hidden] of the next requested rows; may be empty."""
        if not len(states) or self.is_full:
            return
        if self._pooling == "last":
            self._sum = states[-1].astype(np.float64)
            self.num_taken = self._prompt_tokens
            return
        rows = states.astype(np.float64)
        before = rows[:0] if self._sum is None else self._sum[None]
        # Row after row: along the first axis NumPy adds in order.
        self._sum = np.add.reduce(np.concatenate([before, rows]), axis=0)
        self.num_taken += len(rows)

    def pop(self) -> bytes:
        """Return the pooled state, float32 little-endian [hidden], once it is complete; b"" before and after."""
        if self._sum is None or not self.is_full:
            return b""
        count = self._prompt_tokens if self._pooling == "mean" else 1
        state, self._sum = (self._sum / count).astype("<f4"), None
        return state.tobytes()


@dataclass(slots=True, frozen=True)
class Readings:
    """What is read off one choice of a request. The first choice reads the prompt for all."""

    scores: PromptScores | None
    states: StatePool | None
    tokens: bool
    """Whether evidence of each drawn token is wanted."""

    @classmethod
    def of_choice(cls, request: AddRequest, index: int) -> Self | None:
        """Return the readings of choice `index`; None if it has none, as nearly all do."""
        prompt, top, wanted = request.prompt_token_ids, request.sampling.prompt_logprobs, request.evidence
        scores = None if top is None or index else PromptScores(prompt, top)
        states = StatePool.of_request(None if index else wanted, len(prompt), exits=request.embed)
        tokens = wanted is not None and wanted.tokens
        return cls(scores, states, tokens) if scores is not None or states is not None or tokens else None

    @property
    def wants_evidence(self) -> bool:
        return self.tokens or self.states is not None

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are still missing."""
        return self.scores is not None and not self.scores.is_complete

    @property
    def exits(self) -> bool:
        """Whether the sequence exists for its hidden state alone: its blocks are not shared, and no token is drawn."""
        return self.states is not None and self.states.exits

    def num_needless(self, tokens: int) -> int:
        """How many of the first `tokens` tokens need not be computed for what is read."""
        if self.scores is not None and not self.scores.is_complete:
            tokens = self.scores.num_known
        if self.states is not None and not self.states.is_full:
            tokens = min(tokens, self.states.num_needless)
        return tokens

    def score_spec(self, start: int, tokens: int) -> ScoreSpec | None:
        """Which prompt log-probabilities a step of `tokens` tokens from position `start` on has to return."""
        return None if self.scores is None else self.scores.spec(start, tokens)

    def state_spec(self, start: int, tokens: int) -> StateSpec | None:
        """Which hidden states a step has to return that computes `tokens` tokens from position `start` on."""
        return None if self.states is None else self.states.spec(start, tokens)

    def evidence_of(self, drawn: list[SampledToken]) -> Evidence | None:
        """Return the evidence to put out with these tokens, or None; the hidden state comes with the first."""
        state = b"" if self.states is None else self.states.pop()
        tokens = [token.evidence for token in drawn if token.evidence is not None]
        return Evidence(state, tokens) if state or tokens else None
