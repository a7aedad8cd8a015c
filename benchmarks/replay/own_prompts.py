"""Prompts written for this project, of several kinds, and what four imagined tiers are declared to be able to do.

No model is asked: whether a tier's answer is good is drawn once per prompt from the declared ability, so that the truth
is known and a newcomer needs neither weights nor data. A prompt that a tier answers well, every tier of at least the
same ability on its kind answers well, too.
"""

import random
from importlib.resources import files

import msgspec

from benchmarks.replay.ladder import Ladder, Prompt, declared_tiers, made_answer, uniform

Abilities = tuple[float, float, float, float]

MODELS = ("small-3b", "medium-8b", "large-70b", "largest-70b-thinking")


class Kind(msgspec.Struct, frozen=True):
    """A kind of prompts: P(good answer) by tier, the tokens of an answer, how often it is asked, and how a prompt is
    made: one of `texts`, filled with a `sample` (a list of words, and how many different ones) and with a word of each
    list in `draw`."""

    name: str
    abilities: Abilities
    tokens: int
    weight: int
    texts: list[str]
    draw: list[str | list[str]]
    sample: tuple[str, int] | None = None

    def make(self, rng: random.Random) -> str:
        """A prompt, drawn by `rng`."""
        text = rng.choice(self.texts) if len(self.texts) > 1 else self.texts[0]
        drawn = [] if self.sample is None else rng.sample(_FILE.words[self.sample[0]], self.sample[1])
        drawn += [rng.choice(_FILE.words[choices] if isinstance(choices, str) else choices) for choices in self.draw]
        return text.format(*drawn)


class _File(msgspec.Struct, frozen=True):
    words: dict[str, list[str]]
    kinds: tuple[Kind, ...]
    new_kind: Kind


_FILE = msgspec.toml.decode((files("benchmarks.replay") / "own_prompts.toml").read_bytes(), type=_File)
KINDS, NEW_KIND = _FILE.kinds, _FILE.new_kind


def own_prompts(count: int, seed: int, kinds: tuple[Kind, ...] = KINDS) -> Ladder:
    """`count` different prompts, kinds mixed by weight; the same for the same arguments.

    Raises `ValueError` if the templates have not so many.
    """
    rng = random.Random(seed)
    prompts: dict[str, Prompt] = {}
    for _ in range(50 * count):
        if len(prompts) == count:
            return Ladder("own prompts", declared_tiers(MODELS), tuple(prompts.values()))
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
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
