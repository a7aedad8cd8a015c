"""Personal data in every form and in every odd place stays: the server elsewhere is asked for the bytes that it got."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.inference.screening.rules import PrivateRules, readings
from tests.gateway.private_forms import CASES, CATALOG, OPEN, TEXTS, Body
from tests.gateway.sinks import SinkGateway, running_sinks
from tests.shared_data import rows
from tests.support.app import gateway_of
from tiers.catalog.catalog import PrivateSpec

ALL = PrivateRules(PrivateSpec())
ORDINARY = [
    "What is the capital of France? 100 % sure &amp; ready \\o/ \\n",
    "Grid: 4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
    "3457 + 5959 - 2305 - 4010 = ?, 6845 * 5489 * 1327 + 388",
    "In 2019 2020 2021 phones sold: 1,200,300; mobile sales 2019 2020 2021 2022",
    "09:30 - 17:00, 01.02.2024 - 03.04.2025, 01 02 03 04 05 06 07, 0123456789",
    "git clone git@github.com, then npm i react@18.2.0; sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c",
    "def token(secret_key: str, api_key=None) -> str: ...  # bearer authentication_middleware_class",
    "The private key stays with its owner; a public key does not. AKIA is a prefix.",
    "3.141592653589793238, 2.718281828459045, +3.728392837, 40.7128 -74.0060",
    "élève, naïve, 東京 2020, ①②③, x² + y², 10–20 °C, “quoted” — dashes…",
    "order 7012345678901, ISBN 978-3-16-148410-0, 192.168.100.200:8080, v1.2.3-rc.4",
    "class sk-learn, task-oriented-dialogue-management-systems, risk-adjusted-return-on-capital",
    "password must have 8 characters",
    "password: str = Field(...)",
    "Enter password: ",
    "password = getpass.getpass()",
    "password=os.environ['PASSWORD1']",
    "const password = req.body.password1;",
    "passwords: list[str]",
    "Password: ********",
    "reset your password in 24 hours",
    "<input type='password' name='pw1'>",
    "password123 is the most common password",
    "the passwords are hashed with sha256",
    "assert password == expected_2",
    "if len(password) < 8:",
    "password: {{ vault_pw1 }}",
    "password=${DB_PASSWORD1}",
    "pwd; ls -la /var/log1",
    "def check_password(password1, password2):",
    "the pass wd 3",
    "'password' : 'your_password1'",
    "forgot password? 1. click",
    "Password policy v2: min 8 chars",
]


@pytest.mark.parametrize("name", TEXTS)
def test_a_form_is_found(name: str) -> None:
    assert ALL.first(TEXTS[name]) is not None


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_text_is_not(text: str) -> None:
    assert ALL.first(text) is None


def test_of_five_thousand_ordinary_prompts_one_in_a_hundred_at_most_is_found() -> None:
    """The prompts are examination questions, tasks, and chats of benchmarks; a few do have a number of a phone."""
    prompts = [row["prompt"] for row in rows("routing_outcomes.jsonl.gz")[::7]]
    prompts += [row["prompt"] for row in rows("customers.jsonl.gz")[::8]]
    assert len(prompts) >= 5000
    assert sum(ALL.first(prompt) is not None for prompt in prompts) <= len(prompts) / 100


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("plain", ["plain"]),
        ("100 % & more", ["100 % & more"]),
        ("ﬁ\u200b٣–", ["fi3-", "ﬁ\u200b٣–"]),
        ("№7", ["No7", "№7"]),
        ("%2540", ["%2540", "@"]),
        ("\\ud83d\\ude00", ["\\ud83d\\ude00", "😀"]),
        ("\\u0041b" + "c" * 999, ["\\u0041b" + "c" * 999, "Ab" + "c" * 159]),
        ("&#1114112; &#x110000; \\u{110000}", ["&#1114112; &#x110000; \\u{110000}"] * 2),
    ],
)
def test_a_text_is_read_plain_and_decoded(written: str, read: list[str]) -> None:
    assert readings(written) == read


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SinkGateway]:
    able = "capabilities = {tools = true, json_schema = true}"
    async with running_sinks() as sinks:
        catalog = sinks.catalog(CATALOG.format(sink=sinks.servers[0].base_url), able)
        async with gateway_of(tmp_path_factory.mktemp("data"), catalog) as aio:
            yield SinkGateway(aio, sinks)


@pytest.fixture
def sinks(shared: SinkGateway) -> SinkGateway:
    """Only the strongest tier, which is elsewhere, is good enough."""
    shared.reset(0.01, 0.01, 1.0)
    return shared


async def status(sinks: SinkGateway, path: str, body: Body) -> int:
    """Ask, and return the status of the answer."""
    return (await sinks.aio.http.post(path, json={"model": "auto"} | body)).status_code


@pytest.mark.parametrize(("path", "body"), OPEN)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_not_private_leaves(sinks: SinkGateway, path: str, body: Body) -> None:
    await status(sinks, path, body)
    assert sinks.left


@pytest.mark.parametrize("name", CASES)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_byte_of_what_is_private_leaves(sinks: SinkGateway, name: str) -> None:
    told = await status(sinks, *CASES[name])
    assert sinks.left == []
    # It is answered at home, or refused: by a rule, or because no tier at home has what it needs.
    assert told in (200, 400, 403)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_file_that_no_rule_reads_stays_and_so_do_the_fields_of_its_form(sinks: SinkGateway) -> None:
    files = {"file": ("a.wav", b"RIFF", "audio/wav")}
    answer = await sinks.aio.http.post("/v1/audio/transcriptions", data={"model": "others"}, files=files)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_tier_may_see")
    assert answer.json()["error"]["param"] == "file"
    assert "files, which no rule reads, in file" in answer.json()["error"]["message"]
    assert sinks.left == []


@pytest.mark.parametrize(("path", "body"), OPEN[6:])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_header_that_asks_for_privacy_binds_every_endpoint(sinks: SinkGateway, path: str, body: Body) -> None:
    headers = {"x-aio-private": "true"}
    answer = await sinks.aio.http.post(path, json={"model": "auto"} | body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "x-aio-private")
    assert sinks.left == []
