"""Where all models run on one's own machines a cold start is bounded by their time; elsewhere by dollars."""

import msgspec
import pytest

from gateway.base.settings import Settings
from gateway.operations.labels.label_sources import MACHINE_SHARE, budget_text, cold_start_cap, judging_cap
from gateway.operations.labels.loop_setup import monitor_settings, sampling_settings
from tests.gateway.operations.running_loop import running_loop
from tests.gateway.operations.test_labels_of_open_answers import BILLED, LAPTOP
from tests.tiers.tier_world import remote_spec
from tiers.catalog.catalog import Catalog
from tiers.engines import EngineSpec

ENGINE = msgspec.structs.replace(
    LAPTOP, tiers=[*LAPTOP.tiers[:-1], remote_spec(engine=EngineSpec(kind="llama-server", model="model.gguf"))]
)
NEAR = msgspec.structs.replace(
    LAPTOP, tiers=[*LAPTOP.tiers[:-1], msgspec.structs.replace(remote_spec("http://10.0.0.1:9/v1"), local=True)]
)


@pytest.mark.parametrize(
    ("catalog", "usd"),
    [(LAPTOP, 20.0), (ENGINE, 20.0), (NEAR, 1.0), (BILLED, 1.0)],
    ids=["cores", "an engine", "a server of one's own", "a server elsewhere"],
)
def test_the_dollars_of_a_cold_start_bound_what_is_on_a_bill(catalog: Catalog, usd: float) -> None:
    settings = Settings(cold_start_usd=1.0, verification_most_usd=20.0)

    assert cold_start_cap(settings, catalog) == usd
    assert judging_cap(settings, catalog) == usd / 2
    assert sampling_settings(settings, catalog).cold_start_usd == usd
    assert sampling_settings(settings, catalog).most_usd == 20.0


def test_idle_time_is_filled_with_probes_of_several_requests_at_a_time() -> None:
    settings = Settings(cold_start_usd=1.0)
    found = [monitor_settings(settings, catalog) for catalog in (LAPTOP, BILLED)]
    switched_off = monitor_settings(Settings(cold_start_usd=0.0), LAPTOP)

    assert [(one.parallel, one.sampling.first_probes) for one in (*found, switched_off)] == [(8, 100), (2, 30), (2, 30)]


@pytest.mark.parametrize("catalog", [LAPTOP, BILLED])
def test_no_dollars_switch_a_cold_start_off_everywhere(catalog: Catalog) -> None:
    sampling = sampling_settings(Settings(cold_start_usd=0.0), catalog)

    assert (sampling.cold_start_usd, sampling.cold_start_rate) == (0.0, 0.0)


def test_the_start_says_which_bound_holds_and_the_share_of_the_machine() -> None:
    settings = Settings(cold_start_usd=1.0, verification_most_usd=20.0)

    assert "and $1 beyond" in budget_text(settings, BILLED)
    assert "idle time of this machine" in budget_text(settings, LAPTOP)
    for catalog in (BILLED, LAPTOP):
        assert f"at most {MACHINE_SHARE:.0%} of the time, and stops for a request" in budget_text(settings, catalog)
        assert "never more than $20 a day" in budget_text(settings, catalog)


async def test_a_reload_to_servers_elsewhere_ends_the_free_time(settings: Settings) -> None:
    given = msgspec.structs.replace(settings, cold_start_usd=1.0, verification_most_usd=20.0)
    async with running_loop(given, catalog=LAPTOP) as (loop, monitor, _):
        before = (await monitor.status()).budget_usd
        loop.catalog.switch_to(BILLED)
        after = (await monitor.status()).budget_usd

    assert (before, after) == (20.0, 1.0)
    assert monitor._queue.sampling.cold_start_usd == 1.0
    assert monitor._families.first == 30
