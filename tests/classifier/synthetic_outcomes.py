"""Generated prompts with known outcome probabilities: hard words make the cheap tiers fail."""

import numpy as np

from classifier.training.data.dataset import TIER_MODELS, OutcomeRow

EASY = ["sky", "water", "house", "dog", "red", "tree", "table", "city", "river", "bread", "milk", "chair"]
HARD = ["manifold", "tensor", "cohomology", "lattice", "adjoint", "functor", "measure", "spectral", "holonomy"]
DOMAINS = ("alpha", "beta", "gamma", "delta")


def generated_rows(n: int, *, signal: bool = True, seed: int = 0) -> list[OutcomeRow]:
    """`n` rows, two thirds with all four tiers; without `signal` the outcomes do not depend on the prompt."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        hard = rng.random() < 0.5
        words = rng.choice(HARD if hard else EASY, size=8)
        prompt = f"What is the {' '.join(words)} of case {i}?"
        difficulty = float(hard) if signal else 0.5
        right = {
            k: float(rng.random() < p)
            for k, p in enumerate((0.95 - 0.75 * difficulty, 0.9 - 0.4 * difficulty, 0.9 - 0.2 * difficulty, 0.95))
        }
        full = i % 3 != 0
        models = TIER_MODELS["llmrouter" if full else "routellm"]
        rows.append(
            OutcomeRow(
                id=f"row-{i}",
                source="llmrouter" if full else "routellm_made",
                domain=DOMAINS[i % len(DOMAINS)],
                metric="mc",
                split=("train", "train", "train", "valid", "test")[i % 5],
                prompt=prompt,
                outcomes={m: right[k] for k, m in enumerate(models) if m is not None},
            )
        )
    return rows
