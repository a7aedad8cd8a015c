"""Run the training process from the serving process: start it, read its progress, and end it with its caller; and the
messages between the two, exchanged as files."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from quality.child_process import child_process
from quality.comparison.decision_gain import Serving

ORDER, ROWS, RESULT = "order.json", "rows.safetensors", "result.json"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to train. The window is ISO 8601 or None."""

    root_artefact: str
    """The folder of the artefact that has the encoder."""
    incumbent: str
    """The folder of the version to beat."""
    registry: str
    catalogue_fingerprint: str
    models: dict[str, list[str | None]]
    """Names of the serving catalogue's models by tier, for the manifest."""
    window_start: str | None
    window_end: str | None
    seed: int
    look: int = 1
    """How many candidates of this deployment were judged with this one (`quality.comparison.association`)."""
    changes: dict[int, float] = {}
    """By tier, the time (epoch seconds) since when its answers are different."""
    prior: list[list[float]]
    """[4][tiers]: P(good enough) of the catalogue's tiers by class before learning."""
    serving: Serving
    """The costs and the target at which decisions are compared."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the process's standard output; `share` in [0, 1] of the work is done."""

    step: str
    share: float


OnProgress = Callable[[str, float], None]


class Train(Protocol):
    """Executes the order in `folder` and adds the result there; the candidate goes to the order's registry."""

    async def __call__(self, folder: Path, on_progress: OnProgress, *, timeout_seconds: float) -> None:
        """Execute the order. Raises `TrainingProcessError`."""


_ERROR_LINES = 20


class TrainingProcessError(RuntimeError):
    """The training process failed or ran too long; the message ends with its last output."""


async def run_training_process(folder: Path, on_progress: OnProgress, *, timeout_seconds: float) -> None:
    """Run `quality.retraining.process_main` on `folder` to its end. Raises `TrainingProcessError`."""
    try:
        async with (
            child_process("quality.retraining.process_main", str(folder), stdout=asyncio.subprocess.PIPE) as process,
            asyncio.timeout(timeout_seconds),
        ):
            assert process.stdout is not None
            assert process.stderr is not None
            last_words, _, code = await asyncio.gather(
                _tail(process.stderr), _listen(process.stdout, on_progress), process.wait()
            )
    except TimeoutError as error:
        raise TrainingProcessError(f"training took longer than {timeout_seconds:.0f} s and was stopped") from error
    if code != 0:
        raise TrainingProcessError(f"training ended with exit status {code}: {last_words}")


async def _listen(stream: asyncio.StreamReader, on_progress: OnProgress) -> None:
    async for line in stream:
        # Libraries may print other lines; only progress is ours.
        with suppress(msgspec.MsgspecError):
            progress = msgspec.json.decode(line, type=Progress)
            on_progress(progress.step, progress.share)


async def _tail(stream: asyncio.StreamReader) -> str:
    lines: deque[str] = deque(maxlen=_ERROR_LINES)
    async for line in stream:
        lines.append(line.decode(errors="replace").rstrip())
    return "\n".join(lines)
