"""`make demo-replay`: the whole loop once, in plain words, on prompts of our own and tiers with declared abilities."""

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from benchmarks.replay.checks import Check, checks, cost_of, quality_of
from benchmarks.replay.deployment import Conditions
from benchmarks.replay.own_prompts import KINDS
from benchmarks.replay.plans import own_plans
from benchmarks.replay.timeline import COLD, REPAIRED, RETRAINED, WORSE, Life, Look, Plan, live

Say = Callable[[str], None]

PROMPTS, LABELS = 450, 150


def demo_plan(seed: int = 0) -> Plan:
    """Own prompts, looked at where the story turns."""
    [plan] = own_plans(PROMPTS, labels=LABELS, rounds=1, seed=seed)
    return msgspec.structs.replace(plan, curve=False)


async def demo(say: Say, seed: int = 0) -> bool:
    """Run it and tell the story; whether everything went as it should."""
    began, plan, conditions = time.monotonic(), demo_plan(seed), Conditions()
    _introduce(plan, conditions, say)
    told: list[Look] = []

    def tell(look: Look) -> None:
        _tell(look, told[-1] if told else look, plan, say)
        told.append(look)

    life = await live(plan, conditions, tell, until=REPAIRED)
    checked = checks(life, plan.labels)
    _conclude(checked, life, time.monotonic() - began, say)
    return all(check.passed for check in checked)


def _introduce(plan: Plan, conditions: Conditions, say: Say) -> None:
    say("AIO answers each prompt by that of four tiers whose answer is worth most, and learns which one that is.")
    say("")
    say("The gateway below is real: a process of its own, with its database, judge and retraining. The tiers are not:")
    say("a small server replays answers, and how often those are good is declared here, so that the truth is known.")
    say("")
    head = [f"{terms.model:>21}" for terms in plan.held.tiers]
    say(f"  {'good answers':<22}{''.join(head)}")
    for kind in KINDS:
        say(f"  {kind.name:<22}{''.join(f'{ability:>21.0%}' for ability in kind.abilities)}")
    say(f"  {'$ per million tokens':<22}{''.join(f'{terms.price:>21.2f}' for terms in plan.held.tiers)}")
    say("")
    say("The gateway knows nothing of this table. Quality: how many answers are no worse than the strongest tier's.")
    say(f"Cost: a share of the strongest tier's. Both are of {len(plan.held.prompts)} prompts that it is never asked.")
    say(f"The strongest tier judges pairs of answers, and is wrong about {conditions.judge_noise:.0%} of them.")
    say("Here every cheap answer may be verified; in production 5% are, at no more than 5% of what serving costs.")


def _tell(look: Look, before: Look, plan: Plan, say: Say) -> None:
    """What was seen at a turning point, and what the gateway wrote down since the one before."""
    if look.phase == COLD:
        say("")
        say("1. The first day. Nothing is known of these tiers; prompts go by how complex they look.")
        say("   always the strongest tier   cost 100%   quality 100%")
        say(f"   the gateway                 {_shown(look)}   {shares(look)}")
        say(f"   Now users ask, until {plan.labels} answers are verified ...")
    elif look.phase == RETRAINED:
        say("")
        say(f"2. {look.spent.requests} requests later: {look.spent.labels} labels, {look.spent.worse} of them 'worse'.")
        tell_events(look, before, say)
        say(f"   the gateway                 {_shown(look)}   {shares(look)}")
    elif look.phase == WORSE:
        say("")
        say(f"3. Tier {look.worse_tier} gets worse: {plan.degrade:.0%} of its answers are poor from now on.")
        say(f"   the gateway                 {_shown(look)}   it does not know yet")
        say("   Users go on asking, until it was noticed and answered ...")
    elif look.phase == REPAIRED:
        say(f"   {look.spent.requests - before.spent.requests} requests later:")
        tell_events(look, before, say)
        say(f"   the gateway                 {_shown(look)}   {shares(look)}")


def tell_events(look: Look, before: Look, say: Say) -> None:
    """The alarms and retrainings of `look` that came after `before`."""
    for alarm in look.alarms[len(before.alarms) :]:
        say(f"   alarm about {alarm.stream}: {alarm.reason}")
    for run in look.retrainings[len(before.retrainings) :]:
        began = {"drift": "by that alarm", "button": "by order"}.get(run.trigger, run.trigger)
        if run.accepted:
            say(f"   retrained {began}: version {run.version} is {run.reason}, and serves from now on")
        else:
            say(f"   retrained {began}: nothing changes, {run.reason}")


def _conclude(checked: list[Check], life: Life, seconds: float, say: Say) -> None:
    last = life.looks[-1].spent
    say("")
    for check in checked:
        say(f"   {check.line}")
    say("")
    costs = f"cost ${last.serving_usd:.2f}, their {last.labels} labels ${last.verification_usd:.2f}"
    say(f"{last.requests} requests {costs}; {seconds:.0f} s.")
    cold, after, end = life.first(COLD), life.last(RETRAINED), life.last(REPAIRED)
    if all(check.passed for check in checked) and cold is not None and after is not None and end is not None:
        learned = f"from {quality_of(cold):.0%} to {quality_of(after):.0%}"
        cost = f"{cost_of(after):.0%} of the strongest tier's cost ({cost_of(cold):.0%} on the first day)"
        say(f"SUCCESS: {after.spent.labels} labels took quality {learned}, at {cost}.")
        say(f"Tier {life.worse_tier} got worse; that was noticed and repaired, and quality is {quality_of(end):.0%}.")
    else:
        say("NOT AS IT SHOULD BE: see the lines that say FAIL.")


def _shown(look: Look) -> str:
    return f"cost {cost_of(look):4.0%}   quality {quality_of(look):4.0%}"


def shares(look: Look) -> str:
    """How many of the held-out prompts go to each tier."""
    counted = Counter(look.tiers)
    shares = (f"{counted[tier] / len(look.tiers):.0%}" for tier in range(1, len(look.ladder.tiers) + 1))
    return f"tiers 1 to {len(look.ladder.tiers)}: {' / '.join(shares)}"
