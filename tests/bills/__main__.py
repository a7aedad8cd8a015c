"""`python -m tests.bills [--markdown FILE] [--only WORDS]`: what is billed of each row, against the provider's
published price. Ends with 1 if a bill is wrong."""

import argparse
import asyncio
import sys
from pathlib import Path

from tests.bills.rows import ROWS
from tests.bills.runner import bills, line, page


def main() -> None:
    """Parse the command line, send the rows, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bills", description="Compare bills with price lists.")
    parser.add_argument("--markdown", type=Path, help="write the page to this file")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words")
    given = parser.parse_args()
    found = asyncio.run(bills([row for row in ROWS if given.only in row.name]))
    for bill in found:
        print(line(bill))
    wrong = sum(not bill.is_right for bill in found)
    print(f"{len(found)} rows, {wrong} wrong")
    if given.markdown:
        given.markdown.write_text(page(found))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
