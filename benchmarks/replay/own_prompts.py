"""Prompts written for this project, of several kinds, and what four imagined tiers are declared to be able to do.

No model is asked: whether a tier's answer is good is drawn once per prompt from the declared ability, so that the truth
is known and a newcomer needs neither weights nor data. A prompt that a tier answers well, every tier of at least the
same ability on its kind answers well, too.
"""

import random
from collections.abc import Callable

import msgspec

from benchmarks.replay.ladder import Ladder, Prompt, declared_tiers, made_answer, uniform, words

Abilities = tuple[float, float, float, float]

MODELS = ("small-3b", "medium-8b", "large-70b", "largest-70b-thinking")


class Kind(msgspec.Struct, frozen=True):
    """A kind of prompts: P(good answer) by tier, the tokens of an answer, how often it is asked, and its template."""

    name: str
    abilities: Abilities
    tokens: int
    weight: int
    make: Callable[[random.Random], str]


_CITIES = words("Lisbon Oslo Vienna Prague Dublin Athens Warsaw Helsinki Madrid Zagreb Riga Vilnius Sofia Tallinn")
_COUNTRIES = words("Peru Kenya Norway Vietnam Chile Portugal Nepal Ghana Jordan Uruguay Latvia Bolivia Oman Laos")
_NAMES = words("Amara Bjorn Chen Dalia Emre Farid Greta Hugo Ines Jonas Kaito Leila Mateo Nadia Oskar Priya")
_GOODS = words("kettle backpack headset blender tent lamp keyboard scooter jacket camera printer heater bicycle chair")
_TEAMS = words("billing shipping payments search login inventory reporting messaging")
_VERBS = words("cancel move confirm postpone shorten repeat")
_FAULTS = (
    "connection pool exhausted", "certificate expired", "disk quota exceeded", "clock skew detected",
    "deadlock found when trying to get lock", "too many open files",
)  # fmt: skip
_TABLES = ("orders", "customers", "invoices", "deliveries", "returns", "suppliers")
_FACTS = (
    "What is the capital of {0}?", "Which language is spoken in {0}?", "Which currency has {0}?",
    "On which continent is {0}?", "What is the time zone of {1}?", "Which country is {1} in?",
)  # fmt: skip
_DUTIES = ("night shift", "front desk", "stock count", "training", "weekend cover", "handover")


def _fact(r: random.Random) -> str:
    asked = r.choice(_FACTS).format(r.choice(_COUNTRIES), r.choice(_CITIES))
    return asked + r.choice(("", " Thanks!", " Keep it short."))


def _rewrite(r: random.Random) -> str:
    return (
        f"Make this sentence friendlier: Hi {r.choice(_NAMES)}, you must {r.choice(_VERBS)} the meeting about the "
        f"{r.choice(_GOODS)} before {r.choice(('Monday', 'Tuesday', 'Friday', 'noon', 'tomorrow'))}."
    )


def _ticket(r: random.Random) -> str:
    return (
        f"Here is a message of a customer: 'My name is {r.choice(_NAMES)}. The {r.choice(_GOODS)} that I ordered to "
        f"{r.choice(_CITIES)} came {r.choice(('broken', 'late', 'in the wrong colour', 'without its charger'))}, and I "
        f"want {r.choice(('a refund', 'a new one', 'an apology', 'a voucher'))}.' Name the customer, the article and "
        "the wish."
    )


def _proverb(r: random.Random) -> str:
    return (
        f"Translate into {r.choice(('Finnish', 'Estonian', 'Hungarian', 'Basque'))}: The {r.choice(_GOODS)} of "
        f"{r.choice(_NAMES)} is in {r.choice(_CITIES)}."
    )


def _mail(r: random.Random) -> str:
    return (
        f"Write an e-mail to {r.choice(_NAMES)} from the {r.choice(_TEAMS)} team: the delivery of the "
        f"{r.choice(_GOODS)} to {r.choice(_CITIES)} is late by {r.choice(('two', 'three', 'five'))} days. Apologise, "
        "explain that customs held it, and offer to pay the shipping."
    )


def _sql(r: random.Random) -> str:
    a, b = r.sample(_TABLES, 2)
    return (
        f"Given the tables {a}(id, city, created, total) and {b}(id, {a}_id, kind, amount), write a SQL query that "
        f"lists for {r.choice(_CITIES)} the {r.choice(('ten largest', 'five newest', 'average'))} totals per month, "
        f"joined with the sum of amounts of kind '{r.choice(_GOODS)}', and explain which index would help."
    )


def _log(r: random.Random) -> str:
    return (
        f"Our {r.choice(_TEAMS)} service in {r.choice(_CITIES)} logs '{r.choice(_FAULTS)}' every few minutes since the "
        f"{r.choice(_TEAMS)} service was upgraded, while its load is low. Work out the most likely root cause step by "
        "step, name what speaks against the other explanations, and propose how to verify it."
    )


def _contract(r: random.Random) -> str:
    return (
        f"Clause A: the supplier of the {r.choice(_GOODS)} bears all costs of transport to {r.choice(_CITIES)} unless "
        f"the buyer is late. Clause B: the buyer bears costs that arise after the {r.choice(('third', 'tenth'))} day. "
        f"{r.choice(_NAMES)} was late by {r.choice(('two', 'four', 'twelve'))} days because of a strike. Analyse who "
        "pays, where the clauses conflict, and which interpretation a court would prefer and why."
    )


def _rota(r: random.Random) -> str:
    people = ", ".join(r.sample(_NAMES, 5))
    return (
        f"Construct a weekly schedule for {people} over the {r.choice(_DUTIES)} and the {r.choice(_DUTIES)} in "
        f"{r.choice(_CITIES)} such that no one works two evenings in a row, every pair meets at least once, and "
        f"{r.choice(_NAMES)} is never alone. Prove that your schedule satisfies all constraints, or that none exists."
    )


def _menu(r: random.Random) -> str:
    return (
        f"Suggest a dinner for {r.choice(_NAMES)} and {r.choice(('three', 'four', 'six'))} guests in "
        f"{r.choice(_CITIES)}: one of them eats no {r.choice(('nuts', 'fish', 'gluten', 'eggs', 'milk'))}, the kitchen "
        f"has only a {r.choice(('pan', 'grill', 'kettle', 'stove'))}. List the courses with their ingredients."
    )


# Some kinds are what their words suggest. Others are not, and only outcomes can tell: short translations that the small
# models get wrong, and long questions about SQL and logs that the medium model answers as well as any.
KINDS = (
    Kind("facts", (0.99, 0.99, 1.0, 1.0), 30, 3, _fact),
    Kind("friendlier sentences", (0.98, 0.99, 0.99, 1.0), 40, 3, _rewrite),
    Kind("tickets", (0.97, 0.99, 0.99, 1.0), 60, 3, _ticket),
    Kind("translations", (0.10, 0.25, 0.95, 0.97), 40, 3, _proverb),
    Kind("e-mails", (0.50, 0.98, 0.99, 0.99), 140, 3, _mail),
    Kind("SQL", (0.15, 0.98, 0.99, 0.99), 180, 4, _sql),
    Kind("logs", (0.10, 0.98, 0.99, 0.99), 220, 4, _log),
    Kind("contracts", (0.05, 0.30, 0.95, 0.97), 240, 3, _contract),
    Kind("schedules", (0.02, 0.10, 0.40, 0.95), 300, 2, _rota),
)
# A kind that no one has asked before the middle of a run.
NEW_KIND = Kind("menus", (0.15, 0.30, 0.95, 0.97), 160, 4, _menu)


def own_prompts(count: int, seed: int, kinds: tuple[Kind, ...] = KINDS) -> Ladder:
    """`count` different prompts, kinds mixed by weight; the same for the same arguments.

    Raises `ValueError` if the templates have not so many.
    """
    rng = random.Random(seed)
    prompts: dict[str, Prompt] = {}
    for _ in range(50 * count):
        if len(prompts) == count:
            return Ladder("own prompts", declared_tiers(MODELS), tuple(prompts.values()))
        kind = rng.choices(kinds, [one.weight for one in kinds])[0]
        text = kind.make(rng)
        if text not in prompts:
            prompts[text] = _answered(text, kind)
    raise ValueError(f"the templates have only {len(prompts)} different prompts; ask for fewer than {count}")


def _answered(text: str, kind: Kind) -> Prompt:
    drawn, prompt_id = uniform("own prompt", text), f"{kind.name}-{uniform(text):.9f}"
    answers = tuple(
        made_answer(model, prompt_id, drawn < ability, kind.tokens)
        for model, ability in zip(MODELS, kind.abilities, strict=True)
    )
    return Prompt(prompt_id, kind.name, text, answers)
