"""The benchmark of the overview reads every span of the records that it made."""

from click.testing import CliRunner

from benchmarks.gateway.overview import overview
from quality.estimates.traffic import SPANS


def test_each_span_is_measured() -> None:
    ran = CliRunner().invoke(overview, ["--records", "200"], catch_exceptions=False)
    assert ran.exit_code == 0
    assert [span for span in SPANS if span in ran.output] == list(SPANS)
