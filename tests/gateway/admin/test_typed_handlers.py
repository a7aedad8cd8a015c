"""Handlers of the administration say by their signatures what they take: what is wrong is refused by name, with what is
allowed."""

from typing import Any

import pytest

from gateway.inference.api.signatures import MOST_BYTES
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
RELOAD = "/v1/admin/reload"


@pytest.mark.parametrize(
    ("query", "param", "message"),
    [
        (
            "/v1/admin/sessions?limit=101",
            "limit",
            "Invalid limit: '101' is not a whole number from 1 to 100.",
        ),
        ("/v1/admin/sessions?limit=many", "limit", "Invalid limit: 'many' is not a whole number from 1 to 100."),
        (
            "/admin/api/report?since=nan",
            "since",
            "Invalid since: 'nan' is not a number from 0 to 4102444800.",
        ),
        (
            "/admin/api/report?tag=a+b",
            "tag",
            "Invalid tag: 'a b' is not 1 to 64 letters, digits, dots, colons, underscores and hyphens.",
        ),
        ("/admin/api/slo?format=xml", "format", "Invalid format: 'xml' is not one of json, csv."),
        ("/admin/api/reviews?label=tie", "label", "Invalid label: 'tie' is not one of worse, uncertain."),
    ],
)
async def test_a_parameter_that_is_not_allowed_is_named_with_what_is(
    gateway: RunningGateway, query: str, param: str, message: str
) -> None:
    answer = await gateway.http.get(query)
    assert answer.status_code == 400
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": "invalid_value"}
    assert answer.json() == {"error": error}


@pytest.mark.parametrize(
    ("sent", "status", "param", "code"),
    [
        ({"content": b""}, 400, None, "invalid_json"),
        ({"content": b'{"reason": '}, 400, None, "invalid_json"),
        ({"json": {"reason": 1}}, 400, "reason", "invalid_value"),
        ({"json": {"reason": ""}}, 400, "reason", "invalid_value"),
        ({"json": {}}, 400, "reason", "missing_required_parameter"),
        ({"json": {"reason": "why", "force": True}}, 400, "force", "unknown_parameter"),
        ({"json": {"reason": "why" * (MOST_BYTES // 3)}}, 413, None, "request_too_large"),
        ({"content": b'{"reason": "why"}', "headers": {"content-type": "text/plain"}}, 415, None, None),
    ],
)
async def test_a_body_that_is_no_order_is_refused_by_the_name_of_its_field(
    gateway: RunningGateway, sent: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    answer = await gateway.http.post(RELOAD, **sent)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert code is None or error["code"] == code


async def test_the_document_says_what_parameters_are_allowed(gateway: RunningGateway) -> None:
    paths = (await gateway.http.get("/docs/openapi.json")).json()["paths"]
    limit, shape = (
        next(one["schema"] for one in paths["/v1/admin/sessions"]["get"]["parameters"] if one["name"] == name)
        for name in ("limit", "format")
    )
    assert (limit["minimum"], limit["maximum"]) == (1, 100)
    assert shape["enum"] == ["json", "csv"]


async def test_a_body_is_documented_by_the_struct_that_decodes_it(gateway: RunningGateway) -> None:
    reload = (await gateway.http.get("/docs/openapi.json")).json()["paths"][RELOAD]["post"]
    body = reload["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["reason"] == {"type": "string", "minLength": 1, "maxLength": 1024}
    assert reload["responses"]["200"]["description"] == "The answer."
    assert "param" in reload["responses"]["400"]["description"]
