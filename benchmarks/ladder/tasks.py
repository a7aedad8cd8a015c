"""Tasks with checkable answers, of graded difficulty, in many wordings, with a short and a longer thought for each.

Some wordings are held out: training never sees them. Three families are never trained. `aio bench ladder` measures
tiers on these alone (`stored_tasks`).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from benchmarks.ladder import number_families, text_families, word_families
from benchmarks.ladder.wordings import Made, Wordings
from quality.evaluation.everyday_tables import FACTS, WORDS
from quality.evaluation.ladder import MOST_PER_LEVEL, PARTS, LadderTask

LEVELS = (1, 2, 3, 4, 5, 6)
Part = Literal["trained", "held-out", "untrained"]
Make = Callable[[Wordings, int], Made]

TRAINED: Mapping[str, Make] = MappingProxyType(
    {
        "sums": number_families.sums,
        "compare": number_families.compare,
        "sort": number_families.sort,
        "units": number_families.units,
        "yes-no": number_families.yes_no,
        "letters": word_families.letters,
        "reverse": word_families.reverse,
        "dates": word_families.dates,
        "logic": text_families.logic,
        "table": text_families.table,
        "extract": text_families.extract,
    }
)
UNTRAINED: Mapping[str, Make] = MappingProxyType(
    {"sequence": number_families.sequence, "roman": number_families.roman, "initials": word_families.initials}
)


class TaughtTask(LadderTask, frozen=True, array_like=True):
    """A task with a short and a longer thought, `brief` and `detailed`, that lead to its first answer."""

    brief: str
    detailed: str


def ladder_task(rng: random.Random, family: str, level: int, part: Part) -> TaughtTask:
    """Draw a task of `family` and `level`: in the wordings of training, or in held-out ones. Deterministic in `rng`."""
    make = UNTRAINED[family] if part == "untrained" else TRAINED[family]
    words = Wordings(rng, held_out=part != "trained")
    made = make(words, level)
    return TaughtTask(
        prompt=words.framed(made.question),
        answers=made.answers,
        others=made.others,
        rule=made.rule,
        brief=made.brief,
        detailed=made.detailed,
        family=family,
        level=level,
    )


def ladder_tasks(seed: int, per_level: int, part: Part) -> list[TaughtTask]:
    """Return `per_level` different tasks of each family and level of `part`, shuffled; deterministic in the arguments.

    Raises `ValueError` if there are fewer.
    """
    rng = random.Random(f"{seed}/{part}")
    made: dict[str, TaughtTask] = {}
    for family in families(part):
        for level in LEVELS:
            wanted = len(made) + per_level
            for _ in range(200 * per_level):
                if len(made) == wanted:
                    break
                task = ladder_task(rng, family, level, part)
                made.setdefault(task.prompt, task)
            if len(made) < wanted:
                raise ValueError(f"there are fewer than {per_level} {family} tasks of level {level}; ask for fewer")
    tasks = list(made.values())
    rng.shuffle(tasks)
    return tasks


def stored_tasks() -> bytes:
    """Return the file of tasks that `aio bench ladder` asks, a task a line."""
    parts = []
    for part in PARTS:
        tasks = [LadderTask(*msgspec.structs.astuple(task)[:-2]) for task in ladder_tasks(1, MOST_PER_LEVEL, part)]
        parts.append(f'"{part}": [\n' + ",\n".join(msgspec.json.encode(task).decode() for task in tasks) + "\n]")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def families(part: Part) -> Sequence[str]:
    return list(UNTRAINED if part == "untrained" else TRAINED)


# Everyday prompts: what the base model answers to them is what the adapter goes on answering. Without such examples an
# adapter for tasks makes everyday chat worse (in a trial with 8% of them; a quarter is used).
_TEMPLATES = (
    "What is {topic}?",
    "Tell me about {topic}.",
    "Explain {topic} in simple words.",
    "Write a short poem about {topic}.",
    "Give me three facts about {topic}.",
    "Why is {topic} important?",
    "Write one sentence about {topic}.",
    "What should I know about {topic}?",
    "I want to learn about {topic}. Where do I begin?",
    "What do people like about {topic}?",
    "What is the capital of {country}?",
    "Which language is spoken in {country}?",
    "What is {country} known for?",
    "Is it warm in {country} in winter?",
    "Name a city in {country}.",
    'What is "{word}" in {language}?',
    'Translate "{word}" to {language}.',
    'What is the opposite of "{word}"?',
    'Use the word "{word}" in a sentence.',
    'Give me another word for "{word}".',
    "How do I {activity}?",
    "Give me some tips to {activity}.",
    "Can you help me to {activity}?",
    "What do I need to {activity}?",
    "Write a short email to a friend who wants to {activity}.",
    "Is it hard to {activity}?",
    "What colour is {thing}?",
    "Where does {thing} come from?",
    "Is {thing} healthy?",
    "What can I make with {thing}?",
    "Describe {thing}.",
    "Write a Python function that {code}.",
    "What is the name of {fact}?",
    "Who discovered {science}?",
    "Is {science} still studied today? Answer yes or no.",
    "Have you heard of {science}?",
    "{greeting} I am thinking about {topic}.",
    "{greeting} Can you tell me something about {country}?",
    "Write a title for a story about {thing} and {topic}.",
    "Which do you prefer, {thing} or {other}?",
)
_WORDS = {
    "topic": "music; the moon; friendship; history; football; gardening; the sea; chess; photography; volcanoes; "
    "dreams; winter; trains; books; bees; money; sleep; coffee; painting; mountains; democracy; the internet; "
    "recycling; birds; robots; kindness; rain; the Romans; computers; yoga; electricity; cooking; whales; deserts; "
    "poetry; maps; clouds; family; patience; dinosaurs",
    "country": "Spain; Egypt; Brazil; Canada; Norway; India; Kenya; Mexico; Poland; Greece; Vietnam; Peru; Ireland; "
    "Turkey; Finland; Chile; Morocco; Portugal; Thailand; Hungary; Austria; Cuba; Iceland; Nepal",
    "word": "house; water; night; friend; happy; big; fast; winter; school; old; light; door; strong; early; city; "
    "quiet; green; tree; clean; love; heavy; rich; bright; river; careful",
    "language": "French; Spanish; German; Italian; Portuguese; Dutch",
    "activity": "bake a cake; learn a language; plant tomatoes; fix a bicycle; save money; sleep better; write a "
    "letter; paint a room; run five kilometres; clean a window; find a job; play the guitar; make tea; pack a "
    "suitcase; train a dog; read more books; draw a horse; wash a car; plan a birthday party; speak in public",
    "thing": "an apple; a rose; chocolate; honey; a violin; bread; a candle; wool; cheese; a lighthouse; rice; "
    "a mirror; olive oil; a kite; a banana; soap; a clock; silk; garlic; an umbrella",
    "other": "tea; a garden; the city; a boat; soup; an old book; a bicycle; the forest; music; a warm coat",
    "code": "adds two numbers; reverses a string; finds the largest number in a list; counts words; checks whether a "
    "number is prime; reads a file; sorts names; returns the square of a number; joins two lists; prints a greeting",
    "fact": "the largest ocean; the longest river in Africa; the first month of the year; the currency of Japan; the "
    "highest mountain in Europe; the author of Hamlet; the inventor of the telephone; the smallest planet; a baby dog; "
    "a person who bakes bread; the tallest animal; the colour of a ripe lemon; the king of the jungle; a frozen lake",
    "science": "gravity; penicillin; radium; electricity; the cell; evolution; X-rays; oxygen; the atom; relativity",
    "greeting": "Hi!; Hello there.; Good morning!; Hey.; Good evening.",
}
_PLAIN = (
    "Hi!",
    "Hello, how are you?",
    "Thank you very much!",
    "What can you do?",
    "Tell me a joke.",
    "Good night!",
    "Who are you?",
    "I feel sad today.",
    "What should I eat tonight?",
    "Give me a fun fact.",
    "I am bored.",
    "Recommend me a book.",
)
_MEASURED = {
    *(question for level in FACTS for question, _ in level),
    *(f"What is {asked}?" for level in WORDS for asked, _ in level),
}


def everyday_prompts(seed: int, count: int) -> list[str]:
    """Return up to `count` different prompts in random order, none of which is an everyday question that measures;
    deterministic in the arguments."""
    rng = random.Random(seed)
    lists = {name: [value.strip() for value in values.split(";")] for name, values in _WORDS.items()}
    distinct = dict.fromkeys(_PLAIN)
    for _ in range(20 * count):
        if len(distinct) >= count:
            break
        chosen = {name: rng.choice(values) for name, values in lists.items()}
        prompt = rng.choice(_TEMPLATES).format(**chosen)
        if prompt not in _MEASURED:
            distinct.setdefault(prompt)
    prompts = list(distinct)[:count]
    rng.shuffle(prompts)
    return prompts
