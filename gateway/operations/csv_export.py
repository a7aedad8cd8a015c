"""Rows as CSV for spreadsheets, in which no cell is a formula."""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar.response import Response, Stream

from gateway.base.errors import bad_request
from gateway.edge.asgi import HttpRequest

MEDIA_TYPE = "text/csv"
# What spreadsheets treat as the start of a formula (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def wants_csv(query: dict[str, str]) -> bool:
    """Take `format` out of a query: json, or csv. Raises `ApiError` 400."""
    form = query.pop("format", "json")
    if form not in ("json", "csv"):
        raise bad_request(f"Invalid format: {form[:64]!r}; allowed: json, csv.", "format", "invalid_value")
    return form == "csv"


def as_asked(
    request: HttpRequest,
    name: str,
    whole: Any,
    columns: Sequence[str],
    rows: Iterable[msgspec.Struct | Mapping[str, Any]],
) -> Response[Any]:
    """Return `whole` as JSON, or with `format=csv` its `rows` as a file `name`.csv. Raises `ApiError` 400."""
    if not wants_csv(dict(request.query_params)):
        return Response(whole, media_type="application/json")
    return csv_response(name, columns, (_mapping(row) for row in rows))


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response[bytes]:
    """Return a file `name`.csv with the columns of these rows."""
    body = (head_of(columns) + lines_of(columns, rows)).encode()
    return Response(body, media_type=MEDIA_TYPE, headers=_headers(name))


def csv_stream(name: str, chunks: AsyncIterator[str]) -> Stream:
    """Return a file `name`.csv that is sent while it is generated."""
    return Stream(chunks, media_type=MEDIA_TYPE, headers=_headers(name))


def head_of(columns: Sequence[str]) -> str:
    """Return the line of names."""
    return _written([columns])


def lines_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Yield a line per row; a missing column is empty."""
    return _written([cell(row.get(name)) for name in columns] for row in rows)


def cell(value: Any) -> Any:
    """Return a number as it is; anything else as text, with a ' before what would be read as a formula; structures as
    JSON."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(_FORMULA) else text


def _mapping(row: msgspec.Struct | Mapping[str, Any]) -> Mapping[str, Any]:
    return msgspec.structs.asdict(row) if isinstance(row, msgspec.Struct) else row


def _written(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _headers(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
