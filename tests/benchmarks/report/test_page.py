"""Pages are filled from finished measurements, and nothing else of them changes."""

import json
import re
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import main
from benchmarks.core.limits import FIGURES as LIMIT_FIGURES
from benchmarks.core.speculation import FIGURES as WORKLOAD_FIGURES
from benchmarks.core.sweep import COLUMNS
from benchmarks.report.measured import MeasurementError
from benchmarks.report.measurement import Measurement, read_finished
from benchmarks.report.page import _MEASURED, PageError, filled, filled_pages, parts_of, places

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / "results" / name for name in ("performance.md", "history.md", "quality.md")]
RESULTS = ROOT / "docs" / "measurements"

TEXT = """# Title

<!-- measured: sweep -->
old
<!-- end -->

between

<!-- measured: peers -->
<!-- end -->
"""


def sweep_in(folder, *, finish=True):
    measurement = Measurement.begin("sweep", {}, folder / "sweep.jsonl")
    spread = {"median": 2.0, "low": 1.0, "high": 3.0}
    points = [{"concurrency": level, "figures": dict.fromkeys(COLUMNS, spread)} for level in (1, 2, 4)]
    if finish:
        measurement.finish({"points": points, "knee": 2, "saturation": 1.5})


def test_a_part_replaces_what_stood_between_its_marks_and_nothing_else():
    page = filled(TEXT, {"sweep": "| new |"})

    assert page == TEXT.replace("old", "\n| new |\n")
    assert filled(page, {"sweep": "| new |"}) == page
    assert places(TEXT) == ["sweep", "peers"]


def test_a_part_without_a_place_is_refused_by_name():
    with pytest.raises(PageError, match="no place for step; it has sweep, peers"):
        filled(TEXT, {"step": "x"})


def test_finished_measurements_become_tables_with_their_machine(tmp_path):
    sweep_in(tmp_path)

    parts = parts_of(tmp_path)

    assert list(parts) == ["sweep"]
    assert "2.00 (1.00 to 3.00)" in parts["sweep"]
    assert "The knee is at 2 in flight" in parts["sweep"]
    assert "Measured on 20" in parts["sweep"]


def test_bounds_of_the_machine_stand_with_the_goals_and_in_a_table_of_their_own(tmp_path):
    peers = Measurement.begin("peers", {}, tmp_path / "peers.jsonl")
    columns = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms")
    for system, speed in (("other", 100.0), ("aio", 300.0)):
        where = {"transport": "in process", "load": "many streams", "concurrency": 32, "system": system}
        counts = {"round": 0, "requests": 1, "ok": 1, "mean_prompt": 128.0, "out_tok_s": speed}
        peers.add(where | counts | dict.fromkeys(columns, 1.0))
    peers.finish(None)
    lines = [{"machine": {"threads": 2, "read_gb_s_all": 50.0}}, {"model": "m", "bounds": {"closed_loop_32": 1200.0}}]
    (tmp_path / "kernels.jsonl").write_text("\n".join(map(json.dumps, lines)))

    parts = parts_of(tmp_path)

    assert "1,200 |     25% |" in parts["goals"]
    assert "read_gb_s_all" in parts["kernels"]


def test_another_kind_of_machine_has_tables_of_its_own(tmp_path):
    sweep_in(tmp_path)
    for kind, speed in (("", 100.0), ("-avx512", 200.0)):
        peers = Measurement.begin("peers", {}, tmp_path / f"peers{kind}.jsonl")
        for system in ("other", "aio"):
            where = {"transport": "http", "load": "most streams", "concurrency": 64, "system": system}
            counts = {"round": 0, "requests": 1, "ok": 1, "mean_prompt": 128.0, "out_tok_s": speed}
            times = dict.fromkeys(("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms"), 1.0)
            peers.add(where | counts | times)
        peers.finish(None)

    parts = parts_of(tmp_path)

    assert "200 |" in parts["peers-avx512"]
    assert "200 |" not in parts["peers"]
    assert "Measured on 20" in parts["goals-avx512"]
    assert "peers.png" not in parts["goals-avx512"]


def test_searches_and_workloads_become_tables_of_their_own(tmp_path):
    one = {"median": 1.0, "low": 1.0, "high": 1.0}
    load = {"offered": 2, "rounds": 1, "kept": 1, "figures": dict.fromkeys(LIMIT_FIGURES, one)}
    found = {"profile": "voice", "offered": "in flight", "promise": "p", "highest": one, "loads": [load]}
    figures = dict.fromkeys((*WORKLOAD_FIGURES, "mean_output"), one)
    loads = [{"workload": "code", "level": 8, "mode": "off", "figures": figures}]
    for name, results in (
        ("voice", found),
        ("workloads", {"way": "prompt_lookup", "worth": [], "loads": loads}),
    ):
        Measurement.begin(name, {}, tmp_path / f"{name}.jsonl").finish(results)

    parts = parts_of(tmp_path)

    assert list(parts) == ["workloads", "voice"]
    assert "| code     |         8 |" in parts["workloads"]
    assert "The most with p: 1 (1 to 1 over the rounds)." in parts["voice"]


def test_an_unfinished_measurement_says_nothing(tmp_path):
    sweep_in(tmp_path, finish=False)

    assert parts_of(tmp_path) == {}


def test_rows_of_other_commands_become_tables_of_their_columns(tmp_path):
    (tmp_path / "step.jsonl").write_text('{"step": "decode", "sequences": 8, "total_ms": 3.25, "model": "m"}\n')

    table = parts_of(tmp_path)["step"]

    assert [cell.strip() for cell in table.splitlines()[2].split("|")[1:5]] == ["decode", "8", "–", "3.25"]


def test_a_listing_of_another_kind_of_machine_has_a_table_of_its_own(tmp_path):
    for kind, rate in (("", 100.5), ("-avx512", 200.5)):
        (tmp_path / f"proxy{kind}.jsonl").write_text(json.dumps({"target": "aio", "req_s": rate}) + "\n")

    parts = parts_of(tmp_path)

    assert "200" in parts["proxy-avx512"]
    assert "200" not in parts["proxy"]


def test_the_time_of_a_routing_decision_becomes_a_table(tmp_path):
    times = '{"p50": 0.5, "p90": 0.6, "p99": 0.7}'
    (tmp_path / "route.json").write_text(f'{{"prompts": 1000, "decision": {{"cpu_ms": {times}}}}}')

    lines = parts_of(tmp_path)["route"].splitlines()

    assert "1,000 prompts" in lines[0]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["the whole decision"]


@pytest.mark.parametrize("text", ["{", "[]", '{"prompts": 1}'])
def test_a_routing_file_of_something_else_is_refused_by_name(tmp_path, text):
    (tmp_path / "route.json").write_text(text)

    with pytest.raises(MeasurementError, match=r"route\.json is no output"):
        parts_of(tmp_path)


def test_a_file_of_something_else_is_refused_by_name(tmp_path):
    (tmp_path / "step.jsonl").write_text("[1]\n")

    with pytest.raises(MeasurementError, match=r"step\.jsonl does not hold rows"):
        parts_of(tmp_path)


def test_each_part_goes_to_the_page_that_has_its_place():
    first, second = TEXT.split("between")

    assert filled_pages([first, second], {"sweep": "| new |", "peers": "| of peers |"}) == [
        first.replace("old", "\n| new |\n"),
        filled(second, {"peers": "| of peers |"}),
    ]
    with pytest.raises(PageError, match="no page has a place for step"):
        filled_pages([first, second], {"step": "x"})


def test_the_performance_page_says_what_the_kept_measurements_say():
    parts = parts_of(RESULTS) if RESULTS.is_dir() else {}
    pages = [page.read_text(encoding="utf-8") for page in PAGES]

    assert filled_pages(pages, parts) == pages, "run `make bench-report`"


def test_commands_of_the_performance_page_are_those_that_ran():
    context, shown = click.Context(main), {}
    for line in "\n".join(page.read_text(encoding="utf-8") for page in PAGES).splitlines():
        if match := re.match(r"python -m benchmarks (sweep|ablation|limits)\b(.*)", line):
            command = main.get_command(context, match[1])
            given = command.make_context(match[1], match[2].split()).params
            shown[str(given["out"] or f"{match[1]}.jsonl")] = given

    names = ("sweep", "ablation", "voice", "rewrite")
    assert shown.keys() == {f"{name}.jsonl" for name in names}
    for name, given in shown.items():
        ran = json.loads((RESULTS / name).read_text(encoding="utf-8").splitlines()[0])["settings"]["options"]
        assert {key: json.loads(json.dumps(given.get(key))) for key in ran} == ran, name


def test_the_performance_page_has_a_place_for_every_part():
    found = [name for page in PAGES for name in places(page.read_text(encoding="utf-8"))]
    marked = set(found)
    assert len(found) == len(marked)

    parts = {
        "goals",
        "peers",
        "sweep",
        "ablation",
        "step",
        "start",
        "route",
        "kernels",
        "proxy-epyc",
        "goals-epyc",
        "peers-epyc",
        "soak",
    }
    assert marked == parts | {"proxy", "workloads", "voice", "rewrite", "savings"} | {
        f"{name}-avx512-bf16" for name in ("goals", "peers", "kernels", "proxy", "start")
    } | {f"{name}-amx" for name in ("goals", "peers", "gateways")}


@pytest.mark.parametrize("name", _MEASURED)
def test_each_kind_of_measurement_is_kept_finished_and_shown(name):
    assert read_finished(RESULTS, name) is not None
    assert (name if name != "peers" else "goals") in [
        place for page in PAGES for place in places(page.read_text(encoding="utf-8"))
    ]


def test_a_mark_of_a_small_load_is_explained_with_the_files_own_load(tmp_path):
    text = (RESULTS / "ablation.jsonl").read_text()
    changed = text.replace('"small_requests":4,"small_concurrency":2', '"small_requests":6,"small_concurrency":3', 1)
    (tmp_path / "ablation.jsonl").write_text(changed)
    table = parts_of(tmp_path)["ablation"]
    assert " ¹ " in table
    assert "Rows with ¹ are on a small load (6 requests, 3 in flight)." in table

    (tmp_path / "ablation.jsonl").write_text(text.replace('"small":true', '"small":false'))
    assert "¹" not in parts_of(tmp_path)["ablation"]
