"""One loaded version of the classifier with its rules: a decision is made with one of these, and never with two."""

import asyncio
from collections.abc import Sequence

import msgspec

from classifier.answer_length import AnswerLength
from classifier.complexity.classes import Complexity
from classifier.complexity.cold_start import ColdStart, Float, decides_by_class
from classifier.complexity.prior import DEFAULT_TARGET
from classifier.curve import quality_to_lambda, quality_to_tau
from classifier.decision import Prediction
from classifier.encoder import SlowEncoder
from classifier.fallback import fallback_of
from classifier.local.own import OwnOutcomes
from classifier.manifest import NoveltyFallback
from classifier.outcome_model import OutcomeModel
from classifier.recent_memory import RecentOutcomes
from classifier.repair import repaired
from classifier.routing_input import RoutingInput
from gateway.routing.model import Reading
from gateway.routing.rule import RoutingRule

MAX_REMEMBERED_RULES = 1024


class LoadedVersion:
    """A version that serves, or `on_trial` beside it. Immutable but for the rules that it has read off its curve, and
    for `recent`, the verified outcomes since it was trained, `own`, and `lengths` of answers, which are replaced whole.

    While its outcomes are those of other models than the catalogue's, or if it was trained by class, it decides by the
    prompt's complexity class and
    what the catalogue's tiers are `like`, by default as many tiers as the version is for, spread evenly, and by the
    catalogue's `own` labels, if there are any.
    """

    def __init__(self, model: OutcomeModel, *, on_trial: bool = False, like: Sequence[Complexity] = ()) -> None:
        self.model, self.on_trial, self._like = model, on_trial, tuple(like)
        self._cold = ColdStart(model, self._like) if decides_by_class(model) else None
        self._fallback = fallback_of(model.manifest)
        self._slow_encoder = model.encoder if isinstance(model.encoder, SlowEncoder) else None
        self.recent: RecentOutcomes | None = None
        self.own: OwnOutcomes | None = None
        self.lengths: AnswerLength | None = None
        self._rules: dict[float | None, RoutingRule] = {}

    @property
    def version(self) -> str:
        """The artefact's name."""
        return self.model.version

    @property
    def table(self) -> Float | None:
        """[4, tiers - 1]: what it knows of the tiers by class, if it decides by class; else None."""
        return None if self._cold is None else self._cold.table

    @property
    def fits_catalogue(self) -> bool:
        """Whether it is for as many tiers as the catalogue has, without which its outcome heads say nothing of them."""
        return not self._like or len(self._like) == self.model.manifest.tiers

    @property
    def slow(self) -> bool:
        """Whether its encoder takes milliseconds."""
        return self._slow_encoder is not None

    def predict(self, given: RoutingInput) -> Prediction:
        """The prediction of `read`."""
        return self.read(given).prediction

    def read(self, given: RoutingInput) -> Reading:
        """P(no worse) of every tier, lowered where recent verified outcomes contradict it, and the tokens of its answer
        where these can be predicted; with the prompt's embedding."""
        recent, lengths = self.recent, self.lengths
        turn = self.model.encode(given)
        if self._cold is None:
            prediction = self.model.prediction(turn, self.model.memory.look_up_one(turn.embedding))
        else:
            prediction = self._cold.prediction(given, turn, self.own)
        if lengths is not None:
            tokens = lengths.by_tier(turn.features, turn.embedding)
            prediction = msgspec.structs.replace(prediction, predicted_tokens=tokens)
        if recent is not None and self._cold is None and len(recent.centres):
            prediction = repaired(prediction, turn.embedding, recent)
        return Reading(prediction, turn.embedding)

    def use_lengths(self, lengths: AnswerLength | None) -> None:
        """Predict answers' lengths by `lengths`, unless they were fitted on the embeddings of another encoder."""
        self.lengths = lengths if lengths is not None and lengths.encoder == self.model.encoder_hash else None

    async def encode_ahead(self, given: RoutingInput) -> None:
        """Have the prompt encoded while other requests are served."""
        if self._slow_encoder is not None:
            await asyncio.wrap_future(self._slow_encoder.submit(given.turn))

    def for_catalogue(self, fingerprint: str, like: Sequence[Complexity] = ()) -> "LoadedVersion":
        """The same version for the catalogue of this fingerprint, whose tiers are `like`; by default as before."""
        model = self.model.for_catalogue(fingerprint)
        version = LoadedVersion(model, on_trial=self.on_trial, like=like or self._like)
        version.recent, version.own, version.lengths = self.recent, self.own, self.lengths
        return version

    def rule_for(self, quality_target: float | None) -> RoutingRule:
        """The artefact's default rule at a target, read off its own cost-quality curve; None is its own target.

        By class it is the cheapest tier whose answer is good enough with at least that probability.
        """
        rule = self._rules.get(quality_target)
        if rule is None:
            if len(self._rules) >= MAX_REMEMBERED_RULES:
                self._rules.clear()
            read = _read_rule if self._cold is None else _class_rule
            rule = self._rules[quality_target] = read(self.model, quality_target)
        return rule

    def fallback(self) -> NoveltyFallback | None:
        """The artefact's own fallback for novel prompts; None while it decides by class, where nothing is novel."""
        return self._fallback if self._cold is None else None


def _class_rule(model: OutcomeModel, quality_target: float | None) -> RoutingRule:
    target = DEFAULT_TARGET if quality_target is None else quality_target
    return RoutingRule(rule="tau", quality_target=target, lambda_=quality_to_lambda(model, target), tau=target)


def _read_rule(model: OutcomeModel, quality_target: float | None) -> RoutingRule:
    curves = model.manifest.curves
    target = curves.default_quality_target if quality_target is None else quality_target
    return RoutingRule(
        rule=curves.default_rule,
        quality_target=target,
        lambda_=quality_to_lambda(model, target),
        tau=quality_to_tau(model, target),
    )
