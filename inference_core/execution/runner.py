"""The interface between scheduling and computing.

A runner also reads and writes the content of KV blocks as bytes, for transfers between cores.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.lora.adapter import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.protocol import ModelInfo, PipelineStats
from inference_core.step_plan import DraftLaw, SampleSpec, StepPlan, StepResult


class BlockBytes(ABC):
    """Reads and writes whole blocks between two steps, in order with the steps launched before."""

    @abstractmethod
    def read(self, blocks: list[int]) -> list[bytes]:
        """Return the content of each of `blocks`."""

    @abstractmethod
    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        """Write `contents`, one block's size each, to `blocks`, which no step in flight reads."""


class HostBlockBytes(BlockBytes):
    """Blocks of `arena` uint8 [bytes] in this process's memory, at the byte `offsets` of their ids."""

    def __init__(
        self, arena: NDArray[np.uint8], offsets: Callable[[list[int]], NDArray[np.int64]], block_bytes: int
    ) -> None:
        self._arena = arena
        self._offsets = offsets
        self._block_bytes = block_bytes

    def read(self, blocks: list[int]) -> list[bytes]:
        return [self._arena[at : at + self._block_bytes].tobytes() for at in self._offsets(blocks).tolist()]

    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        for at, content in zip(self._offsets(blocks).tolist(), contents, strict=True):
            self._arena[at : at + self._block_bytes] = np.frombuffer(content, np.uint8)


class Interruption:
    """Ends the decode steps under way after the current one. `set` may be called from any thread."""

    def __init__(self) -> None:
        self._word = np.zeros(1, np.int32)
        self.address: int = self._word.ctypes.data
        """Where the native steps read the word: 0 to go on."""

    @property
    def is_set(self) -> bool:
        return bool(self._word[0])

    def set(self) -> None:
        self._word[0] = 1

    def clear(self) -> None:
        self._word[0] = 0


class ModelRunner(ABC):
    """Computes steps of one model over the shared KV arena.

    Contract: `run` makes the plan's `offloads`, `restores` and `copies` of blocks, in this order, then writes the keys
    and values of every scheduled token to the slots that its block table names before it reads them, reads only
    positions below `start + len(token_ids)`, and samples the last row of each sequence that has a `sample` and scores
    those that a `score` names. It keeps no state between calls but the KV arena and the host slots, so a step can be
    repeated, copies included and offloads excepted. If `run` raises, the core runs the halves of the step again, and
    their halves, and ends those sequences that fail alone; of a `BadLogitsError`, whose `rows` count the sampled
    sequences, it ends just those and runs the rest again.

    Of a plan with several `decode_steps` it takes as many as it can: fewer after a step in which a sequence drew one of
    its stop tokens (`SampleSpec.eos_token_ids`), or `interruption` was set; the tokens are those of as many plans.
    """

    info: ModelInfo
    config: ModelConfig
    layout: KVLayout
    # Drafts that `run` verifies in one step at most; 0 for a runner without verification.
    most_drafts: int = 0
    # Decode steps that `run` takes at most; a core gives those that take several its `interruption`.
    most_decode_steps: int = 1
    interruption: Interruption
    adapters: AdapterBank | None = None
    """The slots of the adapters that scheduled sequences may name; None without adapters."""
    blocks: BlockBytes | None = None
    """The content of KV blocks, whose identity is `info.kv`; None if they cannot be transferred to other cores."""
    has_prompt_arithmetic: bool = False
    """Whether `ScheduledSequence.fast_until` matters."""
    pipeline: PipelineStats | None = None
    """Counts of the stages that the model is cut into; None without stages."""
    kv_dtypes: tuple[KVDtype, ...] = ()
    """What `use_kv_dtype` takes; () where the numbers in the cache stay as they were loaded."""
    is_loaded: bool = True
    """Whether its weights are there, without which no step can run."""
    load_error: Exception | None = None
    """Why they will never be."""

    @abstractmethod
    def run(self, plan: StepPlan) -> StepResult:
        """Execute one step; the plan's `model` is this runner's."""

    def use_kv_dtype(self, dtype: KVDtype) -> None:
        """Keep numbers of `dtype`, one of `kv_dtypes`, in blocks of that size from the next step on; `layout` and
        `info.kv` follow. What the blocks and host slots hold is lost. Steps in flight end as they were launched."""
        raise NotImplementedError(f"{self.info.name} keeps the KV cache that it was loaded with")


def with_layout(info: ModelInfo, layout: KVLayout) -> ModelInfo:
    """Return `info` of a model whose blocks have another `layout`."""
    return info if info.kv is None else replace(info, kv=replace(info.kv, layout=layout))


class DraftingRunner(ModelRunner):
    """A runner that returns the distributions of its draws, so that a larger model can verify them by rejection."""

    @abstractmethod
    def draft(self, plan: StepPlan) -> list[tuple[int, DraftLaw]]:
        """Execute one step in which every sequence samples: return per sequence a token, drawn with random numbers used
        for nothing else, and the law that it was drawn from."""


class OverlappingRunner(ModelRunner):
    """A runner whose device computes a step while the host plans the next one.

    Contract: steps are executed in the order of their launches. `launch` copies all it needs of the plan before it
    returns, since the plan's objects are reused. A `PENDING` token is the one that the last launched step with this
    sequence drew. A failed step raises when it is collected, and so do the steps launched after it; then no step is in
    flight, and what these steps wrote is undefined.
    """

    @abstractmethod
    def draws_ahead(self, spec: SampleSpec) -> bool:
        """Whether the device draws under `spec` without the host, so that the next step may be launched before the host
        knows the token. State that depends on earlier tokens, as penalties and grammars do, must then be on the device
        too."""

    @abstractmethod
    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Launch a step; return a function that waits for its result, to be called once, in order of launches."""

    def run(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()
