"""Which prompts a replay asks and which it holds out: folds of a ladder, so that every prompt is held out once."""

from benchmarks.replay.ladder import Ladder, Prompt, uniform
from benchmarks.replay.own_prompts import NEW_KIND, own_prompts
from benchmarks.replay.timeline import Plan

# Kinds that arrive new in the middle of a run, by the ladder's name.
NEW_KINDS = {"arena": "writing", "mmlu_pro": "psychology", "evouna": "evouna_tq"}


def recorded_plans(ladder: Ladder, folds: int, *, prompts: int, labels: int, rounds: int, seed: int) -> list[Plan]:
    """A plan per fold of at most `prompts` of the ladder: one fold is held out, the others are asked, first before and
    then again after a tier has become worse. The prompts of the new kind come at the end."""
    kind = NEW_KINDS.get(ladder.name)
    ordered = sorted(ladder.prompts, key=lambda prompt: uniform(seed, prompt.prompt_id))
    usual = [prompt for prompt in ordered if prompt.kind != kind][:prompts]
    new = [prompt for prompt in ordered if prompt.kind == kind][: max(prompts // 8, 1)]
    return [_plan(ladder, usual, new, fold, folds, labels, rounds) for fold in range(folds)]


def _plan(
    ladder: Ladder, usual: list[Prompt], new: list[Prompt], fold: int, folds: int, labels: int, rounds: int
) -> Plan:
    asked = ladder.of([prompt for index, prompt in enumerate(usual) if index % folds != fold])
    return Plan(
        traffic=asked,
        held=ladder.of(usual[fold::folds]),
        after=asked,
        measured_on=asked,
        new=ladder.of([prompt for index, prompt in enumerate(new) if index % folds != fold]) if new else None,
        new_held=ladder.of(new[fold::folds]) if new else None,
        labels=labels,
        rounds=rounds,
    )


def own_plans(prompts: int, *, labels: int, rounds: int, seed: int) -> list[Plan]:
    """One plan of own prompts, no text in two of its parts; a kind that was never asked comes at the end."""
    held, measured = prompts // 2, 100
    ladder = own_prompts(2 * prompts + held + measured, seed)
    parts = (
        ladder.of(ladder.prompts[first : first + count])
        for first, count in ((0, prompts), (prompts, prompts), (2 * prompts, held), (2 * prompts + held, measured))
    )
    traffic, after, held_out, measured_on = parts
    new = own_prompts(max(prompts // 4, 20) + 50, seed, (NEW_KIND,))
    return [
        Plan(
            traffic=traffic,
            held=held_out,
            after=after,
            measured_on=measured_on,
            new=new.of(new.prompts[50:]),
            new_held=new.of(new.prompts[:50]),
            labels=labels,
            rounds=rounds,
        )
    ]
