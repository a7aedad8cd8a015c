"""The whole loop of a gateway with two, three and six tiers: route, verify, retrain, put on trial, promote.

Every tier is a model of a loopback server. The prior holds the cheapest tier good enough for simple questions and the
strongest one needed for expert ones; here it is the other way round.
"""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from classifier.decision import Decision
from classifier.model.outcome_model import SCHEMA_VERSION
from gateway.base.settings import Settings
from gateway.tenancy import guard
from quality.quality_loop import QualityLoop
from tests.gateway.walk import BOUNDED
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, LoopbackServer

pytestmark = pytest.mark.processes

SIMPLE = "What is {a} + {b}? Answer with the number only."
EXPERT = (
    "Design a distributed scheduler with strong consistency for {a} + {b} regions, derive its worst-case latency "
    "formally, and prove the bound. Compare three consensus protocols. Answer with the number of regions only."
)
# With six tiers 200 questions may give too few labels to learn from.
MOST_QUESTIONS = 1000
TIER = """
[[tiers]]
name = "tier-{number}"
url = "{url}"
model = "model-{number}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {price} }}
"""


def catalogue(path: Path, url: str, tiers: int) -> Path:
    entries = (TIER.format(number=number, url=url, price=4.0**number) for number in range(1, tiers + 1))
    path.write_text("".join(entries))
    return path


def answer_of(model: str, strongest: str, text: str) -> str:
    """The strongest model is always right; the others are right about expert questions only."""
    numbers = [int(word.strip("?")) for word in text.split() if word.strip("?").isdigit()]
    return str(sum(numbers[:2])) if model == strongest or text.startswith("Design") else "0"


async def decision_of(gateway: RunningGateway, text: str) -> Decision:
    """The decision on a request that is not answered."""
    messages = [{"role": "user", "content": text.format(a=1, b=2)}]
    # As many tokens as those that are answered: a longer answer would cost more than is usual.
    asked = {"model": "auto", "messages": messages, "max_tokens": 8}
    shown = await gateway.http.post("/v1/route", json=asked)
    return msgspec.convert(shown.json()["decision"], Decision)


@pytest.fixture(autouse=True)
def counted_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which answers are verified is drawn by the ids of their requests: they are the same in every run."""
    made: Counter[str] = Counter()

    def new_request_id(prefix: str, separator: str = "-") -> str:
        made[prefix] += 1
        return f"{prefix}{separator}{made[prefix]:032x}"

    monkeypatch.setattr(guard, "new_request_id", new_request_id)


async def ask(gateway: RunningGateway, count: int, start: int) -> list[str]:
    """Ask `count` questions of either kind in turn, each one tier, as wrong answers are alike here; the tiers that
    answered."""
    tiers = []
    for place in range(start, start + count):
        text = (SIMPLE, EXPERT)[place % 2].format(a=place, b=place % 7 + 10)
        raw = await gateway.openai.chat.completions.with_raw_response.create(
            model="auto",
            messages=[{"role": "user", "content": text}],
            max_tokens=8,
            extra_headers={"x-aio-agree": "false"},
        )
        tiers.append(raw.headers["x-aio-tier"])
    return tiers


async def retrained(gateway: RunningGateway, loop: QualityLoop) -> str:
    """Retrain on what is labelled and wait until the promoted version routes; its name."""
    answered = await gateway.http.post("/admin/api/retrainings", json={"reason": "enough labels"})
    assert answered.status_code == 202
    await loop.retraining_ended()
    runs = (await gateway.http.get("/admin/api/retrainings")).json()["rows"]
    assert f"v{SCHEMA_VERSION}-" in runs[0]["classifier_version"], runs[0]["reason"]
    versions = (await gateway.http.get("/admin/api/artefacts")).json()["rows"]
    [serving] = [row["version"] for row in versions if row["status"] == "promoted"]

    async def serves() -> bool:
        simple = await decision_of(gateway, SIMPLE)
        return bool(simple.inputs.prediction.classifier_version == serving)

    await eventually(serves)
    return str(serving)


async def shown(gateway: RunningGateway, loop: QualityLoop) -> str:
    """Why nothing was promoted: what was verified, and how each retraining ended."""
    assert loop.monitor is not None
    runs = (await gateway.http.get("/admin/api/retrainings")).json()["rows"]
    return "\n".join([str(await loop.monitor.status()), *(str(run["reason"]) for run in runs)])


@pytest.mark.parametrize("tiers", [2, 3, 6])
async def test_what_served_answers_show_is_learned_and_promoted(tmp_path: Path, tiers: int) -> None:
    async def upstream(call: Call) -> None:
        text = answer_of(call.body["model"], f"model-{tiers}", call.body["messages"][-1]["content"])
        await call.say(text, usage={"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21})

    async with LoopbackServer(upstream) as server:
        settings = Settings(
            data_dir=str(tmp_path),
            catalog=str(catalogue(tmp_path / "tiers.toml", server.base_url, tiers)),
            sampling_rate=1.0,
            verification_budget=100.0,
            cold_start_usd=100.0,
            second_opinions=0,  # wrong answers are all alike here, so another tier would agree with each
            canary_share=0.0,
            artefact_poll_seconds=0.05,
        )
        async with running_gateway(settings, scripted=False, protocol=BOUNDED) as gateway:
            loop = gateway.operations.quality_loop
            assert loop is not None
            await eventually(lambda: loop.monitor is not None)
            assert loop.monitor is not None
            assert (await ask(gateway, 1, 0))[0] == "1", "the prior's choice for a simple question"
            before = (await decision_of(gateway, SIMPLE)).inputs.prediction

            for start in range(1, MOST_QUESTIONS, 200):
                await ask(gateway, 200, start)
                await loop.monitor.drain()
                await loop.retraining_ended()  # of an alarm, if there was one
                serving = await retrained(gateway, loop)
                simple, expert = await decision_of(gateway, SIMPLE), await decision_of(gateway, EXPERT)
                # Fresh labels move the choice before a retraining is promoted on them.
                is_learned = serving != before.classifier_version and simple.tier > 1 and expert.tier < tiers
                if is_learned and simple.inputs.prediction.p_ok[0] < before.p_ok[0]:
                    break

            assert serving != before.classifier_version, await shown(gateway, loop)
            assert simple.tier > 1
            assert expert.tier < tiers
            assert simple.inputs.prediction.p_ok[0] < before.p_ok[0]
