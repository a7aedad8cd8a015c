"""`python -m benchmarks`: every listed command exists, and mistakes are explained."""

import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("name", main.list_commands(None))  # type: ignore[arg-type]
def test_every_listed_benchmark_has_a_help_text(name: str) -> None:
    shown = run(name, "--help")
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sweep", "--levels", "1", "2"), "levels are (1, 2)"),
    ],
)
def test_a_mistake_is_explained_without_a_traceback(arguments: tuple[str, ...], said: str) -> None:
    shown = run(*arguments)
    assert shown.exit_code in (1, 2)
    assert said in shown.output
    assert "Traceback" not in shown.output
