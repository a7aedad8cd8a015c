"""Every documented operation under generated requests: no failure of the server, no answer that the document lacks."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.base.settings import Settings
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway, threaded_gateway
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.processes

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
# `make fuzz-api` asks for more, and for others each time.
GENERATED = hypothesis_settings(
    max_examples=max(15, hypothesis_settings().max_examples // 10),
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LISTS = ("verifications", "artefacts", "transitions", "retrainings", "rollouts", "experiments", "report", "batches")
# Tests that have the limit of one each.
PARTS = 4
ODD = st.one_of(st.text(max_size=20), st.integers().map(str), st.floats().map(str))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=1)
    with threaded_gateway(settings, laptop_hash_core(settings)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def operations(served: RunningGateway) -> list[APIOperation]:
    schema = schemathesis.openapi.from_url(f"{served.url}/docs/openapi.json")
    return [result.ok() for result in schema.get_all_operations()]


def complaint(case: Case) -> str | None:
    """What is wrong with the answer to `case`, with a command that repeats it."""
    answer = case.call(timeout=60, headers=ADMIN_HEADERS)
    try:
        case.validate_response(answer, checks=CHECKS)
    except FailureGroup as error:
        failures = "\n".join(map(str, error.exceptions))
        return f"{case.as_curl_command()}\n{answer.status_code}: {answer.text[:200]}\n{failures}"
    return None


def made_plausible(case: Case) -> bool:
    """Whether the case's endpoint generates; then its body asks a served model something, so that the other fields come
    to matter."""
    if not isinstance(case.body, dict) or not case.path.startswith("/v1/messages") | case.path.endswith("completions"):
        return False
    is_chat = case.path.startswith("/v1/messages") or "chat" in case.path
    field = {"messages": [{"role": "user", "content": "Hello"}]} if is_chat else {"prompt": "Hello"}
    case.body = {**case.body, "model": "auto", **field}
    return True


@pytest.mark.parametrize("part", range(PARTS))
def test_no_generated_request_is_answered_by_what_is_not_documented(operations: list[APIOperation], part: int) -> None:
    complaints: list[str] = []
    for operation in operations[part::PARTS]:
        modes = [GenerationMode.POSITIVE] + ([GenerationMode.NEGATIVE] if operation.body else [])
        varied = bool(operation.body or operation.path_parameters or operation.query)
        for mode in modes:

            @hypothesis_settings(GENERATED, max_examples=GENERATED.max_examples if varied else 1)
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Case) -> None:
                complaints.extend(filter(None, [complaint(case)]))
                if made_plausible(case):
                    complaints.extend(filter(None, [complaint(case)]))

            ask()
    assert not complaints, "\n\n".join(complaints[:5])


@pytest.mark.parametrize("name", LISTS)
def test_no_query_of_a_list_fails_the_server(operations: list[APIOperation], name: str) -> None:
    operation = next(one for one in operations if one.label == f"GET /admin/api/{name}")
    complaints: list[str] = []

    @GENERATED
    @given(st.dictionaries(st.sampled_from(["limit", "cursor", "since", "until", "tier", "status", "days", "x"]), ODD))
    def ask(query: dict[str, str]) -> None:
        complaints.extend(filter(None, [complaint(operation.Case(query=query))]))

    ask()
    assert not complaints, "\n\n".join(complaints[:5])


def test_every_operation_documents_its_errors_in_the_envelope(operations: list[APIOperation]) -> None:
    for operation in operations:
        if operation.path.startswith(("/health", "/metrics")):
            continue
        answers = operation.definition.raw["responses"]
        of_messages = operation.path.startswith("/v1/messages")
        unavailable, fields = ("529", ["type", "error", "request_id"]) if of_messages else ("503", ["error"])
        assert {"400", "401", "403", "404", "429", "500", unavailable} <= set(answers), operation.label
        for status, answer in answers.items():
            if int(status) >= 400:
                schema = answer["content"]["application/json"]["schema"]
                assert sorted(schema["properties"]) == sorted(fields), (operation.label, status)
