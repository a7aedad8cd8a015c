"""Keeps what the versions that serve know of verified outcomes, so that these take effect at once."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.recent_memory import Neighbourhood, RecentSettings
from gateway.routing.classifier_in_force import ClassifierInForce
from gateway.routing.loaded_version import LoadedVersion
from gateway.telemetry.metrics import Metrics
from quality.own_labels import OwnLabels
from quality.recent_experience import RecentExperience

log = logging.getLogger(__name__)


class RecentInForce:
    """Each version that serves has the outcomes that it was not trained on: one that decides by class has the own$
    labels of its catalogue, another has the recent ones that repair it.

    All come from the database, so that replicas repair alike; while it is away, what was known last stays.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        classifier: ClassifierInForce,
        metrics: Metrics,
        settings: RecentSettings | None = None,
        tiers: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`tiers`: fingerprints of the catalogue's tiers as it is now."""
        self._engine, self._classifier, self._metrics = engine, classifier, metrics
        self._settings, self._tiers = settings, tiers
        self._experience: dict[LoadedVersion, RecentExperience] = {}
        self._labels: dict[LoadedVersion, OwnLabels] = {}
        self._turn = asyncio.Lock()

    async def follow(self, seconds: float) -> None:
        """Take in what is new every `seconds`, at first at once."""
        failure = ""
        while True:
            try:
                await self.catch_up(time.time())
                failure = ""
            except (SQLAlchemyError, OSError) as error:
                if str(error) != failure:
                    failure = str(error)
                    log.warning("recent outcomes cannot be read: %s", error)
            await asyncio.sleep(seconds)

    async def catch_up(self, now: float) -> None:
        """Take in what is stored at `now`, in epoch seconds."""
        async with self._turn:
            serving = self._classifier.serving_or_none
            if serving is None:
                return
            self._experience = {
                version: self._experience.get(version) or RecentExperience(self._engine, version.model, self._settings)
                for version in serving.versions
                if version.table is None
            }
            self._labels = {
                version: self._labels.get(version) or OwnLabels(self._engine, version.model, version.table, self._tiers)
                for version in serving.versions
                if version.table is not None
            }
            for version, labels in self._labels.items():
                version.own = await labels.catch_up(now)
            for version, experience in self._experience.items():
                version.recent = await experience.catch_up(now)
            self._metrics.promotions_in_force.set(len(self.neighbourhoods()))

    def neighbourhoods(self) -> list[tuple[LoadedVersion, Neighbourhood]]:
        """What is in force, with the version whose predictions it lowers."""
        return [
            (version, one)
            for version in self._experience
            if version.recent is not None
            for one in version.recent.neighbourhoods()
        ]

    @property
    def outcomes(self) -> dict[str, int]:
        """By version, how many recent outcomes are remembered."""
        return {version.version: len(version.recent) for version in self._experience if version.recent is not None}
