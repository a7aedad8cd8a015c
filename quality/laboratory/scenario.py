"""What happens in a run of the laboratory, as read from the file of scenarios and definitions of truth."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec


class ScenarioError(ValueError):
    """The file of scenarios cannot be read, or does not hold what was asked for."""


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all scenarios share. `models` and `prices` by tier; prices in units of tier 1's, per answer.

    `lambda_ref`: what the strongest tier's price is worth in quality, in the yardstick. Rates and budget as shares.
    """

    models: list[str]
    prices: list[float]
    metrics: list[str]
    lambda_ref: float
    warm_up_requests: int
    sample_rate: float
    verification_budget: float
    requests_per_day: int


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scenario; the shift comes after the warm-up, `judge_error` is there from the start.

    `domains` with a `share` are absent from the warm-up and the shipped artefact and then have that share of traffic;
    with `from_share` and `to_share` they are known, and their share grows from the one to the other. `tier` answers
    wrongly a share `flip_correct_to_wrong` of what it got right.
    """

    requests: int
    name: str = ""
    domains: list[str] = []
    share: float | None = None
    from_share: float | None = None
    to_share: float | None = None
    tier: int | None = None
    flip_correct_to_wrong: float = 0.0
    prices_after: list[float] | None = None
    judge_error: float = 0.0

    @property
    def held_out(self) -> list[str]:
        """Domains that the shipped artefact has not seen."""
        return self.domains if self.share is not None else []

    @property
    def shifts(self) -> bool:
        """Whether anything changes at all after the warm-up."""
        return bool(self.domains or self.flip_correct_to_wrong or self.prices_after)

    def share_at(self, requests_since: int) -> float:
        """The share of the traffic that `domains` have; `requests_since` the shift, negative before it."""
        if self.share is not None:
            return self.share if requests_since >= 0 else 0.0
        if self.from_share is not None and self.to_share is not None:
            grown = min(max(requests_since / self.requests, 0.0), 1.0)
            return self.from_share + grown * (self.to_share - self.from_share)
        return 0.0


class Scenarios(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    common: Common
    scenario: dict[str, Scenario]

    def named(self, name: str) -> Scenario:
        """One of them. Raises `ScenarioError`."""
        if name not in self.scenario:
            raise ScenarioError(f"there is no scenario {name!r}; there are {', '.join(self.scenario)}.")
        return msgspec.structs.replace(self.scenario[name], name=name)


def read_scenarios(path: Path) -> Scenarios:
    """Read the file. Raises `ScenarioError`."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(content, Scenarios)
    except FileNotFoundError as error:
        raise ScenarioError(f"{path} does not exist; give the file of scenarios with --scenarios.") from error
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from error
