"""A model that others quantised is measured once, in the background, and serves as not measured until then (QM-12)."""

import asyncio
import copy
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inference_core.loaders.model_file import file_fingerprint
from inference_core.quantization.awq import RoundToNearest
from inference_core.quantization.calibration import CalibrationText
from inference_core.quantization.quality_report import (
    RECORD,
    MeasuredModel,
    QualityReport,
    TextMetrics,
    read_report,
    write_report,
)
from inference_core.quantization.quantize_model import quantize_model
from quality.evaluation.others_models import MeasuringError, OthersModels
from tests.inference_core.quantization.tiny_model import TEXT, write_tiny_model
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf
from tests.polling import eventually
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.catalog.load import parse_catalog
from tiers.catalog.quality_gate import OthersModel, require_quality
from tiers.errors import CatalogError

NAME = "smollm2-int4"
# The real model of tiers 2 to 4 would be read whole by every test.
TABLE = tomllib.loads(resources.files("tiers.catalogs").joinpath("laptop.toml").read_text()) | {
    "unmeasured": {"smollm2-bf16": "not of these tests"}
}
GOOD = TextMetrics(
    tokens=1000, sha256="", reference_perplexity=20.0, perplexity=20.1, perplexity_rise=0.005, mean_kl=0.004, top1=0.97,
    logit_cosine=0.999, hidden_cosine=0.998, lowest_hidden_cosine=0.98,
)  # fmt: skip


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    write_gguf(file, decoder_weights(), matrix_kind="Q4_0")
    return file


def catalog(model: Path, **changes: Any) -> Catalog:
    table = copy.deepcopy(TABLE) | changes
    table["core"]["models"][0]["path"] = str(model)
    return parse_catalog(table, "catalogue 'plain'")


def quantised_by_others(model: Path, folder: Path) -> None:
    quantize_model(model, folder, RoundToNearest(group_size=32), CalibrationText(TEXT, "a novel"))
    (folder / RECORD).unlink()


class Comparer:
    """Reports a perplexity that rises by `rise`, once it may; or fails with `error`."""

    def __init__(self, rise: float = 0.005, error: str = "") -> None:
        self._text, self._error = replace(GOOD, perplexity_rise=rise), error
        self.may_end = asyncio.Event()
        self.compared: list[str] = []

    async def __call__(self, model: OthersModel, cache_dir: Path) -> None:
        self.compared.append(model.name)
        await self.may_end.wait()
        if self._error:
            raise MeasuringError(self._error)
        measured = MeasuredModel(
            path=str(model.path), fingerprint=file_fingerprint(model.path), compute=model.compute, kv_dtype="bfloat16"
        )
        write_report(QualityReport(reference=measured, candidate=measured, text=self._text), model.report_path)


@asynccontextmanager
async def following(
    serving: CatalogInUse, cache_dir: Path, compare: Callable[..., Any] | None, *, measures: bool = True
) -> AsyncIterator[OthersModels]:
    models = OthersModels(serving, cache_dir, measures=measures, compare=compare)
    task = asyncio.create_task(models.follow())
    try:
        yield models
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_is_not_measured_until_it_was_compared_and_never_again(tmp_path: Path, quantised: Path) -> None:
    comparer = Comparer()
    async with following(CatalogInUse(catalog(quantised)), tmp_path, comparer) as models:
        await eventually(lambda: models.doubts)
        assert models.doubts == {NAME: "not measured: others quantised it; it is being measured"}
        comparer.may_end.set()
        await eventually(lambda: not models.doubts)
    # Under another name it is the same file.
    moved = await asyncio.to_thread(quantised.rename, tmp_path / "renamed.gguf")
    again = Comparer()
    other = tmp_path / "another.gguf"
    write_gguf(other, decoder_weights(), matrix_kind="Q4_1")
    serving = CatalogInUse(catalog(moved))
    async with following(serving, tmp_path, again) as models:
        serving.switch_to(catalog(other))
        await eventually(lambda: again.compared)
        assert again.compared == [NAME], "the other file alone"
        assert models.doubts == {NAME: "not measured: others quantised it; it is being measured"}
    assert comparer.compared == [NAME]


async def test_one_that_loses_too_much_says_what_it_loses_and_still_serves(
    tmp_path: Path, quantised: Path, caplog: pytest.LogCaptureFixture
) -> None:
    comparer = Comparer(rise=0.25)
    comparer.may_end.set()
    async with following(CatalogInUse(catalog(quantised)), tmp_path, comparer) as models:
        await eventually(lambda: "measured here" in models.doubts.get(NAME, ""))
    lost = "perplexity_rise is 0.2500, at most 0.03 is allowed"
    assert models.doubts == {NAME: f"measured here, it loses too much for chats: {lost}"}
    assert lost in caplog.text
    caplog.clear()
    require_quality(catalog(quantised), tmp_path)
    assert lost in caplog.text
    with pytest.raises(CatalogError, match=lost):
        require_quality(catalog(quantised, require_report=True), tmp_path)


async def test_a_catalogue_that_requires_reports_refuses_it_until_it_was_measured(
    tmp_path: Path, quantised: Path
) -> None:
    require_quality(catalog(quantised), tmp_path)
    with pytest.raises(CatalogError, match="nothing was measured of it here"):
        require_quality(catalog(quantised, require_report=True), tmp_path)
    comparer = Comparer()
    comparer.may_end.set()
    async with following(CatalogInUse(catalog(quantised)), tmp_path, comparer) as models:
        await eventually(lambda: comparer.compared and not models.doubts)
    require_quality(catalog(quantised, require_report=True), tmp_path)


async def test_a_comparison_that_fails_is_not_repeated_and_says_why(tmp_path: Path, quantised: Path) -> None:
    comparer = Comparer(error="it has no tokeniser")
    comparer.may_end.set()
    serving = CatalogInUse(catalog(quantised))
    async with following(serving, tmp_path, comparer) as models:
        await eventually(lambda: "no tokeniser" in models.doubts.get(NAME, ""))
        assert models.doubts == {NAME: "not measured: others quantised it; it has no tokeniser"}
        serving.switch_to(catalog(quantised, description="the same models"))
        other = tmp_path / "another.gguf"
        write_gguf(other, decoder_weights(), matrix_kind="Q4_1")
        serving.switch_to(catalog(other))
        await eventually(lambda: len(comparer.compared) == 2)


async def test_where_the_cache_folder_takes_no_report_it_is_not_measured_and_says_why(
    tmp_path: Path, quantised: Path
) -> None:
    (tmp_path / "quality").write_text("a file where the reports' folder would be")
    comparer = Comparer()
    async with following(CatalogInUse(catalog(quantised)), tmp_path, comparer) as models:
        await eventually(lambda: "File exists" in models.doubts.get(NAME, ""))
    assert not comparer.compared


async def test_where_there_is_too_little_memory_it_says_what_it_takes(
    tmp_path: Path, quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quality.evaluation.others_models.available_memory", lambda: 10_000)
    comparer = Comparer()
    async with following(CatalogInUse(catalog(quantised)), tmp_path, comparer) as models:
        await eventually(lambda: "of memory" in models.doubts.get(NAME, ""))
    assert "are free; measure it elsewhere: aio quality compare" in models.doubts[NAME]
    assert not comparer.compared


async def test_of_several_processes_one_measures(tmp_path: Path, quantised: Path) -> None:
    serving = CatalogInUse(catalog(quantised))
    first, second = Comparer(), Comparer()
    async with following(serving, tmp_path, first) as ours, following(serving, tmp_path, second) as others:
        await eventually(lambda: first.compared or second.compared)
        await eventually(lambda: ours.doubts and others.doubts)
        first.may_end.set()
        second.may_end.set()
        await eventually(lambda: not (ours if first.compared else others).doubts)
    assert len(first.compared + second.compared) == 1


async def test_where_measuring_is_off_it_stays_not_measured(tmp_path: Path, quantised: Path) -> None:
    comparer = Comparer()
    async with following(CatalogInUse(catalog(quantised)), tmp_path, comparer, measures=False) as models:
        await eventually(lambda: models.doubts)
    assert models.doubts == {NAME: "not measured: others quantised it"}
    assert not comparer.compared


async def test_what_the_catalogue_names_as_unmeasured_is_in_no_doubt(tmp_path: Path, quantised: Path) -> None:
    comparer = Comparer()
    named = catalog(quantised, unmeasured=TABLE["unmeasured"] | {NAME: "known to be good"})
    async with following(CatalogInUse(named), tmp_path, comparer) as models:
        await asyncio.to_thread(lambda: None)
    assert not models.doubts
    assert not comparer.compared


@pytest.mark.processes
@pytest.mark.timeout(600)
async def test_a_file_is_measured_against_its_own_weights_in_full_arithmetic(tmp_path: Path) -> None:
    """By the real process: the report is of these weights and this arithmetic, and has the figures of text."""
    folder = tmp_path / "theirs"
    await asyncio.to_thread(quantised_by_others, write_tiny_model(tmp_path / "full"), folder)
    serving = CatalogInUse(catalog(folder))
    async with following(serving, tmp_path, None) as models:
        await eventually(lambda: models.doubts)
        await eventually(lambda: "being measured" not in models.doubts.get(NAME, ""))
    (file,) = (tmp_path / "quality").glob("*.quality.json")
    report = read_report(file)
    assert report.candidate.fingerprint == report.reference.fingerprint == file_fingerprint(folder)
    assert (report.candidate.compute, report.reference.compute) == ("int4-int8", "float32")
    assert report.text.tokens > 0
    assert report.first_tokens is not None
