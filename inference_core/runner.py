"""The seam between scheduling and computing."""

from abc import ABC, abstractmethod

from inference_core.kv_layout import KVLayout
from inference_core.model_config import ModelConfig
from inference_core.protocol import ModelInfo
from inference_core.step_plan import StepPlan, StepResult


class ModelRunner(ABC):
    """Computes steps of one model over the shared KV arena.

    Contract: `run` makes the plan's block `copies`, then writes the keys and values of every scheduled token to the
    slots that its block table names before it reads them, reads only positions below `start + len(token_ids)`, and
    samples the last row of each sequence that has a `sample`. It keeps no state between calls but the KV arena, so a
    step can be repeated, copies included. If `run` raises, the core runs the halves of the step again, and their
    halves, and ends those sequences that fail alone; of a `BadLogitsError`, whose `rows` count the sampled
    sequences, it ends just those and runs the rest again.
    """

    info: ModelInfo
    config: ModelConfig
    layout: KVLayout

    @abstractmethod
    def run(self, plan: StepPlan) -> StepResult:
        """Execute one step; the plan's `model` is this runner's."""
