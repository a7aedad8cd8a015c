"""How the ladder's adapter is trained, how one came to be, and its model card, in the folder of its weights."""

import msgspec

from benchmarks.ladder.tasks import families
from quality.distillation.recipe import BaseType


class LadderRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """As `quality.distillation.recipe.Recipe`, but with fresh tasks in every one of `steps` steps, of `rows` sequences
    of about `row_tokens` tokens each.

    The learning rate rises over `warmup` steps, then falls linearly to zero. `everyday_share`: of the tokens.
    `everyday_prompts`: how many prompts the base model answers, with at most `everyday_tokens` tokens each.
    `checkpoint_steps`: how often the state is stored. `base`: float32 steps take half of bfloat16's time on some CPUs.
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


CARD_FILE = "README.md"
# The recipe's fields that the command has options for.
_OPTIONS = ("steps", "rows", "rank", "alpha", "learning_rate", "base", "seed")

_CARD = """\
# An adapter that makes a ladder of one small model

LoRA of rank {rank} over {base} (`{path}`), for all linear layers but the head. One adapter answers in three ways; how
the assistant's turn begins chooses one:

| turn begins with | answer |
| --- | --- |
| nothing | directly |
| `In short:` | after a short thought, behind `Answer:` |
| `Step by step:` | after a longer thought, behind `Answer:` |

A tier binds it in a catalogue; without the policy it answers directly:

```toml
[[tiers]]
name = "thinks"
model = "{name}"
adapter = "{folder}"

[tiers.policy]
kind = "chain-of-thought"
budget_tokens = 384
instruction = ""
opening = "Step by step:\\n"
end_markers = ["Answer:"]
answer_opening = "Answer:"
```

## What it was trained on

- {tokens:,} tokens in {steps} steps, {minutes:.0f} minutes on {rows} sequences of about {row_tokens} tokens each. Every
  step has fresh tasks; none is seen twice except by chance.{start}
- Tasks with checkable answers, made by a program: {families}; six levels each. Answers and thoughts are computed, not
  written by a model.
- Everyday prompts, also made by a program, for {share:.0%} of the tokens, with the greedy answers of the base model
  itself ({everyday} prompts): they hold the adapter to what the base says. No text of a user is in it.
- Held out: a wording of every question, and two of the sentences around questions. Loss on {held_out} such tasks, in
  nats per token, before and after these steps:

| answer | before | after |
| --- | --- | --- |
{losses}

## What it is no better at

- Wordings of its tasks that it never saw: it is right in them less often than in those of training.
- Families of tasks that it never saw ({untrained}): expect the base model, and less behind a thought.
- Knowledge: it has learned no facts, and everyday chat is the base model's at best.
- Longer or larger cases than it saw: words above nine letters, numbers above four digits, more than six things to sort.
- Languages other than English, tools, code, and several turns.

A thought is a computation that the model learned to write, not an explanation that anyone checked. The base model's
licence (Apache-2.0 for SmolLM2) holds for the adapter, too.

Made with `python -m benchmarks ladder {name} FOLDER{options}`; `training.json` has all figures of the recipe.
"""

_START = """
- They began at an adapter of the same recipe, whose own training had {tokens:,} tokens in {steps} steps."""


def model_card(record: LadderRecord, folder: str) -> str:
    """Return the card of the adapter that `record` describes. `folder`: where a catalogue finds it."""
    recipe, usual = record.recipe, LadderRecipe()
    earlier = record.started_from
    start = "" if earlier is None else _START.format(tokens=earlier.tokens, steps=earlier.recipe.steps)
    changed = {name: getattr(recipe, name) for name in _OPTIONS if getattr(recipe, name) != getattr(usual, name)}
    options = "".join(f" --{name.replace('_', '-')} {value}" for name, value in changed.items())
    losses = [f"| {mode} | {loss.before:.3f} | {loss.after:.3f} |" for mode, loss in record.held_out_loss.items()]
    return _CARD.format(
        rank=recipe.rank,
        base=record.base,
        path=record.base_path,
        tokens=record.tokens,
        steps=recipe.steps,
        minutes=record.seconds / 60,
        rows=recipe.rows,
        row_tokens=recipe.row_tokens,
        families=", ".join(families("trained")),
        share=recipe.everyday_share,
        everyday=record.everyday,
        held_out=record.held_out,
        start=start,
        options=options + ("" if earlier is None else " --from EARLIER"),
        losses="\n".join(losses),
        untrained=", ".join(families("untrained")),
        name=record.base,
        folder=folder,
    )
