"""`aio bench tradeoffs`: what each arithmetic and each KV cache of a model gives and costs on this machine."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count
from gateway.base.settings import Settings
from gateway.cli.options import echo_json, json_option, staged_progress, table, with_settings
from gateway.cli.planning.bench import ManyNumbers, show_progress
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from gateway.planning.load_test.tradeoffs import Setting, Tradeoff


class TradeoffOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio bench tradeoffs`."""

    model: str | None = None
    """Model of the catalogue's CPU core. [its first]"""
    setting: Annotated[tuple[str, ...], Meta(title="COMPUTE/CACHE")] = ()
    """An arithmetic and a KV cache, such as int4-int8/bfloat16. May be repeated. [each arithmetic, each cache]"""
    concurrency: Annotated[tuple[Count, ...], Meta(title="N...")] = (1, 8)
    """Requests in flight."""
    prompt_tokens: Count = 128
    """Words per prompt, about one token each."""
    output_tokens: Count = 64
    """Tokens of an answer."""
    text_tokens: Annotated[int, Meta(ge=2)] = 1024
    """Tokens of prose that settings are compared on."""


@click.command(cls=ManyNumbers)
@options_of(TradeoffOptions)
@with_settings("catalog", "cache_dir")
@json_option
def tradeoffs(options: TradeoffOptions, settings: Settings, as_json: bool) -> None:
    """Measure a model of the CPU core in each arithmetic and with each KV cache: speed, memory and quality.

    Quality is that of the same file in float32: perplexity on the package's prose, and first tokens of short questions.

    Example: aio bench tradeoffs --setting int4-int8/bfloat16 --setting bfloat16/bfloat16
    """
    rows = asyncio.run(_measured(options, settings))
    if as_json:
        echo_json(rows)
    else:
        click.echo(_shown(rows, options.concurrency))


async def _measured(options: TradeoffOptions, settings: Settings) -> "list[Tradeoff]":
    from gateway.planning.load_test import BenchOptions
    from gateway.planning.load_test.run import model_of
    from gateway.planning.load_test.tradeoffs import tradeoffs as measured
    from gateway.planning.load_test.tradeoffs import usual_settings
    from quality.evaluation.effort import Effort
    from tiers.catalog.core_spec import core_spec
    from tiers.catalog.load import load_catalog

    core = core_spec(load_catalog(settings.catalog))
    spec = model_of(core, options.model)
    load = BenchOptions(
        concurrency=options.concurrency, prompt_tokens=options.prompt_tokens, output_tokens=options.output_tokens
    )
    chosen = [_setting(text) for text in options.setting] or usual_settings(spec)
    with staged_progress("comparing") as progress:
        return [
            row
            async for row in measured(
                core,
                spec,
                settings.cache_path,
                chosen,
                load,
                Effort(text_tokens=options.text_tokens, generations=0),
                measuring=show_progress,
                comparing=progress,
            )
        ]


def _setting(text: str) -> "Setting":
    """Raises UsageError for what is no setting."""
    from gateway.planning.load_test.tradeoffs import CACHES, COMPUTES, Setting

    compute, _, cache = text.partition("/")
    try:
        return msgspec.convert({"compute": compute, "kv_dtype": cache}, Setting)
    except msgspec.ValidationError as error:
        raise click.UsageError(
            f"--setting {text}: expected COMPUTE/CACHE with COMPUTE of {', '.join(COMPUTES)} and CACHE of "
            f"{', '.join(CACHES)}"
        ) from error


def _shown(rows: "list[Tradeoff]", levels: tuple[int, ...]) -> str:
    speeds = [f"tokens/s, {level}" for level in levels]
    head = [
        "arithmetic",
        "KV cache",
        "weights MB",
        "KV bytes a token",
        *speeds,
        "first token ms",
        "perplexity",
        "top 1",
    ]
    return table(
        [*head, "first tokens"],
        [
            [
                row.compute,
                row.kv_dtype,
                f"{row.weights_mb:,.0f}",
                f"{row.kv_bytes_per_token:,}",
                *(f"{row.tokens_per_second[level]:.1f}" for level in levels),
                f"{row.ttft_p50_ms[levels[0]]:.0f}",
                f"{row.perplexity_rise:+.2%}",
                f"{row.top1:.1%}",
                f"{row.same_first_token:.0%}",
            ]
            for row in rows
        ],
    )
