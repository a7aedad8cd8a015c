"""The live knobs of batches, for all processes of a data folder."""

from typing import Annotated

import msgspec
from msgspec import Meta


class BatchKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while lines are answered; bounds are enforced and descriptions shown."""

    concurrency: Annotated[
        Annotated[int, Meta(ge=0, le=4096)] | None,
        Meta(description="Lines that a process answers at once; 0 starts none, null is AIO_BATCH_CONCURRENCY."),
    ] = None
    most_attempts: Annotated[
        int, Meta(ge=1, le=100, description="How often a line is attempted before its failure becomes its answer.")
    ] = 8
    backoff_seconds: Annotated[
        float,
        Meta(ge=0.01, le=60, description="Delay before a retry, doubled each time up to 300 s, with jitter."),
    ] = 1.0
