"""What the product's rules of sessions gain on recorded runs, over a lottery of equal cost between the two models.

An upper bound: the strong model's recorded run began with the task, on untouched files.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.sessions.recorded import RecordedRun, counters_of, end_signs
from classifier.policy.sessions import TROUBLE_FROM, trouble_move, work_end

Float = npt.NDArray[np.float64]
Rule = Literal["bad-end", "trouble", "steps"]
BOOTSTRAP, SHUFFLES = 2000, 200


class Price(msgspec.Struct, frozen=True):
    """US dollars per million tokens read and written, or `step` US dollars of a step where tokens are not recorded."""

    input_usd: float = 0.0
    output_usd: float = 0.0
    step: float | None = None


class RuleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`reward` and `cost`: shares of the strong model's own. `gain`: points of reward (of 100) over the best lottery
    between both models at no more than the rule's cost, with its 95% interval over tasks; `shuffled_gain`: with the
    rule's signals dealt to other tasks. `moved`: the share of the cheap model's runs that the rule moved."""

    reward: float
    cost: float
    gain: float
    gain_low: float
    gain_high: float
    shuffled_gain: float
    moved: float
    tasks: int
    tasks_left_out: int
    runs: int
    costs_estimated: int
    cheap_reward: float
    strong_reward: float
    cheap_cost: float


class _Task(msgspec.Struct, frozen=True):
    """Of each run of the cheap model: its reward and cost, and of a moved one the cost until the move, else NaN. Of the
    strong model the means."""

    cheap: Float
    cheap_usd: Float
    until_move: Float
    strong: float
    strong_usd: float


def measure(
    runs: Sequence[RecordedRun], cheap: str, strong: str, rule: Rule, *, prices: dict[str, Price], asks_again: float,
    steps: int, seed: int,
) -> RuleFigures:  # fmt: skip
    """Return the figures of `rule`: the cheap model runs each task, and the strong one takes over where the rule says.

    `asks_again`: the share of users that ask again after a bad end. `steps`: of the rule `steps`. Raises ValueError for
    models or costs that the runs lack.
    """
    of_model = _by_model(runs, cheap, strong)
    usd = {model: _costs(of_model[model], model, prices.get(model)) for model in (cheap, strong)}
    share = asks_again if rule == "bad-end" else 1.0
    if rule == "trouble" and not any(run.steps for run in of_model[cheap]):
        raise ValueError(f"{cheap}: no run has steps, by which the rule `trouble` decides")
    tasks, left_out = _tasks(of_model[cheap], of_model[strong], usd[cheap], usd[strong], rule, steps)
    if not tasks:
        raise ValueError(f"no task has runs of both {cheap} and {strong}")
    made = np.array([_made(task, np.isfinite(task.until_move), share) for task in tasks])
    base = np.array([[task.cheap.mean(), task.cheap_usd.mean(), task.strong, task.strong_usd] for task in tasks])
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(tasks), (BOOTSTRAP, len(tasks)))
    spread = [_gain(made[pick].mean(axis=0), base[pick].mean(axis=0)) for pick in picks]
    low, high = np.quantile(spread, [0.025, 0.975])
    reward, paid = made.mean(axis=0)
    means = base.mean(axis=0)
    estimated = sum(run.usd is None for model in (cheap, strong) for run in of_model[model])
    return RuleFigures(
        reward=float(reward / means[2]) if means[2] else 0.0,
        cost=float(paid / means[3]),
        gain=_gain((reward, paid), means),
        gain_low=float(low),
        gain_high=float(high),
        shuffled_gain=_shuffled(tasks, share, means, rng),
        moved=float(np.mean([np.isfinite(task.until_move).mean() for task in tasks]) * share),
        tasks=len(tasks),
        tasks_left_out=left_out,
        runs=sum(len(task.cheap) for task in tasks),
        costs_estimated=estimated,
        cheap_reward=float(means[0]),
        strong_reward=float(means[2]),
        cheap_cost=float(means[1] / means[3]),
    )


def _by_model(runs: Sequence[RecordedRun], cheap: str, strong: str) -> dict[str, list[RecordedRun]]:
    of_model: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        of_model[run.model].append(run)
    missing = [model for model in (cheap, strong) if model not in of_model]
    if missing:
        raise ValueError(f"no runs of {', '.join(missing)}; the file has {', '.join(sorted(of_model))}")
    if cheap == strong:
        raise ValueError(f"{cheap} is both models; give two of {', '.join(sorted(of_model))}")
    return of_model


def _costs(runs: Sequence[RecordedRun], model: str, price: Price | None) -> dict[int, float]:
    """US dollars of each run, by its identity. Where one is missing it is estimated: by its tokens and the price, else
    by its steps at the model's mean cost of a step."""
    costs: dict[int, float] = {}
    for run in runs:
        if run.usd is not None:
            costs[id(run)] = run.usd
        elif price is not None and price.step is None and (run.tin is not None or run.tout is not None):
            costs[id(run)] = ((run.tin or 0) * price.input_usd + (run.tout or 0) * price.output_usd) / 1e6
    if price is not None and price.step is not None:
        costs |= {id(run): run.length * price.step for run in runs if id(run) not in costs}
    priced = [run for run in runs if id(run) in costs]
    if not priced or not any(costs.values()):
        has = "tokens" if any(run.tin for run in runs) else "steps alone"
        form = "IN:OUT per million tokens" if has == "tokens" else "the price of a step"
        raise ValueError(f"{model}: its runs record {has}, no dollars; give --prices ({model}={form})")
    of_step = sum(costs[id(run)] for run in priced) / max(1.0, sum(run.length for run in priced))
    mean = sum(costs[id(run)] for run in priced) / len(priced)
    for run in runs:
        costs.setdefault(id(run), run.length * of_step if run.length else mean)
    return costs


def _tasks(
    cheap: Sequence[RecordedRun], strong: Sequence[RecordedRun], cheap_usd: dict[int, float],
    strong_usd: dict[int, float], rule: Rule, steps: int,
) -> tuple[list[_Task], int]:  # fmt: skip
    """The tasks with runs of both models, a task of one set apart from its namesake of another; and how many others
    there are."""
    by_task: dict[tuple[str, str], tuple[list[RecordedRun], list[RecordedRun]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((cheap, strong)):
        for run in runs:
            by_task[run.set, run.task][side].append(run)
    tasks = [
        _Task(
            cheap=np.array([run.reward for run in ones], np.float64),
            cheap_usd=np.array([cheap_usd[id(run)] for run in ones]),
            until_move=np.array([_until_move(run, rule, steps) * cheap_usd[id(run)] for run in ones]),
            strong=float(np.mean([run.reward for run in others])),
            strong_usd=float(np.mean([strong_usd[id(run)] for run in others])),
        )
        for _, (ones, others) in sorted(by_task.items())
        if ones and others
    ]
    return tasks, len(by_task) - len(tasks)


def _until_move(run: RecordedRun, rule: Rule, steps: int) -> float:
    """The share of the run that was done when `rule` moved it; NaN: it did not."""
    if rule == "bad-end":
        return 1.0 if work_end(end_signs(run)).end == "bad" else float("nan")
    if rule == "steps":
        return steps / run.length if run.length > steps else float("nan")
    for step in range(TROUBLE_FROM, len(run.steps)):
        move = trouble_move("act", counters_of(run.steps[:step]), consents=True, share=0.0, draw=0.0)
        if move is not None and move.moves:
            return step / len(run.steps)
    return float("nan")


def _made(task: _Task, moved: npt.NDArray[np.bool_], share: float) -> tuple[float, float]:
    """Mean reward and US dollars of a task whose runs `moved` with probability `share`."""
    until = np.where(np.isfinite(task.until_move), task.until_move, task.cheap_usd)
    chance = np.where(moved, share, 0.0)
    reward = (1 - chance) * task.cheap + chance * task.strong
    usd = (1 - chance) * task.cheap_usd + chance * (until + task.strong_usd)
    return float(reward.mean()), float(usd.mean())


def _gain(made: Sequence[float] | Float, means: Float) -> float:
    """Points of reward over the best lottery between the models at no more than the cost of what was made."""
    reward, usd = made
    cheap, cheap_usd, dear, dear_usd = means
    if cheap_usd > dear_usd:
        cheap, cheap_usd, dear, dear_usd = dear, dear_usd, cheap, cheap_usd
    share = 0.0 if dear_usd <= cheap_usd else min(1.0, max(0.0, (usd - cheap_usd) / (dear_usd - cheap_usd)))
    lottery = cheap + share * max(0.0, dear - cheap)
    return float(100 * (reward - lottery))


def _shuffled(tasks: Sequence[_Task], share: float, means: Float, rng: np.random.Generator) -> float:
    """Mean gain with the runs' signals dealt to random other runs, at the same rate and place of moves."""
    places = np.concatenate([task.until_move / np.maximum(task.cheap_usd, 1e-12) for task in tasks])
    gains = []
    for _ in range(SHUFFLES):
        dealt = iter(rng.permutation(places))
        made = []
        for task in tasks:
            signals = np.array([next(dealt) for _ in task.cheap])
            shuffled = msgspec.structs.replace(task, until_move=signals * task.cheap_usd)
            made.append(_made(shuffled, np.isfinite(signals), share))
        gains.append(_gain(np.mean(made, axis=0), means))
    return float(np.mean(gains))
