"""`aio sessions choose`: which two models serve runs of agents, in which order, from tasks of known outcome."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.cli.options import FILE, echo_answer, json_option
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from quality.comparison.session_pairs import PairDecision

Share = Annotated[float, Meta(ge=0, le=1)]


class ChooseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio sessions choose`."""

    catches: Share = 0.7
    """Share of failed results that your check rejects."""
    rejects: Share = 0.1
    """Share of good results that your check rejects."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What `aio sessions choose` prints."""

    sentence: str
    decision: "PairDecision"
    notes: list[str]


@click.group()
def sessions() -> None:
    """Choose models for runs of agents."""


@sessions.command()
@click.argument("file", type=FILE)
@options_of(ChooseOptions)
@json_option
def choose(file: Path, options: ChooseOptions, as_json: bool) -> None:
    """Decide which two models serve runs of agents, or which one alone.

    The first model runs a task. If your check rejects the result, the second one runs it again. FILE has a row for each
    run: task, model, resolved (0 to 1, or true and false) and usd. It is CSV, JSON or JSON lines, gzipped or not, with
    the column names of public collections such as SWE-bench's and OpenHands'.
    """
    from quality.comparison.joint_runs import Check, decide
    from quality.comparison.run_outcomes import read_outcomes

    try:
        outcomes, notes = read_outcomes(file)
        decision = decide(outcomes, Check(options.catches, options.rejects))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    chosen = Chosen(sentence=sentence_of(decision, len(outcomes.models)), decision=decision, notes=notes)
    lines = [chosen.sentence, *(f"Note: {note}." for note in notes)]
    echo_answer(as_json, chosen, "\n".join(lines))


def sentence_of(decision: "PairDecision", models: int) -> str:
    """Return the decision in words."""
    basis = f"{decision.tasks} tasks, {models} models"
    if decision.verdict == "pays":
        return (
            f"It pays to run {decision.first} first, and {decision.second} where the check rejects the result. Of 100 "
            f"tasks this resolves {100 * decision.gain:.1f} more than the best mix of all models at the same dollars "
            f"(at least {100 * decision.low:.1f}), for ${decision.usd:.3f} a task ({basis})."
        )
    return (
        f"No pair of models is shown to pay, because {decision.because} ({basis}). Of single models {decision.alone} "
        f"has the highest utility. With more tasks the first pair to try is {decision.first}, then {decision.second}."
    )
