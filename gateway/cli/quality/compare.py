"""`aio quality compare`: figures of a quantised model against full precision, and a verdict for every use."""

from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile, NewFile
from gateway.base.settings import Settings
from gateway.cli.options import (
    echo_answer,
    json_option,
    staged_progress,
    table,
    with_settings,
)
from gateway.cli.typed_options import options_of
from inference_core.kv_cache.layout import MeasuredKVDtype
from inference_core.model_spec import Compute, MeasuredCompute
from quality.evaluation.effort import Effort

if TYPE_CHECKING:
    from inference_core.model_spec import QualityLimits
    from inference_core.quantization.quality_report import QualityReport, Use


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio quality compare`, besides how much to measure."""

    compute: MeasuredCompute = "int4-int8"
    """Arithmetic of CANDIDATE. int8 and fp8 are arithmetic of cards."""
    kv_dtype: MeasuredKVDtype = "bfloat16"
    """Number format of CANDIDATE's KV cache. fp8 is a format of cards."""
    reference_compute: Compute = "float32"
    """Arithmetic of REFERENCE."""
    reference_kv_dtype: MeasuredKVDtype = "float32"
    """Number format of REFERENCE's KV cache."""
    text: ExistingFile | None = None
    """UTF-8 text to measure on. [pages of novels and essays in the public domain]"""
    questions: ExistingFile | None = None
    """JSON lines with a prompt and a numeric answer. [none: reasoning is not measured]"""
    questions_limit: Count | None = None
    """Maximum number of questions. [all]"""
    changed: Annotated[tuple[str, ...], Meta(title="USE.NAME=VALUE")] = msgspec.field(name="limit", default=())
    """Override a limit, such as chat.max_perplexity_rise=0.05. The value none removes it. May be repeated."""
    report: NewFile | None = None
    """Write the report to this file as JSON."""


@click.command()
@click.argument("reference")
@click.argument("candidate")
@options_of(CompareOptions)
@options_of(Effort, "effort")
@with_settings("cache_dir")
@json_option
def compare(
    reference: str, candidate: str, options: CompareOptions, effort: Effort, as_json: bool, settings: Settings
) -> None:
    """Compare CANDIDATE with REFERENCE, both a GGUF file or a Hugging Face folder with the same vocabulary.

    Perplexity, divergence and top-1 agreement on real text; cosine of the last hidden states; the first tokens of
    answers to short questions; ROUGE-L and BLEU of greedy continuations; right answers to questions. Exits with 1
    unless the candidate may be used for something.
    `aio serve` looks for the report at CANDIDATE.COMPUTE.quality.json.
    """
    from inference_core.io.files import NotUtf8Error, read_text_file
    from inference_core.quantization.quality_report import write_report
    from quality.evaluation.model_outputs import Side, Variant
    from quality.evaluation.quantised_model import ComparisonError, compare_models, read_questions

    limits = _limits(options.changed)
    try:
        with staged_progress("comparing") as progress:
            report = compare_models(
                Side(reference, Variant(options.reference_compute, options.reference_kv_dtype)),
                Side(candidate, Variant(options.compute, options.kv_dtype)),
                settings.cache_path,
                limits=limits,
                text=None if options.text is None else read_text_file(options.text),
                questions=[]
                if options.questions is None
                else read_questions(options.questions, options.questions_limit),
                effort=effort,
                progress=progress,
            )
    except ComparisonError as error:
        raise click.ClickException(str(error)) from error
    except NotUtf8Error as error:
        raise click.ClickException(f"{options.text} cannot be read: {error}") from error
    if options.report is not None:
        write_report(report, options.report)
    echo_answer(as_json, report, _shown(report))
    if not any(verdict.passes for verdict in report.verdicts):
        raise SystemExit(1)


def _limits(changed: tuple[str, ...]) -> "dict[Use, QualityLimits]":
    """Return the default limits, overridden by the given ones. Raises UsageError for an unknown limit."""
    from inference_core.model_spec import QualityLimits
    from inference_core.quantization.quality_report import DEFAULT_LIMITS

    limits = dict(DEFAULT_LIMITS)
    for entry in changed:
        limit, _, value = entry.partition("=")
        use, _, name = limit.partition(".")
        names = list(QualityLimits.__struct_fields__)
        if use not in limits or name not in names or not value:
            raise click.UsageError(
                f"--limit {entry}: expected USE.NAME=VALUE with USE of {', '.join(limits)} and NAME of "
                f"{', '.join(names)}"
            )
        bounds = msgspec.to_builtins(limits[use]) | {name: None if value == "none" else value}
        try:
            limits[use] = msgspec.convert(bounds, QualityLimits, strict=False)
        except msgspec.ValidationError as error:
            raise click.UsageError(f"--limit {entry}: {error}") from error
    return limits


def _shown(report: "QualityReport") -> str:
    rows: list[list[str]] = []
    for figures in (report.text, report.first_tokens, report.generations, report.questions):
        if figures is not None:
            rows += [[name, _number(getattr(figures, name))] for name in figures.__struct_fields__ if name != "sha256"]
    verdicts = [
        [verdict.use, "passes" if verdict.passes else "refused", "; ".join(verdict.reasons)]
        for verdict in report.verdicts
    ]
    candidate = f"{report.candidate.path} ({report.candidate.compute}, {report.candidate.kv_dtype})"
    reference = f"{report.reference.path} ({report.reference.compute}, {report.reference.kv_dtype})"
    head = f"{candidate} against {reference}"
    return "\n\n".join([head, table(["figure", "value"], rows), table(["use", "verdict", "why"], verdicts)])


def _number(value: float) -> str:
    return f"{value}" if isinstance(value, int) else f"{value:.5f}"
