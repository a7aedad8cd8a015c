"""What each way of quantising loses on one model: size, text, and right sums (SPEC QZ-01 to QZ-06, QZ-11).

Every copy is made by `aio quantize`'s own code and compared as `aio quality compare` does. Shares of right answers and
of agreement are the same however busy the machine is.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.report.measurement import Measurement
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.model_spec import MeasuredCompute
from inference_core.quantization.awq import AWQ, RoundToNearest
from inference_core.quantization.calibration import CalibrationText
from inference_core.quantization.eight_bit import FP8, SmoothQuant
from inference_core.quantization.gptq import GPTQ
from inference_core.quantization.method import QuantizationMethod
from inference_core.quantization.quality_report import DEFAULT_LIMITS
from inference_core.quantization.quantize_model import quantize_model
from quality.evaluation.model_outputs import Side, Variant
from quality.evaluation.quantised_model import Effort, Question, compare_models

# How a copy is made (None: the model's own file), and the arithmetic that reads it.
_WAYS: dict[str, tuple[Callable[[], QuantizationMethod] | None, MeasuredCompute]] = {
    "as it is, INT4 weights and INT8 activations": (None, "int4-int8"),
    "RTN, 4 bits": (RoundToNearest, "int4"),
    "AWQ, 4 bits": (AWQ, "int4"),
    "GPTQ, 4 bits": (GPTQ, "int4"),
    "SmoothQuant, INT8": (SmoothQuant, "int8"),
    "FP8, E4M3": (FP8, "fp8"),
}
WAYS = tuple(_WAYS)
# Windows of the calibration text.
SAMPLES = 16
_EFFORT = Effort(text_tokens=1024, generations=0, first_tokens=0, answer_tokens=32)


class QuantisedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way against the model's weights in float32. `smaller`: linear layers in 16 bits over those of the copy, None
    without a copy. `loss`: share of right sums lost; `p_value`: how likely that many are lost by chance."""

    way: str
    compute: str
    smaller: float | None
    perplexity_rise: float
    hidden_cosine: float
    top1: float
    questions: int
    reference_right: int
    right: int
    loss: float
    p_value: float


class QuantisedResults(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of `WAYS`."""

    rows: list[QuantisedRow]


def compare_ways(
    path: str,
    cache_dir: Path,
    calibration: CalibrationText,
    questions: Sequence[Question],
    measurement: Measurement,
    *,
    ways: Sequence[str] = WAYS,
    samples: int = SAMPLES,
    effort: Effort = _EFFORT,
    progress: Callable[[str], None] = lambda way: None,
) -> QuantisedResults:
    """Compare the model of `path` with itself quantised in each of `ways` that `measurement` lacks, and finish it.

    Raises QuantizationError and ModelFileError.
    """
    for way in ways:
        if measurement.find(way=way) is None:
            progress(way)
            row = _compared(path, cache_dir, calibration, questions, way, samples, effort)
            measurement.add(msgspec.to_builtins(row))
    results = QuantisedResults(rows=[msgspec.convert(row, QuantisedRow) for row in measurement.rows])
    measurement.finish(msgspec.to_builtins(results))
    return results


def _compared(
    path: str,
    cache_dir: Path,
    calibration: CalibrationText,
    questions: Sequence[Question],
    way: str,
    samples: int,
    effort: Effort,
) -> QuantisedRow:
    method, compute = _WAYS[way]
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        copy, smaller = path, None
        if method is not None:
            copy = str(Path(folder) / "model")
            source = resolve_model_path(path)
            written = quantize_model(
                source, Path(copy), method(), calibration, samples=samples, cache_dir=Path(folder) / "cache"
            )
            smaller = written.source_bytes / written.linear_bytes
        cache = cache_dir if method is None else Path(folder) / "cache"
        report = compare_models(
            Side(path, Variant("float32", "float32")),
            Side(copy, Variant(compute, "bfloat16")),
            cache,
            limits=DEFAULT_LIMITS,
            questions=questions,
            effort=effort,
        )
    text, asked = report.text, report.questions
    assert text is not None
    assert asked is not None
    return QuantisedRow(
        way=way, compute=compute, smaller=smaller, perplexity_rise=text.perplexity_rise,
        hidden_cosine=text.hidden_cosine, top1=text.top1, questions=asked.questions,
        reference_right=asked.reference_right, right=asked.right, loss=asked.loss, p_value=asked.p_value,
    )  # fmt: skip
