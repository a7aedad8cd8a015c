"""`aio check` and `aio init` say which tiers private prompts go to, and `aio check` asks the guardrails."""

from pathlib import Path

import pytest
from click.testing import Result

from gateway.operations.setup.checks import private_text
from tests.gateway.in_process_cli import aio
from tests.gateway.operations.setup.model_servers import model_server, openai_pages
from tiers.catalog.load import load_catalog

HERE = "tests.gateway.inference.screening.word_guardrails"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIO_CATALOG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def checked(tables: str, *, local: bool = False) -> Result:
    """The output of `aio check` for two tiers, of which the first may be local, and these tables."""
    with model_server(openai_pages("m")) as server:
        mark = "local = true\n" if local else ""
        tiers = f'[[tiers]]\nname = "a"\nurl = "{server.url}"\n{mark}\n[[tiers]]\nname = "b"\nurl = "{server.url}"\n'
        Path("aio.toml").write_text(f"{tiers}\n{tables}")
        return aio("check", "--data-dir", "data", "--cache-dir", "cache")


@pytest.mark.parametrize(
    ("tables", "local", "said", "warned"),
    [
        ("", False, "and goes to no tier before one has `local = true`: 1 (a), 2 (b) answer on this machine", False),
        ("", True, "to local tiers alone: 1 (a); [private] adds rules", False),
        (
            '[private]\nrules = ["iban"]\npatterns = { falcon = "Falcon" }',
            True,
            "says so, or where a rule finds something private (iban, falcon), and goes to local tiers alone: 1 (a)",
            False,
        ),
        ("[private]", False, "where a rule finds something private (email, phone, card", True),
    ],
)
def test_it_says_which_tiers_private_prompts_go_to(tables: str, local: bool, said: str, warned: bool) -> None:
    result = checked(tables, local=local)
    assert result.exit_code == 0, result.output
    assert said in result.output
    assert ("warning: no tier has `local = true`, so private prompts are refused" in result.output) == warned


def test_every_guardrail_is_asked_and_a_broken_one_fails_the_check() -> None:
    well = f'[[guardrails]]\nname = "well"\npython = "{HERE}:Words"\n'
    result = checked(well)
    assert (result.exit_code, "Guardrail well: pass" in result.output) == (0, True)
    for broken, problem in (
        (f'python = "{HERE}:Missing"', "has no attribute"),
        (f'python = "{HERE}:Failing"\nfail = "open"', "gave no verdict"),
        ('url = "http://127.0.0.1:1"', "gave no verdict"),
        ('url = "http://127.0.0.1:1"\napi_key_env = "ABSENT_KEY"', "ABSENT_KEY"),
    ):
        result = checked(f'{well}[[guardrails]]\nname = "broken"\n{broken}\n')
        assert result.exit_code == 1
        assert "Guardrail broken: PROBLEM" in result.output
        assert problem in result.output.partition("problem:")[2]


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ('[private]\nrules = ["names"]', "private.rules"),
        ("[private]\npatterns = { odd = '[a' }", "private.patterns.odd = '[a': not a regular expression"),
        ("[private]\npatterns = { all = 'a*' }", "it matches every text, the empty one included"),
        ('[[guardrails]]\nname = "g"', "give either python, as module:Class, or url"),
        ('[[guardrails]]\nname = "g"\npython = "a.b"', "must be module:Class"),
        ('[[guardrails]]\nname = "g"\npython = "a:B"\nlocal = true', "are for servers"),
        ('[[guardrails]]\nname = "g"\nurl = "ftp://x"', "must be an http or https URL"),
        ('[[guardrails]]\nname = "g"\nurl = "http://169.254.169.254/"', "this is the metadata address of a cloud"),
        ('[[guardrails]]\nname = "g"\nurl = "http://x"\noptions = { a = 1 }', "they are for classes in process"),
        ('[[guardrails]]\nname = "g"\npython = "a:B"\n' * 2, "the name 'g' occurs 2 times"),
        ('[[guardrails]]\nname = "g"\npython = "a:B"\non = []', "guardrails[0].on"),
        ('[[guardrails]]\nname = "g"\npython = "a:B"\nfail = "ajar"', "guardrails[0].fail"),
    ],
)
def test_a_wrong_table_is_refused_with_its_entry(tables: str, problem: str) -> None:
    result = checked(tables)
    assert result.exit_code == 1
    assert problem in result.output


def test_init_says_it_too() -> None:
    with model_server(openai_pages("m")) as server:
        tiers = ["--tier", f"a={server.url},m", "--tier", f"b={server.url},m"]
        result = aio("init", "--offline", "--ports", "1", *tiers)
    assert result.exit_code == 0, result.output
    assert "A prompt is private where its key or a header says so, and goes to " in result.output
    assert "[private]" in Path("aio.toml").read_text()


def test_of_servers_elsewhere_it_says_that_none_is_local(tmp_path: Path) -> None:
    tiers = "".join(f'[[tiers]]\nname = "{name}"\nurl = "http://10.0.0.7:9/v1"\n' for name in "ab")
    (tmp_path / "elsewhere.toml").write_text(tiers)
    said = private_text(load_catalog(str(tmp_path / "elsewhere.toml")))
    assert "goes to no tier, because none is local (`local = true`)" in said
    assert "this machine" not in said
