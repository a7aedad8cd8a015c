"""What the fast path for short prompts saves: decisions and first tokens with it and without, by real tiers here."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import numpy as np

from gateway.base.settings import Settings
from gateway.inference.catalogue.class_prior import class_prior
from gateway.inference.routing.classifier_versions import ActiveClassifier
from gateway.inference.routing.knobs import RoutingKnobFile
from gateway.inference.routing.router import RoutingService
from gateway.inference.service import RecordSink, Service
from gateway.planning.backtests.backtest import dry_request
from gateway.planning.load_test.workload import Prompts
from gateway.runtime.cores.engine import running_engine
from inference_core.tokenization.tokenizer import Tokenizer
from quality.records.record import Record
from tiers.catalog.load import load_catalog
from tiers.errors import CatalogError
from tiers.tier import ChatMessage

Path = Literal["edge", "ordinary"]
Progress = Callable[[str, float], None]
WARM_UP = 4


class Milliseconds(msgspec.Struct, frozen=True):
    """Of all requests on one path."""

    p50: float
    p99: float


class EdgeRow(msgspec.Struct, frozen=True, kw_only=True):
    """`decided`: from arrival to the decision; `first_token`: to the first token, the tier's work included. `tiers`:
    which ones answered."""

    path: Path
    requests: int
    tiers: list[int]
    decided: Milliseconds
    first_token: Milliseconds


async def bench_edge(
    settings: Settings, *, requests: int, prompt_tokens: int, new_tokens: int, progress: Progress
) -> list[EdgeRow]:
    """`requests` each way in turn, one at a time, each another prompt of exactly `prompt_tokens` tokens of tier 1.

    Raises `CatalogError` if tier 1 does not run in process.
    """
    knobs = RoutingKnobFile()
    records: list[Record] = []
    async with own_service(settings, knobs, lambda answer, record: records.append(record)) as service:
        tokenizer = service.routing.served.tier(1).tokenizer
        if tokenizer is None:
            raise CatalogError(f"catalogue '{settings.catalog}': tier 1 does not run here, so there is no fast path")
        texts = prompts_of(tokenizer, prompt_tokens)
        for number in range(-WARM_UP, requests):
            for limit in (prompt_tokens, 0):
                knobs.change({"edge_max_prompt_tokens": limit, "edge_max_new_tokens": new_tokens})
                turns = [ChatMessage(role="user", content=next(texts))]
                request = dry_request(turns, max_tokens=new_tokens, stream=True)
                await (await service.start(request.with_generation(arrival=time.monotonic()))).whole()
            if number < 0:
                records.clear()
            progress("answering", max(number + 1, 0) / requests)
    return [_row("edge", records[::2]), _row("ordinary", records[1::2])]


@asynccontextmanager
async def own_service(settings: Settings, knobs: RoutingKnobFile, finished: RecordSink) -> AsyncIterator[Service]:
    """The gateway without HTTP, over the catalogue's own tiers; `finished` is called with every answer."""
    catalog = load_catalog(settings.catalog)
    classifier = ActiveClassifier(
        settings.registry_path, catalog.fingerprint, prior=class_prior(catalog, settings.data_path)
    )
    await asyncio.to_thread(classifier.load)
    async with running_engine(settings, catalog) as engine:
        routing = RoutingService(catalog, engine.tiers, classifier, settings.quality_target, knobs)
        yield Service(routing, [finished])


def prompts_of(tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """Endless prompts of so many tokens, no two alike."""
    words = Prompts(seed=11, shared_prefix=0)
    while True:
        text = words.draw(tokens)
        while len(tokenizer.encode(text)) > tokens:
            text = text.rpartition(" ")[0]
        if len(tokenizer.encode(text)) == tokens:
            yield text


def _row(path: Path, records: Sequence[Record]) -> EdgeRow:
    return EdgeRow(
        path=path,
        requests=len(records),
        tiers=sorted({record.tier for record in records}),
        decided=_milliseconds([record.timings.route_ms for record in records]),
        first_token=_milliseconds([record.timings.ttft_ms or record.timings.e2e_ms for record in records]),
    )


def _milliseconds(values: list[float]) -> Milliseconds:
    p50, p99 = np.percentile(values, (50, 99))
    return Milliseconds(round(float(p50), 3), round(float(p99), 3))
