"""The hidden state of one prompt, put together from what the steps that compute the prompt hand out."""

import numpy as np
import numpy.typing as npt

from inference_core.protocol.evidence import EvidenceRequest, Pooling
from inference_core.step_plan import States, StateSpec


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
        """What a request asks for, if it asks for a hidden state at all."""
        if wanted is None or wanted.layer is None:
            return None
        return cls(wanted.layer, wanted.pooling, prompt_tokens, exits=exits)

    @property
    def is_full(self) -> bool:
        """Whether every state that is needed has been taken."""
        return self.num_taken == self._prompt_tokens

    @property
    def num_needless(self) -> int:
        """How many of the first tokens need not be computed for it: they may come from the prefix cache."""
        if self._pooling == "last" and not self.is_full:
            return self._prompt_tokens - 1
        return self.num_taken

    def spec(self, start: int, tokens: int) -> StateSpec | None:
        """What computing `tokens` tokens from position `start` on is to hand out."""
        if self.is_full:
            return None
        first = max(0, self.num_needless - start)
        if first >= tokens and not self.exits:
            return None
        return StateSpec(self.layer, min(first, tokens), self.exits)

    def take(self, states: States) -> None:
        """The states float32 [rows, hidden] of the next rows that were asked for; none is no matter."""
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
        """The state, float32 little-endian [hidden], the first time that it is whole; nothing before and after."""
        if self._sum is None or not self.is_full:
            return b""
        count = self._prompt_tokens if self._pooling == "mean" else 1
        state, self._sum = (self._sum / count).astype("<f4"), None
        return state.tobytes()
