"""Live evidence on a version against the one it replaces: on probes newer than both, and on served answers."""

import asyncio

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.errors import ArtefactError
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.requests import routing_decisions
from quality.comparison import live_arms
from quality.comparison.decision_gain import Serving
from quality.comparison.live_arms import LiveComparison
from quality.comparison.paired_outcomes import Paired, choice_of, compare, ladder_outcomes_since

Files = frozenset[tuple[str, int, int]]


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`share`: of the requests for a canary, 0: promote at once. Levels are error probabilities that hold under
    continuous monitoring: `stop_level` of ending the trial of a harmless version, `rollback_level` of rolling back a
    promoted version that does no harm, `promote_level` of finding a loss of `margin` in utility harmless.
    `live_margin`: the allowed rise of a canary's share of worse answers. `patience` and `watch_probes` count probes
    since the start; a canary that no evidence has decided ends after `days`. Without `promotes` a canary waits
    for an operator. `prior` [4][tiers]: P(good enough) of the
    catalogue's tiers by class, for a version that learned nothing about them; empty: evenly spread tiers. `serving`:
    the target and the prices by which utility counts, as in `served_as`. Raises `ValueError`."""

    share: float = 0.1
    stop_level: float = 0.05
    rollback_level: float = 0.01
    promote_level: float = 0.05
    margin: float = 0.01
    live_margin: float = 0.05
    patience: int = 100
    watch_probes: int = 500
    days: float = 28.0
    promotes: bool = True
    prior: list[list[float]] = []
    serving: Serving | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"share is {self.share}; it must be at least 0 and below 1")
        for name in ("stop_level", "rollback_level", "promote_level", "margin", "live_margin"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if not self.days > 0.0:
            raise ValueError(f"days is {self.days}; it must be above 0")
        for name in ("patience", "watch_probes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """`paired`: on probes; `live`: on served answers. `broken`: why the version cannot serve at all; `problem`: why the
    two cannot be compared."""

    paired: Paired = Paired()
    live: LiveComparison = LiveComparison()
    broken: str | None = None
    problem: str | None = None


class RolloutEvidence:
    """Reads the database on every call, so that all replicas see the same; caches two models."""

    def __init__(self, engine: AsyncEngine, registry: ArtefactRegistry) -> None:
        self._engine, self._registry = engine, registry
        self._loaded: dict[str, tuple[Files, OutcomeModel]] = {}

    async def of(self, version: str, incumbent: str, since: float, settings: RolloutSettings) -> Evidence:
        """Return the evidence from everything stored after `since` (epoch seconds)."""
        self._loaded = {name: loaded for name, loaded in self._loaded.items() if name in (version, incumbent)}
        try:
            new = await asyncio.to_thread(self._model, version)
        except (ArtefactError, OSError) as error:
            return Evidence(broken=str(error))
        try:
            old = await asyncio.to_thread(self._model, incumbent)
        except (ArtefactError, OSError) as error:
            return Evidence(problem=str(error))
        arm = routing_decisions.c.classifier_version
        among = [arm.in_((version, incumbent)), routing_decisions.c.experiment_id.is_(None)]
        tiers = len(settings.prior[0]) if settings.prior else new.manifest.tiers
        served = await live_arms.served_answers(self._engine, since, tiers, arm, among)
        live = live_arms.compare(served, version, margin=settings.live_margin)
        probes = await ladder_outcomes_since(self._engine, since, tiers)
        prior, serving = settings.prior, settings.serving
        ours, theirs = (choice_of(model, tiers, prior, serving) for model in (new, old))
        paired = await asyncio.to_thread(compare, probes, ours, theirs, margin=settings.margin, serving=serving)
        return Evidence(paired=paired, live=live)

    def _model(self, version: str) -> OutcomeModel:
        """Load the version with every check that a server makes, again whenever a file has changed."""
        folder = self._registry.folder(version)
        files = frozenset((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
        if version not in self._loaded or self._loaded[version][0] != files:
            self._loaded[version] = files, accepted_artefact(folder)
        return self._loaded[version][1]
