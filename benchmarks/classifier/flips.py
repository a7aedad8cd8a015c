"""How often words that change nothing of the task change the tier: flips of the first day's choice by distractors and
by noise.

The words are in noise.toml.
"""

import random
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.report.measurement import read_prompts
from classifier.complexity.model import ComplexityModel, load_complexity, shipped_complexity
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import PRICES
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.fitting.complexity import predicted
from classifier.training.metrics.complexity_report import Tiers, first_day_tiers
from gateway.operations.cli.options import FILE

CODE_WORDS = 22
_WORDS: dict[str, list[str]] = msgspec.toml.decode((files("benchmarks.classifier") / "noise.toml").read_bytes())
# Letters next to each other on a keyboard.
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
Noise = Callable[[str, random.Random], str]


# Prompts of each kind of noise that are counted together with the paraphrases.
NOISY = 90


class Flips(msgspec.Struct, frozen=True):
    """Of `rows` prompts after one kind of noise: the shares that go `up` and `down`, and the mean price relative to
    that of the same prompts without it."""

    kind: str
    rows: int
    up: float
    down: float
    cost: float


def flips(
    prompts: Sequence[str], model: ComplexityModel, outcome_model: OutcomeModel, *, draws: int = 2, seed: int = 0
) -> list[Flips]:
    """Return the flips of `prompts` by each kind of noise, over `draws` random ones of each."""
    before = tiers(prompts, model, outcome_model)
    found = []
    for kind, noise in KINDS.items():
        rng = random.Random(f"{kind} {seed}")
        after = [tiers([noise(prompt, rng) for prompt in prompts], model, outcome_model) for _ in range(draws)]
        found.append(_counted(kind, before, np.stack(after)))
    return found


def flips_by_noise(
    prompts: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    model: ComplexityModel,
    outcome_model: OutcomeModel,
    *,
    seed: int = 0,
) -> list[Flips]:
    """Return the flips of `pairs`, (prompt, the same in other words), and of them and `NOISY` of the `prompts`, drawn
    with each of typing errors, case, white space and politeness, all together."""
    rng = random.Random(f"noise {seed}")
    noisy = [(prompt, KINDS[kind](prompt, rng)) for kind in NOISES for prompt in _some(prompts, rng)]
    found = []
    for kind, given in (("other words", pairs), ("noise and other words", [*noisy, *pairs])):
        before, after = (tiers(texts, model, outcome_model) for texts in zip(*given, strict=True))
        found.append(_counted(kind, before, after))
    return found


def _some(prompts: Sequence[str], rng: random.Random) -> list[str]:
    return rng.sample(prompts, min(NOISY, len(prompts)))


def _counted(kind: str, before: Tiers, after: Tiers) -> Flips:
    """The flips from `before` [n] to `after` [n], or [draws, n]."""
    prices = np.array(PRICES)
    cost = float(prices[after - 1].mean() / prices[before - 1].mean())
    return Flips(kind, len(before), float((after > before).mean()), float((after < before).mean()), cost)


def tiers(prompts: Sequence[str], model: ComplexityModel, outcome_model: OutcomeModel) -> Tiers:
    """Return the tier, 1 to 4, of each prompt by the first day's rule at the reference prices."""
    return first_day_tiers(predicted(model, [routing_input_of_text(prompt) for prompt in prompts], outcome_model))


def _at_an_end(prompt: str, added: str, rng: random.Random) -> str:
    gap = rng.choice((" ", "\n", "\n\n"))
    return f"{prompt}{gap}{added}" if rng.random() < 0.5 else f"{added}{gap}{prompt}"


def _code(prompt: str, rng: random.Random) -> str:
    words = " ".join(rng.sample(_WORDS["code"], len(_WORDS["code"]))).split()
    return _at_an_end(prompt, " ".join(words[:CODE_WORDS]), rng)


def _latex(prompt: str, rng: random.Random) -> str:
    return _at_an_end(prompt, rng.choice(_WORDS["latex"]), rng)


def _greeting(prompt: str, rng: random.Random) -> str:
    return f"{rng.choice(_WORDS['greetings'])}{rng.choice((' ', chr(10)))}{prompt}"


def _middle(prompt: str, rng: random.Random) -> str:
    words = prompt.split(" ")
    at = max(1, len(words) // 2 + rng.randint(-len(words) // 4, len(words) // 4))
    return " ".join((*words[:at], rng.choice(_WORDS["middle"]), *words[at:]))


def _ignored(prompt: str, rng: random.Random) -> str:
    return _at_an_end(prompt, rng.choice(_WORDS["ignored"]), rng)


def _typos(prompt: str, rng: random.Random) -> str:
    """Swap, drop or double a letter in about one of twelve words, or hit the key next to it."""
    words = prompt.split(" ")
    for place, word in enumerate(words):
        if len(word) > 3 and rng.random() < 1 / 12:
            at = rng.randrange(1, len(word) - 1)
            letter, following = word[at], word[at + 1]
            changed = (following + letter, following, letter * 2 + following, _next_key(letter) + following)
            words[place] = word[:at] + rng.choice(changed) + word[at + 2 :]
    return " ".join(words)


def _next_key(letter: str) -> str:
    row = next((row for row in _KEYS if letter in row), letter)
    return row[(row.index(letter) + 1) % len(row)]


def _case(prompt: str, rng: random.Random) -> str:
    return rng.choice((str.lower, str.upper, str.capitalize, str.title))(prompt)


def _space(prompt: str, rng: random.Random) -> str:
    words = [rng.choice(("", "", "", " ", "\n")) + word for word in prompt.split(" ")]
    return "\n " + " ".join(words) + " \n"


def _polite(prompt: str, rng: random.Random) -> str:
    place = rng.randrange(3)
    before = rng.choice(_WORDS["polite_before"]) if place != 1 else ""
    return f"{before}{prompt}{rng.choice(_WORDS['polite_after']) if place else ''}"


KINDS: dict[str, Noise] = {
    "code words": _code,
    "LaTeX": _latex,
    "a greeting": _greeting,
    "words in the middle": _middle,
    "words to be ignored": _ignored,
    "typos": _typos,
    "case": _case,
    "white space": _space,
    "politeness": _polite,
}
NOISES = ("typos", "case", "white space", "politeness")


_Pairs = dict[str, list[tuple[str, str]]]


@click.command()
@click.argument("rows", type=FILE)
@click.option("--model", "model_file", type=FILE, help="Complexity model to measure.  [the packaged one]")
@click.option(
    "--paraphrases",
    type=FILE,
    help="TOML of lists of [prompt, the same in other words]: flips by them, and by them and noise together.",
)
@click.option("--draws", type=click.IntRange(min=1), default=2, help="Of each kind, for a prompt.")
@click.option("--seed", default=0)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def flips_command(
    rows: Path, model_file: Path | None, paraphrases: Path | None, draws: int, seed: int, as_json: bool
) -> None:
    """Flips of the tier of the prompts in ROWS (JSON lines with a "prompt") by distractors and noise; and the mean
    price after them, relative to the price before."""
    prompts = read_prompts(rows)
    model = shipped_complexity() if model_file is None else load_complexity(model_file)
    outcome_model = load_artefact(default_artefact())
    found = flips(prompts, model, outcome_model, draws=draws, seed=seed)
    if paraphrases is not None:
        pairs = [pair for part in msgspec.toml.decode(paraphrases.read_bytes(), type=_Pairs).values() for pair in part]
        found += flips_by_noise(prompts, pairs, model, outcome_model, seed=seed)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    click.echo(f"{len(prompts)} prompts, {draws} draws of each kind\n{'':<22}{'up':>7}{'down':>7}{'price':>7}")
    for one in found:
        click.echo(f"{one.kind:<22}{one.up:>7.1%}{one.down:>7.1%}{one.cost:>7.2f}")
