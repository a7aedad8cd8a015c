"""docs/results/models.md is what the loaders say today, and the tests that it names exist."""

import importlib
import itertools

import pytest

from inference_core.model_config import ModelConfig
from inference_core.native import cpu
from tests.inference_core.model_files import FAMILIES, architecture_of
from tests.model_support import PAGE, TESTS, architecture_rows, format_rows, named_tests, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.model_support"


def cases_of(test: str) -> set[str]:
    """The node ids of a parametrised test, which pytest joins from the texts of its parameters."""
    file, name = test.split("::")
    function = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
    marks = [mark.args[1] for mark in function.pytestmark if mark.name == "parametrize"]
    return {f"{test}[{'-'.join(case)}]" for case in itertools.product(*marks)}


@pytest.mark.skipif(not cpu.AVAILABLE, reason="tests of the native kernels are there where they are built")
def test_every_test_that_the_page_names_exists() -> None:
    named = named_tests()
    assert len(named) > 60
    assert set(named) <= set().union(*map(cases_of, TESTS.values()))


def test_every_row_works_by_a_test_or_is_refused_with_what_serves_it() -> None:
    rows = [*architecture_rows(), *format_rows()]
    assert all(set(row.answers) == {"cpu", "gpu", "mesh"} for row in rows)
    answers = [answer for row in rows for answer in row.answers.values()]
    assert all(bool(answer.test) != bool(answer.reason) for answer in answers)
    assert all("engine = " in answer.reason for answer in answers if answer.reason)


def test_every_architecture_of_a_loader_has_a_model_and_a_row() -> None:
    accepted = set(ModelConfig.__annotations__["architecture"].__args__)
    assert {architecture_of(name) for name in FAMILIES} == accepted
    assert {row.model for row in architecture_rows() if row.files == "safetensors"} == accepted
