"""Callers that leave before the end of an answer."""

from tests.gateway.bills.row import Row

ROWS: list[Row] = []
