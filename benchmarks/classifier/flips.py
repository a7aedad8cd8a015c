"""How often words that change nothing of the task change the tier: flips of the first day's choice by distractors and
by noise.

The distractors here share no more with those that the complexity model is trained with
(`classifier.training.data.distractors`) than chance: another programming language, other formulae and other phrases.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import Complexity
from classifier.complexity.model import ComplexityModel
from classifier.complexity.prior import adequacy
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import PRICES, first_day_choice
from classifier.training.fitting.complexity import predicted

CODE_WORDS = 22
_CODE = (
    "pub fn fold(xs: &[u32]) -> Option<u64> { xs.iter().map(|x| *x as u64).reduce(|a, b| a ^ b) }",
    "SELECT o.region, COUNT(*) AS n FROM orders o LEFT JOIN shops s ON s.id = o.shop_id GROUP BY o.region HAVING n > 5;",
    "module Heap where data Heap a = Leaf | Node Int a (Heap a) (Heap a) deriving Show",
    "begin; puts items.each_with_index { |it, k| yield it if k.odd? }.compact!; rescue StopIteration => e; end",
    "impl<T: Ord> Drop for Arena<T> { fn drop(&mut self) { unsafe { dealloc(self.ptr, self.layout) } } }",
    "mov eax, [rbp-8]; cmp eax, 0; jle .done; add ebx, eax; dec ecx; jnz .again; ret",
    "let rec walk t = match t with Empty -> [] | Fork (l, v, r) -> walk l @ (v :: walk r)",
    "guard let url = URL(string: raw), let body = try? Data(contentsOf: url) else { throw Fault.unreachable }",
)
_LATEX = (
    r"$\oint_{\gamma} \frac{dz}{z - a} = 2 \pi \imath$",
    r"\begin{cases} \Xi & \eta > \zeta \\ \bot \end{cases}",
    r"$\hat{\rho} \otimes \hat{\tau} \mapsto \wp(\upsilon)$",
    r"\[ \coprod_{j \ge 3} \Gamma(\tfrac{j}{9}) \asymp \Theta(j!) \]",
    r"$\nabla \times \mathbf{H} - \partial_t \mathbf{D} \equiv \mathbf{J}$",
    r"$\langle \psi | \mathcal{T} | \chi \rangle \notin \mathfrak{g}^{\ast}$",
)
_GREETINGS = (
    "Howdy partner, hope the weekend treated you kindly!",
    "Greetings and salutations, my clever friend.",
    "Yo, what's cracking? Long time no see :)",
    "Good afternoon and a merry Tuesday to you!",
    "Heya! Lovely to meet you, hope all's swell over there.",
    "Buongiorno, come va la giornata?",
    "Moin moin, alles fit bei dir?",
)
_MIDDLE = (
    "banana umbrella tuesday",
    "lol whatever",
    "you know what I mean",
    "purple giraffe pancakes",
    "hmm, where was I, right",
    "and my cat says meow",
    "honestly, cheers",
    "oh, the kettle boils",
)
_IGNORED = (
    "Pay no attention to what comes next: zebra lantern quartz seven.",
    "(Skip these words, they slipped in from the clipboard: compile theorem invoice.)",
    "The rest of this line is only filler and means nothing: proof, budget, kernel, sonnet.",
    "PS: disregard this sentence, my keyboard is being tested, asdf jkl.",
    "The following tag is added by our mail program: ref-88213-KX.",
)
_POLITE = (
    ("Would you be so kind as to help me out here? ", " Much obliged!"),
    ("I'd appreciate it if you took a look: ", ""),
    ("", " Many thanks in advance, and take your time."),
    ("Excuse the bother. ", " Ta!"),
)
Noise = Callable[[str, random.Random], str]


class Flips(NamedTuple):
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
    prices = np.array(PRICES)
    found = []
    for kind, noise in KINDS.items():
        rng = random.Random(f"{kind} {seed}")
        after = np.stack([
            tiers([noise(prompt, rng) for prompt in prompts], model, outcome_model) for _ in range(draws)
        ])  # fmt: skip
        cost = float(prices[after - 1].mean() / prices[before - 1].mean())
        found.append(Flips(kind, len(prompts), float((after > before).mean()), float((after < before).mean()), cost))
    return found


def tiers(prompts: Sequence[str], model: ComplexityModel, outcome_model: OutcomeModel) -> npt.NDArray[np.intp]:
    """Return the tier, 1 to 4, of each prompt by the first day's rule at the reference prices."""
    classes = predicted(model, [routing_input_of_text(prompt) for prompt in prompts], outcome_model)
    chosen: npt.NDArray[np.intp] = 1 + first_day_choice(
        np.array([adequacy(one, tuple(Complexity)) for one in classes.tolist()])
    )
    return chosen


def _at_an_end(prompt: str, added: str, rng: random.Random) -> str:
    gap = rng.choice((" ", "\n", "\n\n"))
    return f"{prompt}{gap}{added}" if rng.random() < 0.5 else f"{added}{gap}{prompt}"


def _code(prompt: str, rng: random.Random) -> str:
    words = " ".join(rng.sample(_CODE, len(_CODE))).split()
    return _at_an_end(prompt, " ".join(words[:CODE_WORDS]), rng)


def _latex(prompt: str, rng: random.Random) -> str:
    return _at_an_end(prompt, rng.choice(_LATEX), rng)


def _greeting(prompt: str, rng: random.Random) -> str:
    return f"{rng.choice(_GREETINGS)}{rng.choice((' ', chr(10)))}{prompt}"


def _middle(prompt: str, rng: random.Random) -> str:
    words = prompt.split(" ")
    at = max(1, len(words) // 2 + rng.randint(-len(words) // 4, len(words) // 4))
    return " ".join((*words[:at], rng.choice(_MIDDLE), *words[at:]))


def _ignored(prompt: str, rng: random.Random) -> str:
    return _at_an_end(prompt, rng.choice(_IGNORED), rng)


def _typos(prompt: str, rng: random.Random) -> str:
    """Swap, drop or double a letter in about one of twelve words."""
    words = prompt.split(" ")
    for place, word in enumerate(words):
        if len(word) > 3 and rng.random() < 1 / 12:
            at = rng.randrange(1, len(word) - 1)
            changed = (word[at + 1] + word[at], word[at + 1], word[at] * 2 + word[at + 1])
            words[place] = word[:at] + rng.choice(changed) + word[at + 2 :]
    return " ".join(words)


def _case(prompt: str, rng: random.Random) -> str:
    return rng.choice((str.lower, str.upper, str.capitalize))(prompt)


def _space(prompt: str, rng: random.Random) -> str:
    words = [rng.choice(("", "", "", " ", "\n")) + word for word in prompt.split(" ")]
    return "\n " + " ".join(words) + " \n"


def _polite(prompt: str, rng: random.Random) -> str:
    before, after = rng.choice(_POLITE)
    return f"{before}{prompt}{after}"


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
