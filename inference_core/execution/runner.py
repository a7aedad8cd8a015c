"""The seam between scheduling and computing."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from inference_core.kv_cache.block_io import BlockBytes
from inference_core.kv_cache.layout import KVLayout
from inference_core.lora.bank import AdapterBank
from inference_core.model_config import ModelConfig
from inference_core.protocol import ModelInfo
from inference_core.step_plan import DraftLaw, SampleSpec, StepPlan, StepResult


class ModelRunner(ABC):
    """Computes steps of one model over the shared KV arena.

    Contract: `run` makes the plan's `offloads`, `restores` and `copies` of blocks, in this order, then writes the keys
    and values of every scheduled token to the slots that its block table names before it reads them, reads only
    positions below `start + len(token_ids)`, and samples the last row of each sequence that has a `sample` and scores
    those that a `score` names. It keeps no state between calls but the KV arena and the host slots, so a step can be
    repeated, copies included and offloads excepted. If `run` raises, the core runs the halves of the step again, and
    their halves, and ends those sequences that fail alone; of a `BadLogitsError`, whose `rows` count the sampled
    sequences, it ends just those and runs the rest again.

    `adapters`: where the adapters lie that scheduled sequences may name; None if the runner serves none. `blocks`: the
    content of KV blocks, which `info.kv` says the kind of; None if they cannot be handed over to other cores.
    """

    info: ModelInfo
    config: ModelConfig
    layout: KVLayout
    # How many drafted tokens `run` verifies in one step at most; a runner that cannot is given none.
    most_drafts: int = 0
    adapters: AdapterBank | None = None
    blocks: BlockBytes | None = None

    @abstractmethod
    def run(self, plan: StepPlan) -> StepResult:
        """Execute one step; the plan's `model` is this runner's."""


class DraftingRunner(ModelRunner):
    """A runner that tells the laws of what it draws, so that a larger model can reject it by the rules."""

    @abstractmethod
    def draft(self, plan: StepPlan) -> list[tuple[int, DraftLaw]]:
        """Execute one step in which every sequence samples: per sequence a token, drawn with random numbers that are
        used for nothing else, and the law that it was drawn from."""


class OverlappingRunner(ModelRunner):
    """A runner whose steps go on while the next one is scheduled: the device works as the host plans.

    Contract: steps are carried out in the order of their launches, whenever that is. `launch` has taken all it needs
    of the plan when it returns, since the plan's objects are used again for the next one. A `PENDING` token is the one
    that the last launched step with this sequence drew. A step that fails raises from its landing, and from those of
    the steps launched after it; then nothing is under way, and what steps since then wrote may be anything.
    """

    @abstractmethod
    def draws_ahead(self, spec: SampleSpec) -> bool:
        """Whether the device draws by itself under `spec`, so that the next step may follow before the host knows the
        token. What depends on the tokens drawn before, as penalties and grammars do, must then be on
        the device too."""

    @abstractmethod
    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Begin a step and return how to wait for its result ("landing" it), which is done once, in order."""

    def run(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()
