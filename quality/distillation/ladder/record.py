"""How the ladder's adapter is trained, and how one came to be."""

import msgspec

from quality.distillation.train import BaseType


class LadderRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """As `quality.distillation.train.Recipe`, but with fresh tasks in every one of `steps` steps, of `rows` sequences
    of about `row_tokens` tokens each.

    The learning rate rises over `warmup` steps, then falls linearly to zero. `everyday_share`: of the tokens.
    `everyday_prompts`: how many prompts the base model answers, with at most `everyday_tokens` tokens each.
    `checkpoint_steps`: how often the state is stored. `base`: in float32 a step takes half the time of bfloat16 on
    some CPUs.
    """

    rank: int = 16
    alpha: float = 32.0
    learning_rate: float = 2e-3
    warmup: int = 50
    clip: float = 1.0
    steps: int = 480
    rows: int = 2
    row_tokens: int = 480
    everyday_share: float = 0.25
    everyday_prompts: int = 2300
    everyday_tokens: int = 56
    checkpoint_steps: int = 20
    base: BaseType = "float32"
    seed: int = 0


class HeldOutLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Nats per token of the wanted thoughts and answers, mean over tasks, before and after training."""

    before: float
    after: float


class LadderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter came to be, stored next to it. `base_weights`: content hash of the model's files. `everyday`:
    prompts that the base model answered. `held_out`: tasks in held-out wordings, with their losses by mode.
    `first_loss`, `last_loss`: over the first and the last tenth of the steps. `created_at`: epoch seconds.
    `started_from`: the record of the adapter at which this training began; None: at the base model."""

    base: str
    base_path: str
    base_weights: str
    recipe: LadderRecipe
    everyday: int
    held_out: int
    held_out_loss: dict[str, HeldOutLoss]
    tokens: int
    seconds: float
    first_loss: float
    last_loss: float
    created_at: float
    started_from: "LadderRecord | None" = None
