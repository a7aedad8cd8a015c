"""Many lives of each fold without a gateway: what one run of a replay says, and what is luck of its labels.

Prompts are routed by the labels so far, verified as a replay's gateway verifies them, judged with errors and learned by
the gateway's own estimator. The same life makes the same choices at every commit that decides alike.
"""

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.replay.baselines import mixing, shuffled
from benchmarks.replay.figures import Float, chosen, gain
from benchmarks.replay.ladder import Ladder, Prompt, tokens_of, uniform
from benchmarks.replay.timeline import Plan
from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import adequacies, like_of
from classifier.complexity.model import shipped_complexity, standardised
from classifier.features.routing_input import routing_input
from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.policy.utility import DEFAULT_EXCHANGE, ENOUGH, utility
from classifier.registry.artefact import default_artefact, load_artefact
from quality.verification.sampling import doubt, sampling_of
from quality.verification.training_rows import without_errors

Rows = npt.NDArray[np.intp]

# The weaker tiers that are judged where a tier served.
_JUDGED = {1: [1], 2: [2], 3: [2, 3], 4: [3]}
# Of prompts that are new to the labels by half.
_NOVELTY = 0.5


class Gains(msgspec.Struct, frozen=True, kw_only=True):
    """Points of utility over the best lottery at equal cost, of all folds together in each life, and of each fold alone
    in each; over the choices shuffled; and a digest of all choices."""

    together: Float
    alone: Float
    over_shuffled: Float
    choices: str


def gains(plans: Sequence[Plan], lives: int, noise: float) -> Gains:
    """Live `lives` times with every plan; of one ladder, so that each of its prompts is held out once."""
    digest = hashlib.blake2b(digest_size=8)
    together, alone, over_shuffled = [], [], []
    ladder = plans[0].traffic.of([*plans[0].traffic.prompts, *plans[0].held.prompts])
    encoded = _Encoded(ladder)
    held = ladder.of([prompt for plan in plans for prompt in plan.held.prompts])
    for life in range(lives):
        served = [chosen(_Life(encoded, plan, life, noise).tiers(), len(ladder.tiers)) for plan in plans]
        digest.update(np.vstack(served).astype(np.int8).tobytes())
        alone += [
            _points(plan.held, choices, mixing(plan.held, choices)) for plan, choices in zip(plans, served, strict=True)
        ]
        ours = np.vstack(served)
        together.append(_points(held, ours, mixing(held, ours)))
        over_shuffled.append(_points(held, ours, shuffled(ours)))
    return Gains(
        together=np.array(together),
        alone=np.array(alone),
        over_shuffled=np.array(over_shuffled),
        choices=digest.hexdigest(),
    )


def _points(ladder: Ladder, ours: Float, theirs: Float) -> float:
    return 100 * gain(ladder, ours, theirs).value


class _Encoded:
    """A ladder's prompts as the classifier sees them, and what each tier's answer is expected to cost."""

    def __init__(self, ladder: Ladder) -> None:
        prompts = ladder.prompts
        self.ladder, self.places = ladder, {prompt.prompt_id: index for index, prompt in enumerate(prompts)}
        model, shipped = load_artefact(default_artefact()), shipped_complexity()
        inputs = [routing_input([{"role": "user", "content": prompt.text}]) for prompt in prompts]
        turns = [model.encode(prompt_input) for prompt_input in inputs]
        predictor = ClassPredictor(model)
        read = list(zip(inputs, turns, strict=True))
        requests = [predictor.classes(*pair) for pair in read]
        whole = [predictor.whole_classes(*pair) or request for pair, request in zip(read, requests, strict=True)]
        self.classes, self.whole = np.array(requests, np.float32), np.array(whole, np.float32)
        self.embedding = np.stack([turn.embedding for turn in turns]).astype(np.float32)
        self.surface = standardised(np.stack([turn.features for turn in turns]), shipped.centre, shipped.scale)
        price = np.array([terms.price for terms in ladder.tiers]) / 1e6
        answer = np.array([[answer.tokens for answer in prompt.answers] for prompt in prompts]).mean(axis=0)
        self.expected = (np.array([tokens_of(prompt.text) for prompt in prompts])[:, None] + answer) * price
        self.reference = float(self.expected[:, -1].mean())

    def rows(self, prompts: Sequence[Prompt]) -> Rows:
        """Where they are."""
        return np.array([self.places[prompt.prompt_id] for prompt in prompts], np.intp)


class _Life:
    """Life 0 asks in the plan's order, others in orders of their own."""

    def __init__(self, encoded: _Encoded, plan: Plan, life: int, noise: float) -> None:
        self._known, self._plan, self._life, self._noise = encoded, plan, life, noise
        self._table = adequacies(like_of(len(encoded.ladder.tiers)))[:, :-1].astype(np.float32)
        # All may be verified, as in a replay.
        self._sampling = sampling_of(len(encoded.ladder.tiers), 1.0, 1000.0)
        self._rows: list[int] = []
        self._said: list[list[float]] = []
        self._estimator: LocalEstimator | None = None

    def tiers(self) -> Rows:
        """Ask until there are enough labels, and return the tiers, from 1 on, of the prompts that are held out."""
        encoded, plan = self._known, self._plan
        asked = list(plan.traffic.prompts)
        if self._life:
            asked.sort(key=lambda prompt: uniform("order", self._life, prompt.prompt_id))
        for start in range(0, len(asked), plan.batch):
            batch = asked[start : start + plan.batch]
            for prompt, tier, p in zip(batch, *self._routed(encoded.rows(batch)), strict=True):
                self._verify(prompt, int(tier), p)
            self._estimator = self._fitted() if self._rows else None
            if np.isfinite(self._said).sum() >= plan.labels:
                break
        return self._routed(encoded.rows(plan.held.prompts))[0]

    def _routed(self, rows: Rows) -> tuple[Rows, npt.NDArray[np.floating]]:
        """The tiers, from 1 on, and P(no worse) [n, tiers]."""
        encoded, classes = self._known, self._known.classes[rows]
        if self._estimator is None:
            scores = classes @ self._table
        else:
            scores = self._estimator.score(
                classes, encoded.embedding[rows], encoded.surface[rows], 0, -1, whole=encoded.whole[rows]
            )
        p = np.hstack([np.clip(scores, 0, 1), np.ones((len(rows), 1))])
        counted = p if self._estimator else np.where(p >= ENOUGH, 1.0, p)
        return utility(counted, encoded.expected[rows], encoded.reference, DEFAULT_EXCHANGE).argmax(axis=1) + 1, p

    def _verify(self, prompt: Prompt, tier: int, p: npt.NDArray[np.floating]) -> None:
        of = self._life, prompt.prompt_id
        rate, least = self._sampling.rate(tier), self._sampling.least_attention
        attention = least + (1 - least) * doubt(float(p[min(tier, 3) - 1]), _NOVELTY)
        if rate < 1 and uniform("drawn", *of) >= rate * attention:
            return
        said = [
            float(prompt.no_worse(number) ^ (uniform("noise", *of, number) < self._noise))
            if number in _JUDGED[tier]
            else np.nan
            for number in range(1, len(self._known.ladder.tiers))
        ]
        self._rows.append(self._known.places[prompt.prompt_id])
        self._said.append(said)

    def _fitted(self) -> LocalEstimator:
        encoded, rows, n = self._known, self._rows, len(self._rows)
        said, informed = np.array(self._said, np.float32), 1 - 2 * self._noise
        labels = Labels(
            classes=encoded.classes[rows],
            whole=encoded.whole[rows],
            embedding=encoded.embedding[rows],
            surface=encoded.surface[rows],
            scores=without_errors(said, np.full_like(said, informed)),
            weights=np.where(np.isnan(said), 0.0, informed**2).astype(np.float32),
            key=np.zeros(n, np.int32),
            context=np.full(n, -1, np.int32),
            tenant=np.full(n, -1, np.int32),
            private=np.zeros(n, np.bool_),
        )
        return LocalEstimator(labels, self._table)
