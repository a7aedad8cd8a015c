"""Plain data between scheduler and model runner: the plan of one step and its result."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from inference_core.errors import CoreError
from inference_core.kv_cache.host_cache import SwapTimes
from inference_core.protocol import SamplingParams, TokenLogprob
from inference_core.protocol.commands import TokenEvidence
from inference_core.protocol.token_channel import TokenChannel

# Hidden states [rows, hidden].
States: TypeAlias = npt.NDArray[np.float32]

# The probabilities [vocabulary] that a draft token was drawn with.
DraftLaw: TypeAlias = npt.NDArray[np.float64]

# In `token_ids`: the token that the last step with this sequence draws, before the host knows it.
PENDING = -1


class Matcher(Protocol):
    """One sequence's state in its grammar: which tokens are allowed next, and which are forced.

    Questions are queued, sent, and their answers fetched later, so that many matchers are processed together and in
    parallel with the model. Answers depend only on the accepted tokens. Not thread-safe.
    """

    num_words: int
    """32-bit words of a mask."""

    @property
    def failure(self) -> CoreError | None:
        """Why the grammar can no longer be followed; its masks then allow nothing."""

    def accept(self, token_id: int) -> None:
        """Advance by `token_id`, which the mask allowed."""

    def ask_forced(self) -> None:
        """Queue the question for `forced_tokens`."""

    def ask_masks(self, drafts: Sequence[int]) -> None:
        """Queue the question for `masks`, with these drafted tokens."""

    def send(self) -> None:
        """Send the queued questions of this matcher and of others of its grammar."""

    def forced_tokens(self) -> list[int]:
        """The next tokens as far as the grammar leaves no choice; [] if there is a choice."""

    def masks(self) -> list[bytes]:
        """The masks of the next draws, one more than there are drafts, in words of 32 bits: bit `i % 32` of word
        `i // 32` is set if token `i` is allowed.

        The k-th is for the draw after the first k drafts. Masks after a forbidden or ending draft are not read.
        """


MatcherFactory = Callable[[], Matcher]


def ask_forced(matchers: Iterable[Matcher]) -> None:
    """Request the forced tokens of all matchers together."""
    asked = list(matchers)
    for matcher in asked:
        matcher.ask_forced()
    for matcher in asked:
        matcher.send()


class SampleSpec(msgspec.Struct, eq=False):
    """What drawing the next token of a sequence depends on besides its logits; one object per sequence."""

    params: SamplingParams
    prompt_token_ids: list[int]
    """The sequence's own list, read-only here, for penalties and `min_tokens`."""
    output_token_ids: list[int]
    """The sequence's own list, read-only here, for penalties and `min_tokens`."""
    seed: int
    """The sequence's effective seed: for an unseeded request the scheduler drew one at admission, so that a preempted
    sequence repeats its draws.
    """
    position: int
    """The number of output tokens before the one to draw; it alone changes from step to step."""
    eos_token_ids: tuple[int, ...]
    """Suppressed below `min_tokens`."""
    matcher: Matcher | None = None
    """The state of the sequence's grammar, if it has one."""
    evidence: bool = False
    """Whether to return the model's certainty of the drawn token."""


class ScoreSpec(msgspec.Struct, eq=False):
    """Log-probabilities to read off the first rows of a prompt chunk: row `i` scores `token_ids[i]`, the next token of
    the prompt, and the `top` most likely ones."""

    token_ids: list[int]
    top: int


class StateSpec(msgspec.Struct, eq=False):
    """Which hidden states a share of a step returns: those after the first `layer` layers, of its tokens from `first`
    on (may be none), drafts excepted.
    """

    layer: int
    first: int
    exits: bool = False
    """No further layer computes the share, so its blocks hold keys and values of these layers alone."""


class ScheduledSequence(msgspec.Struct, eq=False):
    """One sequence's share of a step: compute `token_ids` at positions `start`, `start + 1`, and so on.

    A sequence has one such object, which every `schedule` overwrites: copy what must outlive a step. An
    `OverlappingRunner` may find `PENDING` in the tokens, since its steps are planned before the last tokens are known.
    """

    sequence_id: str
    token_ids: list[int]
    start: int
    block_table: list[int]
    """The sequence's own list; it covers every position up to `start + len(token_ids)`."""
    sample: SampleSpec | None
    """Set if a token is drawn from the logits of the last of these tokens."""
    score: ScoreSpec | None = None
    """Set if the prompt is scored."""
    num_drafts: int = 0
    """How many of the last tokens are drafts. `sample` draws before the first of them, and the step continues to draw
    while they are accepted (`sampling.rejection_sampling`).
    """
    draft_laws: list[DraftLaw] | None = None
    """The distribution that each was drawn from, if rejection sampling verifies it."""
    adapter: int = -1
    """The slot of the sequence's adapter (`lora.adapter`); -1 for none."""
    state: StateSpec | None = None
    """Set if hidden states are returned."""
    fast_until: int = 0
    """Tokens at positions below it are computed in prompt arithmetic (`native/prompt_linear.h`), all others as
    generated tokens are. It is 0 where the runner has only one arithmetic.
    """
    window_tables: Sequence[list[int]] = ()
    """Tables of window groups, each as long as `block_table`. In a table with a window, blocks that none of the tokens
    sees may be missing (`kv_cache.layout`).
    """

    @property
    def drafts(self) -> list[int]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    def without_drafts(self) -> "ScheduledSequence":
        """Return the share without its drafts."""
        undrafted = self.token_ids[: len(self.token_ids) - self.num_drafts]
        return msgspec.structs.replace(self, token_ids=undrafted, num_drafts=0, draft_laws=None)


ChannelRows: TypeAlias = list[tuple[TokenChannel, list[tuple[int, bytes]]]]


@dataclass(slots=True, frozen=True)
class StepPlan:
    """One ragged batch of one model, decodes and prompt chunks together."""

    step: int
    model: str
    sequences: list[ScheduledSequence]
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Whole blocks (from, to) that a runner copies before it computes, to move sequences out of slabs that another
    model needs. No block is both, and block tables name the new blocks already.
    """
    offloads: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (block, host slot) copied before `restores`: evicted content of the step's blocks goes to host memory. If a
    step fails they may not be repeated, since their blocks may have been overwritten.
    """
    restores: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (host slot, block) copied after `offloads` and before `copies`. No slot is in both. They may be repeated if
    a step fails.
    """
    decode_steps: int = 1
    """How many tokens of each sequence the runner may draw, one after the other, before it returns; more than one only
    where each sequence decodes, without drafts, grammar and evidence, and its table has room for them.
    """
    channels: ChannelRows = field(default_factory=list)
    """Where the tokens of a decode step may leave before `run` returns, each with the numbers of its sequences and
    their outputs without the token (`output_head`).
    """

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.sequences)

    @property
    def num_drafts(self) -> int:
        return sum(s.num_drafts for s in self.sequences)

    @property
    def has_grammars(self) -> bool:
        """Whether a draw follows a grammar, so that masks are to be asked for."""
        return any(s.sample is not None and s.sample.matcher is not None for s in self.sequences)


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """A drawn token, with the requested log-probabilities and evidence."""

    token_id: int
    logprob: TokenLogprob | None = None
    evidence: TokenEvidence | None = None


@dataclass(slots=True, frozen=True)
class StepResult:
    """What a step returns."""

    sampled: list[list[SampledToken]]
    """The tokens drawn for each scheduled sequence: none, or the accepted drafts and one more, or one of each of the
    plan's `decode_steps` that were taken.
    """
    seconds: float = field(default=0.0, compare=False)
    scored: list[list[TokenLogprob]] = field(default_factory=list)
    """For each scheduled sequence, what its `score` asks for; empty if no sequence has one."""
    swapped: SwapTimes | None = field(default=None, compare=False)
    """None for a step without offloads and restores."""
    states: list[States] = field(default_factory=list, compare=False)
    """For each scheduled sequence, what its `state` asks for; empty if no sequence has one."""
    sent: list[int] = field(default_factory=list, compare=False)
    """For each scheduled sequence, how many tokens have left by the plan's `channels`; empty without channels."""
