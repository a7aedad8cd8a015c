"""All rows, by theme."""

from tests.bills import extras, hang_ups, passed_through

ROWS = [*extras.ROWS, *passed_through.ROWS, *hang_ups.ROWS]
