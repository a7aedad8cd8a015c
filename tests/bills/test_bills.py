"""Every row of the table of bills comes out as its provider's price list has it, and the page shows them all."""

from pathlib import Path

from tests.bills.rows import ROWS
from tests.bills.runner import bills, line, page

PAGE = Path(__file__).parents[2] / "docs/results/bills.md"


async def test_every_bill_is_the_published_one_a_refusal_or_a_marked_estimate() -> None:
    found = await bills(ROWS)
    wrong = [line(bill) for bill in found if not bill.is_right]
    assert wrong == []
    assert PAGE.read_text() == page(found), "python -m tests.bills --markdown docs/results/bills.md"


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS]
    assert sorted(set(names)) == sorted(names)
