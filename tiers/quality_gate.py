"""A quantised model serves only with a report that shows it good enough: the exact weights, computed the same way."""

from collections.abc import Iterator
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.fingerprint import file_fingerprint
from inference_core.loaders.model_path import resolve_model_path
from inference_core.model_spec import ModelSpec, QualityGate
from inference_core.quality_report import QualityReport, read_report, shortfalls
from tiers.catalog import Catalog
from tiers.errors import CatalogError
from tiers.tier_spec import ChainOfThoughtSpec


def require_quality(catalog: Catalog, cache_dir: Path) -> None:
    """Raise CatalogError naming every model of the core whose quality report is missing, of other weights, or worse
    than the catalogue allows (SPEC QZ-09, QZ-11). Models without a `quality` table are not asked for one.

    Content hashes are remembered under `cache_dir`.
    """
    problems: list[str] = []
    for model in catalog.core.models:
        if model.quality is not None:
            where = f"core.models '{model.name}'.quality"
            problems += [f"  - {where}: {problem}" for problem in _problems(catalog, model, model.quality, cache_dir)]
    if problems:
        raise CatalogError(
            f"catalogue '{catalog.name}' has models that are worse than it allows:\n" + "\n".join(problems)
        )


def _problems(catalog: Catalog, model: ModelSpec, gate: QualityGate, cache_dir: Path) -> Iterator[str]:
    again = f"make it with: aio quality compare FULL_PRECISION {model.path} --compute {model.compute} --report FILE"
    try:
        report = read_report(Path(gate.report).expanduser())
        fingerprint = file_fingerprint(resolve_model_path(model.path), cache_dir)
    except ModelFileError as error:
        yield f"{error}; {again}"
        return
    measured = report.candidate
    if measured.fingerprint != fingerprint:
        yield (
            f"{gate.report} is of other weights ({measured.path}, content {measured.fingerprint}) than {model.path} "
            f"(content {fingerprint}); {again}"
        )
        return
    if measured.compute != model.compute:
        yield f"{gate.report} was measured with compute = {measured.compute}, not {model.compute}; {again}"
        return
    yield from (f"{gate.report}: {problem}" for problem in shortfalls(report, gate))
    yield from _unmeasured_reasoning(catalog, model, gate, report)


def _unmeasured_reasoning(
    catalog: Catalog, model: ModelSpec, gate: QualityGate, report: QualityReport
) -> Iterator[str]:
    thinkers = [t.name for t in catalog.tiers if t.model == model.name and isinstance(t.policy, ChainOfThoughtSpec)]
    if thinkers and report.questions is None:
        yield (
            f"{gate.report} has no score of final answers, and {', '.join(thinkers)} reasons with this model; "
            "run the comparison with --questions"
        )
