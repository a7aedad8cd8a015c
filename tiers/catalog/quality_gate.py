"""The quality gate: a quantised model serves only with a passing report on the same weights and arithmetic, unless the
catalogue says by name that it has none, or others quantised the file.

Such a file serves as not measured until it is measured once here; `require_report` in the catalogue refuses it.
"""

import logging
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.model_file import file_fingerprint
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import PLAIN_DTYPES
from inference_core.model_spec import DeviceScheme, MeasuredCompute, ModelSpec, QualityGate
from inference_core.quantization.quality_report import (
    DEFAULT_LIMITS,
    QualityReport,
    Use,
    limits_of,
    read_quantization_record,
    read_report,
    shortfalls,
    usual_report,
)
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.gpu_group import GpuModelSpec
from tiers.catalog.tier_spec import ChainOfThoughtSpec
from tiers.errors import CatalogError

logger = logging.getLogger(__name__)
Gated = ModelSpec | GpuModelSpec
Packed = Callable[[Path], bool]
# `aio quality compare` computes on the CPU: the arithmetic there with a device's weights and rounding of activations.
_SAME_ON_CPU: dict[DeviceScheme, MeasuredCompute] = {
    "dense": "bfloat16", "int4": "int4", "int8": "int8", "fp8": "fp8", "fp8-blocks": "fp8",
}  # fmt: skip
_QUANTISED_CACHES = ("int8", "fp8")


def require_quality(catalog: Catalog, cache_dir: Path, cores: Collection[str] | None = None) -> None:
    """Raise CatalogError naming every model whose quality report is missing, for other weights, or worse than the
    bounds of its use allow (SPEC QZ-09, QZ-11), with the command that makes the report.

    Asked are the models that answer and have fewer than 16 bits for a weight, an activation or a number of the KV
    cache, and those with a `quality` table. A draft changes no token, so it needs none. A model that the catalogue
    names in `unmeasured` is served with a warning in the log. `cores` names the cores to serve here; None is all of the
    catalogue's. Content hashes are cached under `cache_dir`. Files that others quantised are served with a warning,
    since their makers answer for them, unless the catalogue has `require_report`.
    """
    packed = _packed_by_path(cache_dir)
    problems: list[str] = []
    for where, model in _models(catalog, catalog.core_names if cores is None else cores):
        for problem in _problems(catalog, model, cache_dir, packed):
            if _is_tolerated(catalog, model, packed):
                logger.warning("model '%s' was quantised by others: %s", model.name, problem)
            else:
                problems.append(f"  - {where}.quality: {problem}")
    if problems:
        raise CatalogError(
            f"catalogue '{catalog.name}' has models whose quality is not shown to be good enough:\n"
            + "\n".join(problems)
            + '\nTo serve one all the same, say so in the catalogue: [unmeasured] with "NAME OF THE MODEL" = "REASON".'
        )


def without_report(catalog: Catalog, cache_dir: Path, *, refused: bool = True) -> list[str]:
    """Return the models that `require_quality` would refuse for lack of any report, by name. Files that cannot be read
    are left out. `refused` False: those, too, that others quantised, which it serves with a warning."""
    names: list[str] = []
    packed = _packed_by_path(cache_dir)
    for _, model in _models(catalog, catalog.core_names):
        try:
            path = resolve_model_path(model.path)
            named = model.name in catalog.unmeasured or model.quality is not None
            tolerated = refused and _is_tolerated(catalog, model, packed)
            if named or tolerated or not _is_quantised(model, path, packed):
                continue
            compute = _compute_of(model)
            if _report_of(QualityGate(), path, file_fingerprint(path, cache_dir), compute) is None:
                names.append(model.name)
        except ModelFileError:
            continue
    return names


class OthersModel(NamedTuple):
    """A served model that others quantised."""

    name: str
    path: Path
    compute: MeasuredCompute
    report: QualityReport | None
    """What was measured of it on this machine; None before."""
    report_path: Path
    """Where the report is kept."""

    @property
    def doubt(self) -> str | None:
        """Why its quality is not known to be good enough for chats; None where it is."""
        if self.report is None:
            return "not measured: others quantised it"
        lost = shortfalls(self.report, DEFAULT_LIMITS["chat"])
        return f"measured here, it loses too much for chats: {'; '.join(lost)}" if lost else None


def models_of_others(catalog: Catalog, cache_dir: Path) -> list[OthersModel]:
    """Return the models of the catalogue's cores that others quantised, without those that have a report next to the
    file or in the package, and without files that are missing or cannot be read."""
    models: list[OthersModel] = []
    packed = _packed_by_path(cache_dir)
    for _, model in _models(catalog, catalog.core_names):
        try:
            path, compute = resolve_model_path(model.path), _compute_of(model)
            if model.name in catalog.unmeasured or not _is_others(model, path, packed):
                continue
            fingerprint = file_fingerprint(path, cache_dir)
            if _report_of(QualityGate(), path, fingerprint, compute) is not None:
                continue
            kept = report_kept(cache_dir, fingerprint, compute)
            report = read_report(kept) if kept.exists() else None
        except ModelFileError:
            continue
        models.append(OthersModel(model.name, path, compute, report, kept))
    return models


def report_kept(cache_dir: Path, fingerprint: str, compute: MeasuredCompute) -> Path:
    """Return where the report of weights that were measured in the background is kept, whatever the file is called."""
    return cache_dir / "quality" / f"{fingerprint}.{compute}.quality.json"


def _models(catalog: Catalog, cores: Collection[str]) -> Iterator[tuple[str, Gated]]:
    """The models of `cores` that answer, with their places in the catalogue."""
    answering = {tier.model for tier in catalog.tiers} | {embedding.model for embedding in catalog.embeddings}
    if CPU_CORE in cores:
        for model in catalog.core.models:
            if model.name in answering:
                yield f"core.models '{model.name}'", model
    for group in catalog.served_groups:
        for on_cards in group.models if group.name in cores else ():
            if on_cards.name in answering:
                yield f"gpu_groups '{group.name}'.models '{on_cards.name}'", on_cards


def _problems(catalog: Catalog, model: Gated, cache_dir: Path, packed: Packed) -> Iterator[str]:
    if (reason := catalog.unmeasured.get(model.name)) is not None:
        logger.warning("model '%s' is served without a quality report: %s", model.name, reason)
        return
    try:
        path = resolve_model_path(model.path)
        if model.quality is None and not _is_quantised(model, path, packed):
            return
    except ModelFileError:
        return  # A missing or broken file is reported by whatever loads it.
    compute = _compute_of(model)
    gate = model.quality or QualityGate()
    usual = usual_report(path, compute)
    again = f"make a report with: {_command(model, compute, usual if gate.report is None else Path(gate.report))}"
    try:
        fingerprint = file_fingerprint(path, cache_dir)
        reported = _report_of(gate, path, fingerprint, compute)
        kept = report_kept(cache_dir, fingerprint, compute)
        if reported is None and kept.exists() and _is_others(model, path, packed):
            reported = str(kept), read_report(kept)
    except ModelFileError as error:
        yield f"{error}; {again}"
        return
    if reported is None and _is_others(model, path, packed):
        yield f"nothing was measured of it here; {again}"
        return
    if reported is None:
        yield f"nothing shows what {_what(model, compute)} loses: no report is shipped, and none is at {usual}; {again}"
        return
    origin, report = reported
    measured = report.candidate
    if measured.fingerprint != fingerprint:
        yield (
            f"{origin} is of other weights ({measured.path}, content {measured.fingerprint}) than {model.path} "
            f"(content {fingerprint}); {again}"
        )
        return
    if measured.compute != compute:
        yield f"{origin} was measured with compute = {measured.compute}, not {compute}; {again}"
        return
    if measured.kv_dtype != model.kv_dtype and {measured.kv_dtype, model.kv_dtype} & set(_QUANTISED_CACHES):
        yield f"{origin} was measured with kv_dtype = {measured.kv_dtype}, not {model.kv_dtype}; {again}"
        return
    thinkers = _thinkers(catalog, model)
    if thinkers and report.questions is None:
        yield (
            f"{origin} has no score of final answers, and {', '.join(thinkers)} reasons with this model; "
            "run the comparison with --questions"
        )
        return
    use: Use = "reasoning" if thinkers else "chat"
    refused = shortfalls(report, limits_of(gate, use))
    yield from (f"{origin}: {problem} for {use}" for problem in refused)
    if not refused:
        _log_passed(model, use, report)


def _thinkers(catalog: Catalog, model: Gated) -> list[str]:
    """Return the names of the tiers that reason with the model."""
    return [t.name for t in catalog.tiers if t.model == model.name and isinstance(t.policy, ChainOfThoughtSpec)]


def _is_tolerated(catalog: Catalog, model: Gated, packed: Packed) -> bool:
    """Return whether a model serves whatever its report says or lacks: others quantised it."""
    if catalog.require_report:
        return False
    try:
        return _is_others(model, resolve_model_path(model.path), packed)
    except ModelFileError:
        return False


def _compute_of(model: Gated) -> MeasuredCompute:
    return model.compute if isinstance(model, ModelSpec) else _SAME_ON_CPU[model.compute]


def _packed_by_path(cache_dir: Path) -> Packed:
    """Return whether a path's weights have fewer than 16 bits; each is opened once, whatever models share it."""

    def packed(path: Path) -> bool:
        tensors = open_checkpoint(path, cache_dir).tensors.items()
        return any(t.kind not in PLAIN_DTYPES for name, t in tensors if name.startswith("model.layers."))

    return cache(packed)


def _is_quantised(model: Gated, path: Path, packed: Packed) -> bool:
    """Return whether a weight, an activation or a number of the KV cache has fewer than 16 bits."""
    if model.kv_dtype in _QUANTISED_CACHES or (isinstance(model, GpuModelSpec) and model.compute != "dense"):
        return True
    return packed(path)


def _is_others(model: Gated, path: Path, packed: Packed) -> bool:
    """Whether the file was quantised by somebody else, and nothing but its weights is rounded by the catalogue."""
    asks = model.quality is not None or model.kv_dtype in _QUANTISED_CACHES
    return not asks and packed(path) and read_quantization_record(path) is None


def _report_of(
    gate: QualityGate, path: Path, fingerprint: str, compute: MeasuredCompute
) -> tuple[str, QualityReport] | None:
    """The report that the catalogue names, else the one next to the model, else a shipped one of the same weights and
    arithmetic, each with its name. Raises ModelFileError for a file that is not a report."""
    usual = usual_report(path, compute)
    if gate.report is not None:
        return gate.report, read_report(Path(gate.report).expanduser())
    if usual.exists():
        return str(usual), read_report(usual)
    return _shipped_reports().get((fingerprint, compute))


@cache
def _shipped_reports() -> Mapping[tuple[str, str], tuple[str, QualityReport]]:
    """Return the package's reports with their names, by the weights and the arithmetic that they are of."""
    with resources.as_file(resources.files("tiers.catalogs")) as folder:
        files = sorted(folder.glob("*.quality.json"), reverse=True)
        named = [(file.name, read_report(file)) for file in files]
    return {(report.candidate.fingerprint, report.candidate.compute): (name, report) for name, report in named}


def _what(model: Gated, compute: MeasuredCompute) -> str:
    stored = f"{model.weights} weights" if isinstance(model, GpuModelSpec) else model.path
    cache = f" and a KV cache in {model.kv_dtype}" if model.kv_dtype in _QUANTISED_CACHES else ""
    return f"{stored} computed as {compute}{cache}"


def _command(model: Gated, compute: MeasuredCompute, report: Path) -> str:
    kept = ["--kv-dtype", model.kv_dtype] if model.kv_dtype in _QUANTISED_CACHES else []
    words = ["aio", "quality", "compare", "FULL_PRECISION", model.path, "--compute", compute, *kept, "--report"]
    return shlex.join([*words, str(report)])


def _log_passed(model: Gated, use: Use, report: QualityReport) -> None:
    """Log what the report shows, and against what: against its own weights only the arithmetic is measured."""
    alone = report.reference.fingerprint == report.candidate.fingerprint
    logger.info(
        "model '%s' passes the quality gate for %s: perplexity %+.2f%%, hidden states %.4f against %s",
        model.name,
        use,
        report.text.perplexity_rise * 100,
        report.text.hidden_cosine,
        "its own weights in full arithmetic" if alone else report.reference.path,
    )
