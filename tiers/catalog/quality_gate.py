"""A quantised model serves only with a report that shows it good enough: the exact weights, computed the same way."""

from collections.abc import Collection, Iterator
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.fingerprint import file_fingerprint
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import DeviceScheme, ModelSpec, QualityGate
from inference_core.quantization.quality_report import QualityReport, read_report, shortfalls
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.gpu_group import GpuModelSpec
from tiers.catalog.tier_spec import ChainOfThoughtSpec
from tiers.errors import CatalogError

Gated = ModelSpec | GpuModelSpec
# `aio quality compare` computes on the CPU: which arithmetic there has a device's weights, number by number, and rounds
# activations as it does. None rounds them to FP8.
_SAME_ON_CPU: dict[DeviceScheme, str] = {"dense": "bfloat16", "int4": "int4", "int8": "int4-int8"}


def require_quality(catalog: Catalog, cache_dir: Path, cores: Collection[str] | None = None) -> None:
    """Raise CatalogError naming every model whose quality report is missing, of other weights, or worse than the
    catalogue allows (SPEC QZ-09, QZ-11). Models without a `quality` table are not asked for one.

    `cores` names those to be served here; None is all of the catalogue's. Content hashes are remembered under
    `cache_dir`.
    """
    problems = [
        f"  - {where}.quality: {problem}"
        for where, model in _models(catalog, catalog.core_names if cores is None else cores)
        if model.quality is not None
        for problem in _problems(catalog, model, model.quality, cache_dir)
    ]
    if problems:
        raise CatalogError(
            f"catalogue '{catalog.name}' has models that are worse than it allows:\n" + "\n".join(problems)
        )


def _models(catalog: Catalog, cores: Collection[str]) -> Iterator[tuple[str, Gated]]:
    if CPU_CORE in cores:
        for model in catalog.core.models:
            yield f"core.models '{model.name}'", model
    for group in catalog.served_groups:
        for on_cards in group.models if group.name in cores else ():
            yield f"gpu_groups '{group.name}'.models '{on_cards.name}'", on_cards


def _problems(catalog: Catalog, model: Gated, gate: QualityGate, cache_dir: Path) -> Iterator[str]:
    compute = model.compute if isinstance(model, ModelSpec) else _SAME_ON_CPU.get(model.compute)
    if compute is None:
        yield (
            f"comparisons cannot compute as cards do with compute {model.compute}, so no report shows what it loses; "
            "leave the table out, or choose other weights"
        )
        return
    again = f"make it with: aio quality compare FULL_PRECISION {model.path} --compute {compute} --report FILE"
    try:
        report = read_report(Path(gate.report).expanduser())
        path = resolve_model_path(model.path)
        fingerprint = file_fingerprint(path, cache_dir)
        rounded = isinstance(model, GpuModelSpec) and model.compute == "int8" and not _holds_int8(path, cache_dir)
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
    if measured.compute != compute:
        yield f"{gate.report} was measured with compute = {measured.compute}, not {compute}; {again}"
        return
    if rounded:
        yield f"{model.path} is rounded to INT8 when it is loaded, which its report does not show; quantise it first"
    yield from (f"{gate.report}: {problem}" for problem in shortfalls(report, gate))
    yield from _unmeasured_reasoning(catalog, model, gate, report)


def _holds_int8(path: Path, cache_dir: Path) -> bool:
    """Whether all projections of a file have codes of 8 bits already."""
    tensors = open_checkpoint(path, cache_dir).tensors.items()
    return all(t.kind == "S8" for name, t in tensors if name.startswith("model.layers.") and len(t.shape) == 2)


def _unmeasured_reasoning(catalog: Catalog, model: Gated, gate: QualityGate, report: QualityReport) -> Iterator[str]:
    thinkers = [t.name for t in catalog.tiers if t.model == model.name and isinstance(t.policy, ChainOfThoughtSpec)]
    if thinkers and report.questions is None:
        yield (
            f"{gate.report} has no score of final answers, and {', '.join(thinkers)} reasons with this model; "
            "run the comparison with --questions"
        )
