"""`aio quality compare`: figures of a quantised model against full precision, and a verdict for every use."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.cli.options import (
    FILE,
    NEW_FILE,
    cache_dir_option,
    echo_answer,
    json_option,
    settings_from,
    staged_progress,
    table,
)

if TYPE_CHECKING:
    from inference_core.model_spec import QualityLimits
    from inference_core.quantization.quality_report import QualityReport, Use

_ON_CPU = ["int4-int8", "int4", "bfloat16", "float32"]
_COMPUTE = click.Choice([*_ON_CPU, "int8", "fp8"])
_KV_DTYPE = click.Choice(["float32", "bfloat16", "int8", "fp8"])


@click.command()
@click.argument("reference")
@click.argument("candidate")
@click.option(
    "--compute", type=_COMPUTE, default="int4-int8", help="Arithmetic of CANDIDATE; int8 and fp8 are those of cards."
)
@click.option("--kv-dtype", type=_KV_DTYPE, default="bfloat16", help="KV cache; fp8 is of cards.")
@click.option("--reference-compute", type=click.Choice(_ON_CPU), default="float32")
@click.option("--reference-kv-dtype", type=_KV_DTYPE, default="float32")
@click.option("--text", type=FILE, help="UTF-8 text to measure on.  [pages of novels and essays in the public domain]")
@click.option("--tokens", type=click.IntRange(min=2), default=2048, help="Most tokens of the text.")
@click.option("--window", type=click.IntRange(min=2), default=512, help="Tokens per context.")
@click.option("--first-tokens", type=click.IntRange(0, 60), default=60, help="Short questions.")
@click.option("--generations", type=click.IntRange(min=0), default=16, help="Greedy continuations.")
@click.option("--generation-tokens", type=click.IntRange(min=1), default=64)
@click.option(
    "--questions", type=FILE, help="JSON lines with a prompt and a numeric answer.  [none: reasoning is not measured]"
)
@click.option("--questions-limit", type=click.IntRange(min=1), help="Most questions.  [all]")
@click.option("--answer-tokens", type=click.IntRange(min=1), default=256)
@click.option(
    "--limit",
    "changed",
    multiple=True,
    metavar="USE.NAME=VALUE",
    help="Override a limit, such as chat.max_perplexity_rise=0.05; VALUE none removes it.",
)
@click.option("--report", type=NEW_FILE, help="Write the report to this file as JSON.")
@cache_dir_option
@json_option
def compare(
    reference: str,
    candidate: str,
    questions: Path | None,
    questions_limit: int | None,
    changed: tuple[str, ...],
    text: Path | None,
    report: Path | None,
    cache_dir: str | None,
    as_json: bool,
    **options: Any,
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
    from quality.evaluation.quantised_model import ComparisonError, Effort, compare_models, read_questions

    limits = _limits(changed)
    settings = settings_from(cache_dir=cache_dir)
    effort = Effort(
        text_tokens=options["tokens"],
        window=options["window"],
        first_tokens=options["first_tokens"],
        generations=options["generations"],
        generation_tokens=options["generation_tokens"],
        answer_tokens=options["answer_tokens"],
    )
    try:
        with staged_progress("comparing") as progress:
            found = compare_models(
                Side(reference, Variant(options["reference_compute"], options["reference_kv_dtype"])),
                Side(candidate, Variant(options["compute"], options["kv_dtype"])),
                settings.cache_path,
                limits=limits,
                text=None if text is None else read_text_file(text),
                questions=[] if questions is None else read_questions(questions, questions_limit),
                effort=effort,
                progress=progress,
            )
    except ComparisonError as error:
        raise click.ClickException(str(error)) from error
    except NotUtf8Error as error:
        raise click.ClickException(f"{text} cannot be read: {error}") from error
    if report is not None:
        write_report(found, report)
    echo_answer(as_json, found, _shown(found))
    if not any(verdict.passes for verdict in found.verdicts):
        raise SystemExit(1)


def _limits(changed: tuple[str, ...]) -> "dict[Use, QualityLimits]":
    """Return the default limits, overridden by the given ones. Raises UsageError for an unknown limit."""
    from inference_core.model_spec import QualityLimits
    from inference_core.quantization.quality_report import DEFAULT_LIMITS

    limits = dict(DEFAULT_LIMITS)
    for entry in changed:
        place, _, value = entry.partition("=")
        use, _, name = place.partition(".")
        known = list(QualityLimits.__struct_fields__)
        if use not in limits or name not in known or not value:
            raise click.UsageError(
                f"--limit {entry}: expected USE.NAME=VALUE with USE of {', '.join(limits)} and NAME of "
                f"{', '.join(known)}"
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
