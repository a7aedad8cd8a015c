"""What the tiers of one catalogue got right of the everyday tasks, per task and tier; kept without any text.

The tasks come from a seed (`everyday_tasks`), so a file of results is small and its rows can be made again.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from inference_core.io.atomic_file import atomic_file
from quality.evaluation.everyday_tasks import EverydayTask, everyday_tasks, is_right
from quality.evaluation.tier_accuracy import ANSWER_TOKENS, ask
from tiers.catalog.catalog import Catalog
from tiers.tier import Tier

Progress = Callable[[str, float], None]


class EverydayOutcomesError(ValueError):
    """A file of results that does not belong to this program's tasks or to this catalogue. The message says which."""


class TierScores(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's results: `scores[i]` is 1 if it answered task i rightly, else 0; `tokens[i]` is what it billed for it,
    thoughts and samples included. `fingerprint` is `Catalog.tier_fingerprint`."""

    fingerprint: str
    scores: list[int]
    tokens: list[int]


class EverydayOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the tasks `everyday_tasks(seed, per_level)`, in their order, by tier number.

    `tasks_sha256`: of those tasks, so that a changed generator is noticed. `kernels`: the instruction set that computed
    the answers; another one rounds otherwise, and a near tie may fall the other way. `answer_tokens` bounds an answer,
    thinking not counted.
    """

    catalog: str
    fingerprint: str
    seed: int
    per_level: int
    tasks_sha256: str
    answer_tokens: int
    kernels: str
    measured_at: datetime
    tiers: dict[int, TierScores] = {}

    def tasks(self) -> list[EverydayTask]:
        """The tasks that the scores are of. Raises `EverydayOutcomesError` if the generator makes others by now."""
        made = everyday_tasks(self.seed, self.per_level)
        if tasks_digest(made) != self.tasks_sha256:
            raise EverydayOutcomesError("the results are of other tasks than this program generates; measure again")
        return made


def tasks_digest(tasks: Sequence[EverydayTask]) -> str:
    """SHA-256 of tasks and their answers."""
    return hashlib.sha256(msgspec.json.encode(tasks)).hexdigest()


def begun_outcomes(catalog: Catalog, seed: int, per_level: int, kernels: str) -> EverydayOutcomes:
    """Results without any tier yet. Raises ValueError where so many different tasks do not exist."""
    return EverydayOutcomes(
        catalog=catalog.name,
        fingerprint=catalog.fingerprint,
        seed=seed,
        per_level=per_level,
        tasks_sha256=tasks_digest(everyday_tasks(seed, per_level)),
        answer_tokens=ANSWER_TOKENS,
        kernels=kernels,
        measured_at=datetime.now(UTC),
    )


async def measured_tier(
    tier: Tier, catalog: Catalog, tasks: Sequence[EverydayTask], concurrency: int, progress: Progress
) -> TierScores:
    """Ask every task of a started tier, `concurrency` at a time, with its own sampling but at temperature 0.

    Raises `TierMeasurementError` if the tier cannot answer.
    """
    spec = catalog.tier(tier.number)
    scores, tokens = [0] * len(tasks), [0] * len(tasks)
    waiting, done = iter(enumerate(tasks)), 0

    async def worker() -> None:
        nonlocal done
        for number, task in waiting:
            given = await ask(tier, spec, f"everyday-{tier.number}-{number}", task.prompt)
            scores[number], tokens[number] = int(is_right(task, given.text)), given.usage.completion_tokens
            done += 1
            progress(tier.name, done / len(tasks))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return TierScores(fingerprint=catalog.tier_fingerprint(tier.number), scores=scores, tokens=tokens)


def write_outcomes(outcomes: EverydayOutcomes, path: Path) -> None:
    """As JSON, whole or not at all. Raises OSError."""
    with atomic_file(path) as file:
        file.write(msgspec.json.encode(outcomes) + b"\n")


def read_outcomes(path: Path) -> EverydayOutcomes:
    """Raises `EverydayOutcomesError` for a file that is missing or holds something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EverydayOutcomes)
    except OSError as error:
        raise EverydayOutcomesError(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EverydayOutcomesError(f"{path} holds no results of everyday tasks: {error}") from error
