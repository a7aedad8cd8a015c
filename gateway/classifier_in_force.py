"""The outcome model in force: loaded at start, replaced in one assignment when another version is promoted."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from classifier.artefact import default_artefact, load_artefact
from classifier.curve import quality_to_lambda, quality_to_tau
from classifier.decision import Prediction
from classifier.errors import ArtefactError
from classifier.outcome_model import OutcomeModel
from classifier.registry import POINTER, ArtefactRegistry
from classifier.routing_input import RoutingInput
from gateway.routing_rule import RoutingRule

log = logging.getLogger(__name__)

MAX_REMEMBERED_RULES = 1024


class ClassifierInForce:
    """Serves the registry's current version, or the one that ships with the package while nothing was promoted.

    A version that cannot be loaded changes nothing: the one before it goes on, and the log says why. Without any, every
    call raises `ArtefactError` and routing falls back on its heuristic. `on_change` is called with each new version.
    """

    def __init__(self, root: Path, catalogue_fingerprint: str, on_change: Callable[[str], None]) -> None:
        self._registry = ArtefactRegistry(root)
        self._fingerprint = catalogue_fingerprint
        self._on_change = on_change
        self._model: OutcomeModel | None = None
        self._problem = "no artefact was loaded yet"
        self._rules: dict[float | None, RoutingRule] = {}
        self._seen: tuple[int, int] | None = None

    @property
    def model(self) -> OutcomeModel:
        """The loaded artefact. Raises `ArtefactError` if there is none."""
        if self._model is None:
            raise ArtefactError(self._problem)
        return self._model

    def predict(self, given: RoutingInput) -> Prediction:
        """P(no worse) of every tier."""
        return self.model.predict(given)

    def rule_for(self, quality_target: float | None) -> RoutingRule:
        """The artefact's default rule at a target, read off its own cost-quality curve; None is its own target."""
        rule = self._rules.get(quality_target)
        if rule is None:
            rule = self._rules[quality_target] = _read_rule(self.model, quality_target)
            if len(self._rules) > MAX_REMEMBERED_RULES:
                self._rules.clear()
        return rule

    def load(self) -> None:
        """Load what is current now; never raises."""
        self._seen = self._pointer_state()
        try:
            folder = self._registry.current() if self._seen else default_artefact()
            model = load_artefact(folder, self._fingerprint)
        except (ArtefactError, OSError) as error:
            self._problem = str(error)
            log.error("the classifier stays %s: %s", self._model.version if self._model else "missing", error)
            return
        self._put_in_force(model)

    async def follow(self, seconds: float) -> None:
        """Look at the registry's pointer every `seconds` and load what it names when it has changed."""
        while True:
            await asyncio.sleep(seconds)
            if self._pointer_state() != self._seen:
                await self._reload()

    async def _reload(self) -> None:
        self._seen = self._pointer_state()
        try:
            model = await asyncio.to_thread(lambda: load_artefact(self._registry.current(), self._fingerprint))
        except (ArtefactError, OSError) as error:
            log.error("the promoted classifier is not used: %s", error)
        else:
            self._put_in_force(model)

    def _put_in_force(self, model: OutcomeModel) -> None:
        """Runs on the event loop, where no routing is under way: a request sees the old version or the new one."""
        if self._model is None or model.version != self._model.version:
            log.info("classifier %s (%s) is in force", model.version, model.kind)
        self._model, self._rules = model, {}
        self._on_change(model.version)

    def _pointer_state(self) -> tuple[int, int] | None:
        try:
            state = (self._registry.root / POINTER).stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_ino


def _read_rule(model: OutcomeModel, quality_target: float | None) -> RoutingRule:
    curves = model.manifest.curves
    target = curves.default_quality_target if quality_target is None else quality_target
    return RoutingRule(
        rule=curves.default_rule,
        quality_target=target,
        lambda_=quality_to_lambda(model, target),
        tau=quality_to_tau(model, target),
    )
