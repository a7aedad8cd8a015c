"""The page of a card's figures is what `make bench-gpu` printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.device_tables import CACHED, device_tables
from benchmarks.report.measured import MeasurementError
from benchmarks.report.page import filled
from benchmarks.requirements.requirements import read_requirements

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_figures_on_record() -> None:
    page = (ROOT / "docs/results/performance-gpu.md").read_text()
    assert filled(page, device_tables(ROOT / "docs/measurements/gpu-h200.jsonl")) == page


def test_the_requirements_name_the_speeds_on_record() -> None:
    lines = (ROOT / "docs/measurements/gpu-h200.jsonl").read_text().splitlines()
    speeds = {row["stage"]: row["out_tok_s"] for row in map(json.loads, lines) if "out_tok_s" in row}
    rows = {row.key: row.missing for row in read_requirements()}
    gain = speeds["8b-int4-one-stream"] / speeds["8b-bf16-one-stream"]
    assert f"{speeds['8b-int4-one-stream']:.0f} tokens/s there" in rows["TI-02"]
    assert f"{gain:.2f} times BF16's" in rows["TI-02"]
    assert f"{speeds['70b-int4-one-stream']:.1f} tokens/s on one H200" in rows["TI-03"]


def test_every_scheme_is_a_column_and_every_load_a_row(tmp_path: Path) -> None:
    rows = [{"machine": {"gpu": "G", "memory_gib": 80.0, "cuda": "13.0", "torch": "2.11", "python": "3.12"}}]
    for scheme, us in (("dense", 2.0), ("int4", 1.25)):
        for count in (1, 4, 16, 64, 256, 4096):
            shape = {"scheme": scheme, "projection": "down", "inputs": 14336, "outputs": 4096}
            rows.append(shape | {"rows": count, "us": us * count})
    rows.append({"kernel": "decode", "kv_dtype": "fp8", "sequences": 8, "context": 4096, "us": 33.49, "gb_s": 2035.1})
    rows.append(
        {"kernel": "prefill", "kv_dtype": "fp8", "queries": 512, "context": 8192, "us": 620.0, "tflop_s": 107.4}
    )
    path = tmp_path / "printed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = device_tables(path)
    linears = tables["linears"].splitlines()
    assert [cell.strip() for cell in linears[0].split("|")[3:5]] == ["dense µs", "int4 µs"]
    assert [cell.strip() for cell in linears[3].split("|")[1:5]] == ["down, 14,336 × 4,096", "4", "8.0", "5.0"]
    for part in ("8 × 4,096", "2,035 GB/s", "512 of 8,192", "107 TFLOP/s"):
        assert part in tables["attention"]


def test_a_first_token_of_prompts_that_an_earlier_load_left_cached_is_marked(tmp_path: Path) -> None:
    """Of three prompts of 32 tokens two begin as ones of 16 from the same seed do, of three of 80 the first."""
    rows: list[dict[str, Any]] = [
        {"stage": stage, "concurrency": 1, "requests": 3, "prompt_tokens": tokens, "output_tokens": 2, "adapters": 0}
        | dict.fromkeys(("out_tok_s", "total_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"), 1.0)
        | seed
        for stage, seed in (("same", {}), ("own", {"seed": 7}))
        for tokens in (16, 32, 80)
    ]
    machine = {"machine": {"gpu": "G", "memory_gib": 80.0, "cuda": "13.0", "torch": "2.11", "python": "3.12"}}
    path = tmp_path / "printed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [machine, *rows]))
    marked = [line.split("|")[1:4] for line in device_tables(path)["models"].splitlines() if CACHED in line]
    assert [[cell.strip() for cell in cells] for cells in marked] == [["same", "1", "32 + 2"]]


@pytest.mark.parametrize("text", ["", "{}", "no JSON", '{"machine": {"gpu": "G"}}'])
def test_a_file_of_anything_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(MeasurementError, match="make bench-gpu"):
        device_tables(path)
