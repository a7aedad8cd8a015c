"""Plain data between scheduler and model runner: what one step computes, and what came of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from inference_core.errors import CoreError
from inference_core.kv_cache.swap_cost import SwapTimes
from inference_core.protocol import SamplingParams, TokenLogprob
from inference_core.protocol.evidence import TokenEvidence

# Hidden states [rows, hidden].
States: TypeAlias = npt.NDArray[np.float32]

# The probabilities [vocabulary] that a draft token was drawn with.
DraftLaw: TypeAlias = npt.NDArray[np.float64]

# In `token_ids`: the token that the last step with this sequence drew, before the host has seen it.
PENDING = -1


class Matcher(Protocol):
    """Where one sequence is in its grammar: which tokens may come next, and which ones must.

    Questions are asked, sent, and their answers fetched later, so that those of many matchers are worked on together,
    beside the model. Answers depend on the accepted tokens alone. Not thread-safe: one thread at a time.
    """

    num_words: int
    """32-bit words of a mask."""

    @property
    def failure(self) -> CoreError | None:
        """Why the grammar cannot be followed any further; its masks allow nothing then."""

    def accept(self, token_id: int) -> None:
        """The sequence goes on with `token_id`, which its mask allowed."""

    def ask_forced(self) -> None:
        """`forced_tokens` will be fetched."""

    def ask_masks(self, drafts: Sequence[int]) -> None:
        """`masks` will be fetched, with these tokens drafted."""

    def send(self) -> None:
        """Have what was asked, of this matcher and others, worked on."""

    def forced_tokens(self) -> list[int]:
        """The next tokens, as far as the grammar leaves no choice; [] where there is one."""

    def masks(self) -> list[bytes]:
        """The masks of the next draws, one more than there are drafts: in words of 32 bits, bit `i % 32` of word
        `i // 32` is set if token `i` is allowed.

        The k-th is for the draw after the first k drafts; what follows a draft that is not allowed, or that ends the
        answer, will not be read.
        """


MatcherFactory = Callable[[], Matcher]


def ask_forced(matchers: Iterable[Matcher]) -> None:
    """Have the forced tokens of all of them worked out together."""
    asked = list(matchers)
    for matcher in asked:
        matcher.ask_forced()
    for matcher in asked:
        matcher.send()


class SampleSpec(msgspec.Struct, eq=False):
    """All that drawing the next token of a sequence depends on besides its logits; one object per sequence.

    `prompt_token_ids` and `output_token_ids` are the sequence's own lists (read-only here, for
    penalties and min_tokens). `seed` is the sequence's effective seed: for an unseeded request the
    scheduler drew one at admission, so that a preempted sequence repeats its draws. `position` is the
    number of output tokens before the one to draw; it alone changes from step to step. `eos_token_ids` are suppressed
    below `min_tokens`. `matcher` is where the sequence is in its grammar, if it has one, and moves with its output
    tokens. `evidence`: whether to tell how sure the model was of what is drawn.
    """

    params: SamplingParams
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    seed: int
    position: int
    eos_token_ids: tuple[int, ...]
    matcher: Matcher | None = None
    evidence: bool = False


class ScoreSpec(msgspec.Struct, eq=False):
    """Which log-probabilities the first rows of a prompt chunk are to give: row `i` that of `token_ids[i]`, the next
    token of the prompt, and those of the `top` most likely ones."""

    token_ids: list[int]
    top: int


class StateSpec(msgspec.Struct, eq=False):
    """Which hidden states a share of a step hands out: those that the first `layer` layers leave, of its tokens from
    `first` on, drafts excepted, which may be none. `exits`: no further layer computes the share, so that its blocks
    hold keys and values of these layers alone."""

    layer: int
    first: int
    exits: bool = False


class ScheduledSequence(msgspec.Struct, eq=False):
    """One sequence's share of a step: compute `token_ids` at positions `start`, `start + 1`, …

    A runner that is given steps before the last one's tokens are known (`OverlappingRunner`) may find `PENDING` there.
    `block_table` covers every position up to `start + len(token_ids)`; it is the sequence's own list. `sample` is set
    when the last of these tokens' logits are to be sampled, `score` where the prompt is to be scored, `state` where
    hidden states are to be handed out. `adapter`: the slot of the adapter that the tokens go through (`lora.bank`), -1
    for none. A sequence has one such object, which is up to date from `schedule` until the next one: whoever keeps a
    plan for longer copies what it needs.

    The last `num_drafts` of the tokens are only proposed: `sample` says how to draw before the first of them, and the
    step goes on drawing for as long as they are accepted (`sampling.rejection_sampling`). `draft_laws`: what each was
    drawn from, where that decides about it.
    """

    sequence_id: str
    token_ids: list[int]
    start: int
    block_table: list[int]
    sample: SampleSpec | None
    score: ScoreSpec | None = None
    num_drafts: int = 0
    draft_laws: list[DraftLaw] | None = None
    adapter: int = -1
    state: StateSpec | None = None

    @property
    def drafts(self) -> list[int]:
        """The proposed tokens."""
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    def without_drafts(self) -> "ScheduledSequence":
        """The same share of a step, with nothing to verify."""
        known = self.token_ids[: len(self.token_ids) - self.num_drafts]
        return msgspec.structs.replace(self, token_ids=known, num_drafts=0, draft_laws=None)


@dataclass(slots=True, frozen=True)
class StepPlan:
    """One ragged batch of one model, decodes and prompt chunks together.

    `copies`: whole blocks (from, to) whose content a runner copies before anything else, to move sequences out of slabs
    that another model needs. No block is both, and block tables name the new blocks already.

    `offloads` (block, host slot) and `restores` (host slot, block) are copied before `copies`, in this order: what the
    step's blocks held until now goes to host memory, and what sequences had there comes back. No slot is in both.
    Restores may be repeated if a step fails; offloads may not, since blocks may have been written to.
    """

    step: int
    model: str
    sequences: list[ScheduledSequence]
    copies: list[tuple[int, int]] = field(default_factory=list)
    offloads: list[tuple[int, int]] = field(default_factory=list)
    restores: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.sequences)

    @property
    def num_drafts(self) -> int:
        return sum(s.num_drafts for s in self.sequences)

    def prompt_depth(self) -> float:
        """How many tokens, itself included, a token of a prompt chunk attends to, on average; 0 without such."""
        chunks = [(len(s.token_ids), s.start) for s in self.sequences if len(s.token_ids) - s.num_drafts > 1]
        tokens = sum(count for count, _ in chunks)
        return sum(count * (start + (count + 1) / 2) for count, start in chunks) / tokens if tokens else 0.0


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """A drawn token, and the log-probabilities and evidence that were asked for."""

    token_id: int
    logprob: TokenLogprob | None = None
    evidence: TokenEvidence | None = None


@dataclass(slots=True, frozen=True)
class StepResult:
    """Per scheduled sequence the tokens drawn (none, or one, and before it the drafts that were accepted), and what its
    `score` asks for: `scored` is empty where no sequence has one. `swapped`: None for a step without offloads and
    restores. `states`: per scheduled sequence those that its `state` asks for, empty where no sequence has one."""

    sampled: list[list[SampledToken]]
    seconds: float = field(default=0.0, compare=False)
    scored: list[list[TokenLogprob]] = field(default_factory=list)
    swapped: SwapTimes | None = field(default=None, compare=False)
    states: list[States] = field(default_factory=list, compare=False)
