"""Every test that docs/results/reliability.md names exists, and every row names one."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "results" / "reliability.md"
ROWS = [
    line
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and line.count(" | ") < 4 and "---" not in line
]
LINK = re.compile(r"\]\((\.\./\.\./tests/[^)#]+\.py)#(test_\w+)\)")


def test_every_row_links_to_a_test_that_exists() -> None:
    rows = [row for row in ROWS if not row.endswith("| test |")]
    assert len(rows) > 25
    for row in rows:
        links = LINK.findall(row)
        assert links, f"no test is linked: {row}"
        assert row.count("](") == len(links), f"a link is not to a test: {row}"
        for path, name in links:
            text = (PAGE.parent / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"
