"""The served catalogue: what a model name means, and that a reload leaves the value of a running answer as it is."""

from dataclasses import FrozenInstanceError
from typing import Any

import msgspec
import pytest

from gateway.base.errors import ApiError
from gateway.inference.served_catalogue import AUTO, ServedCatalogue
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import cost_usd
from tiers.tier import Usage

CATALOG = load_catalog("laptop")
SERVED = ServedCatalogue(CATALOG, {})


def test_every_name_that_it_lists_means_the_cheapest_tier_that_bears_it() -> None:
    assert SERVED.names[0] == AUTO
    assert SERVED.pinned_tier(AUTO) is None
    for name in SERVED.names[1:]:
        bearing = [s.number for s in CATALOG.tiers if name in (f"tier-{s.number}", s.name, s.served_name)]
        bearing = bearing or [s.number for s in CATALOG.tiers if name == s.model_name]
        assert SERVED.pinned_tier(name) == bearing[0]


def test_a_tiers_own_name_comes_before_another_tiers_model() -> None:
    second = msgspec.structs.replace(CATALOG.tiers[1], name=CATALOG.tiers[0].model_name)
    served = ServedCatalogue(msgspec.structs.replace(CATALOG, tiers=[CATALOG.tiers[0], second]), {})
    # The first tier is served by that name, too, and is the cheaper one.
    assert served.pinned_tier(second.name) == 1
    bound = msgspec.structs.replace(CATALOG.tiers[0], adapter="sql")
    served = ServedCatalogue(msgspec.structs.replace(CATALOG, tiers=[bound, second]), {})
    assert served.pinned_tier(second.name) == 2


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ApiError, match="tier-1") as refused:
        SERVED.pinned_tier("gpt-9")
    assert refused.value.status == 404


def test_a_number_beyond_the_catalogue_is_priced_as_the_strongest() -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=1000)
    assert SERVED.price(9, usage) == cost_usd(CATALOG.tiers[-1], usage) > SERVED.price(1, usage)


def test_nothing_of_it_changes_once_it_is_made() -> None:
    tiers: dict[int, Any] = {1: ScriptedTier(1)}
    served = ServedCatalogue(CATALOG, tiers)
    tiers.clear()
    assert served.tier(1).number == 1
    with pytest.raises(FrozenInstanceError):
        served.catalog = CATALOG  # type: ignore[misc]
    with pytest.raises(TypeError):
        served.tiers[2] = served.tier(1)  # type: ignore[index]
