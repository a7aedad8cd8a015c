"""The evidence models that judge answers: loaded at start and when others are promoted, refused for other models."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from classifier.decision import Decision
from classifier.errors import ArtefactError
from classifier.evidence import EvidenceModel, EvidenceModels, load_probes
from classifier.model.answer_length import AnswerLength
from classifier.registry.registry import POINTER, ArtefactRegistry
from gateway.base.requests.inference_request import InferenceRequest
from gateway.base.stores.followed_file import FollowedFile
from gateway.inference.answering.escalation import Escalation, may_escalate
from gateway.inference.routing.knobs import RoutingKnobFile
from gateway.inference.routing.router import RoutingService
from tiers.catalog.catalog import Catalog

log = logging.getLogger(__name__)


SecondSamplePays = Callable[[InferenceRequest, Decision, int, str], bool]


class ActiveProbes:
    """Serves the current version of the registry at `root`; without one nothing is judged.

    A version that cannot be loaded changes nothing, and the log says why. `knobs` are read for each answer that begins.
    `on_lengths` is called with the predictor of answers' lengths, or None. `second_sample_pays`: whether a second
    sample of a tier is worth its price for an answer of some kind; by default none is.
    """

    def __init__(
        self,
        root: Path,
        catalog: Catalog,
        knobs: RoutingKnobFile,
        on_lengths: Callable[[AnswerLength | None], None] = lambda lengths: None,
        second_sample_pays: SecondSamplePays = lambda request, decision, tier, kind: False,
    ) -> None:
        self._registry = ArtefactRegistry(root)
        self._catalog, self._knobs, self._on_lengths = catalog, knobs, on_lengths
        self._second_sample_pays = second_sample_pays
        self._models: dict[int, EvidenceModel] = {}
        self._pointer = FollowedFile(root / POINTER, lambda _: self._load(), "evidence models")

    def escalation(
        self, request: InferenceRequest, decision: Decision, tier: int, routing: RoutingService
    ) -> Escalation | None:
        """What will judge the answer of `tier` to `request`; None where nothing can or may."""
        model = self._models.get(tier)
        knobs = self._knobs.active
        if model is None or not knobs.judge_answers or not may_escalate(request, decision, knobs.hold_tokens):
            return None
        if not routing.above(request, decision, tier):
            return None
        pays = partial(self._second_sample_pays, request, decision, tier)
        return Escalation(model, knobs, request, decision, self._catalog.tier(tier), routing, pays)

    def follow_catalogue(self, catalog: Catalog) -> None:
        """Judge the answers of this catalogue's tiers from now on."""
        self._catalog = catalog

    def load(self) -> None:
        """Load what is current now, if that has changed; never raises."""
        self._pointer.refresh()

    async def follow(self, seconds: float) -> None:
        """Look at the registry's pointer every `seconds` and load what it names when it has changed."""
        await self._pointer.follow_in_thread(seconds)

    def _load(self) -> None:
        self.use(load_probes(self._registry.current()))

    def use(self, found: EvidenceModels) -> None:
        """Activate `found`, as far as it belongs to this catalogue's tiers."""
        models: dict[int, EvidenceModel] = {}
        for tier in found.tiers:
            if tier > len(self._catalog.tiers):
                continue
            try:
                model = found.model(tier, self._catalog.tier_fingerprint(tier))
            except ArtefactError as error:
                log.error("%s", error)
            else:
                if model is not None:
                    models[tier] = model
        self._models = models
        catalog = self._catalog
        self._on_lengths(
            found.lengths_for({spec.number: catalog.tier_fingerprint(spec.number) for spec in catalog.tiers})
        )
        log.info("%s judge the answers of tiers %s", found.version, ", ".join(map(str, models)) or "none")
