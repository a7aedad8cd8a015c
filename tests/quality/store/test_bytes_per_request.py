"""A request without texts takes at most a thousand bytes of SQLite's file, indexes included."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec

from classifier.decision import PolicyInputs, Prediction
from classifier.policy.decide import decide
from quality.records.record import Attempt, Record, Timings
from quality.store.database import migrate, open_database
from quality.store.queries import insert_records
from tests.quality.store.records import make_record
from tiers.catalog.tier_spec import Price

REQUESTS = 2000
MOST_BYTES = 1000


def part_bytes(database: Path) -> Counter[str]:
    """Return the bytes of the pages of every table and index in a SQLite file."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return Counter(dict(connection.execute("SELECT name, SUM(pgsize) FROM dbstat GROUP BY name")))


def routed(number: int, random: Random) -> Record:
    """A request with figures of its own wherever requests differ."""
    p_ok = sorted(round(random.random(), 6) for _ in range(3))
    classes = [round(random.random(), 4) for _ in range(4)]
    prediction = Prediction(
        p_ok=[*p_ok, 1.0], kind="prior", novelty=1.0, classifier_version="v1-fd9b9ace3924", classes=classes
    )
    usd = random.randrange(100, 3000) / 1e6
    costs = [usd, 2 * usd, 3 * usd, 4 * usd]
    inputs = PolicyInputs(
        prediction=prediction, costs=costs, quality_target=0.7, tau=0.7, objective="utility",
        reference_usd=random.random() / 100, predicted_waits=[0.0] * 4,
    )  # fmt: skip
    decision = decide(inputs)
    tokens, cost = random.randrange(20, 200), costs[decision.tier - 1]
    attempt = Attempt(
        tier=decision.tier, model="mock", status="ok", cost_usd=cost, max_tokens=256, prompt_tokens=tokens,
        completion_tokens=38, price=Price(input_usd_per_million=3.0, output_usd_per_million=3.0),
    )  # fmt: skip
    times = Timings(route_ms=random.random(), ttft_ms=None, e2e_ms=60 * random.random(), overhead_ms=random.random())
    made = make_record(
        f"chatcmpl-{number:08x}{random.getrandbits(96):024x}", created_at=1.7e9 + number + random.random(),
        key_id=f"key_{random.randrange(4):016x}", model="mock", tier=decision.tier, attempts=[attempt],
        prompt_tokens=tokens, cost_usd=cost, baseline_cost_usd=costs[-1], timings=times,
        replica="replica_09bcf1ebd5408b2a",
    )  # fmt: skip
    return msgspec.structs.replace(made, decision=decision, messages=None, answer=None, reasoning=None)


async def test_a_request_without_texts_takes_at_most_a_thousand_bytes(tmp_path: Path) -> None:
    file, random = tmp_path / "aio.sqlite3", Random(5)
    url = f"sqlite:///{file}"
    await migrate(url)
    before, engine = part_bytes(file), open_database(url)
    async with engine.begin() as connection:
        await insert_records(connection, [routed(number, random) for number in range(REQUESTS)])
    await engine.dispose()

    grown = part_bytes(file) - before

    assert grown.total() / REQUESTS <= MOST_BYTES, grown
