"""Scores of one catalogue's tiers on the everyday tasks, per task and tier, stored without texts; known before its
first request. The catalogues laptop and ladder ship with theirs (`tiers/catalogs`); `aio classifier measure` measures
any other catalogue and stores the results in the data folder.

The tasks are generated from a seed (`everyday_tasks`), so a file of results is small and its tasks can be regenerated.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path

import msgspec
import numpy as np

from classifier.class_predictor import ClassPredictor
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import ClassTable, measured_table
from classifier.registry.artefact import default_artefact, load_artefact
from inference_core.io.files import atomic_file, prepare_types
from quality.evaluation.everyday_tasks import EverydayTask, everyday_tasks, is_right
from quality.evaluation.tier_accuracy import ANSWER_TOKENS, ask, in_turn
from tiers import catalogs
from tiers.catalog.catalog import Catalog
from tiers.tier import Tier

Progress = Callable[[str, float], None]
log = logging.getLogger(__name__)
SHIPPED = Path(catalogs.__file__).parent
OWN_FOLDER = "measured"


class EverydayOutcomesError(ValueError):
    """A file of results does not match this program's tasks or this catalogue; the message says which."""


class TierScores(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's results."""

    fingerprint: str
    """`Catalog.tier_fingerprint`."""
    scores: list[int]
    """For each task, 1 if its answer was right, else 0."""
    tokens: list[int]
    """For each task, the tokens that it billed, reasoning and samples included."""


class TaskClasses(msgspec.Struct, frozen=True):
    """P of the four complexity classes of every task, by the `version` of the classifier that ships."""

    version: str
    p: list[tuple[float, float, float, float]]


class EverydayOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Results on the tasks `everyday_tasks(seed, per_level)`, in their order, by tier number."""

    catalog: str
    fingerprint: str
    seed: int
    per_level: int
    tasks_sha256: str
    """Digest of the tasks, which detects a changed generator."""
    answer_tokens: int
    """Limit of an answer without reasoning."""
    kernels: str
    """The instruction set that computed the answers; another one rounds differently and may break near ties
    differently.
    """
    measured_at: datetime
    tiers: dict[int, TierScores] = {}
    classes: TaskClasses | None = None
    """Kept because a start takes a twentieth of a second to find them."""

    def tasks(self) -> list[EverydayTask]:
        """Regenerate the tasks of the scores. Raises `EverydayOutcomesError` if the generator has changed."""
        made = everyday_tasks(self.seed, self.per_level)
        if tasks_digest(made) != self.tasks_sha256:
            raise EverydayOutcomesError("the results are of other tasks than this program generates; measure again")
        return made


prepare_types(EverydayOutcomes)


def tasks_digest(tasks: Sequence[EverydayTask]) -> str:
    """Return the SHA-256 of tasks and their answers."""
    return hashlib.sha256(msgspec.json.encode(tasks)).hexdigest()


def begun_outcomes(catalog: Catalog, seed: int, per_level: int, kernels: str) -> EverydayOutcomes:
    """Return results without tiers. Raises ValueError if there are fewer different tasks."""
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
    asked = [(task.prompt, partial(is_right, task)) for task in tasks]
    scores, tokens = await asked_scores(tier, catalog, asked, concurrency, progress)
    return TierScores(fingerprint=catalog.tier_fingerprint(tier.number), scores=scores, tokens=tokens)


async def asked_scores(
    tier: Tier,
    catalog: Catalog,
    asked: Sequence[tuple[str, Callable[[str], bool]]],
    concurrency: int,
    progress: Progress,
) -> tuple[list[int], list[int]]:
    """Return, for every prompt of `asked`, 1 or 0 by what its rule says of the answer, and the billed tokens of the
    answer; see `measured_tier`."""
    spec = catalog.tier(tier.number)

    async def score(number: int, question: tuple[str, Callable[[str], bool]]) -> tuple[int, int]:
        prompt, rule = question
        answer = await ask(tier, spec, f"everyday-{tier.number}-{number}", prompt)
        return int(rule(answer.text)), answer.usage.completion_tokens

    scored = await in_turn(asked, concurrency, score, partial(progress, tier.name))
    return [right for right, _ in scored], [tokens for _, tokens in scored]


def write_outcomes(outcomes: EverydayOutcomes, path: Path) -> None:
    """Write results as JSON, atomically. Raises OSError."""
    with atomic_file(path) as file:
        file.write(msgspec.json.encode(outcomes) + b"\n")


def read_outcomes(path: Path) -> EverydayOutcomes:
    """Read results. Raises `EverydayOutcomesError` for a file that is missing or invalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EverydayOutcomes)
    except OSError as error:
        raise EverydayOutcomesError(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EverydayOutcomesError(f"{path} holds no results of everyday tasks: {error}") from error


def with_measured(prior: ClassTable, catalog: Catalog, folders: Sequence[Path]) -> ClassTable:
    """Return `prior` with the results of all tiers of `catalog`, from the newest matching file in `folders` or else
    from the shipped ones; unchanged if there are none. An unusable file is skipped and logged."""
    wanted = [catalog.tier_fingerprint(tier.number) for tier in catalog.tiers]
    for paths in (*(folder.glob("*.json") for folder in folders), SHIPPED.glob("*_outcomes.json")):
        fitting = [measured for path in sorted(paths) if (measured := _of_tiers(path, wanted)) is not None]
        if fitting:
            newest = max(fitting, key=lambda outcomes: outcomes.measured_at)
            scores = np.array([newest.tiers[tier.number].scores for tier in catalog.tiers], np.float32).T
            # As good as the strongest tier's answer: right, or both wrong.
            as_good = (scores[:, :-1] >= scores[:, -1:]).astype(np.float32)
            return measured_table(prior, np.array(_classes_of(newest).p, np.float32), as_good)
    return prior


def _of_tiers(path: Path, wanted: Sequence[str]) -> EverydayOutcomes | None:
    try:
        outcomes = read_outcomes(path)
        if [outcomes.tiers[k].fingerprint for k in sorted(outcomes.tiers)] != list(wanted):
            return None
        outcomes.tasks()
    except EverydayOutcomesError as error:
        log.warning("%s", error)
        return None
    return outcomes


def _classes_of(outcomes: EverydayOutcomes) -> TaskClasses:
    """Those that were kept, unless they are another version's."""
    kept, tasks = outcomes.classes, len(outcomes.tiers[1].scores)
    if kept is not None and kept.version == default_artefact().name and len(kept.p) == tasks:
        return kept
    return task_classes(outcomes.seed, outcomes.per_level)


@lru_cache(maxsize=4)
def task_classes(seed: int, per_level: int) -> TaskClasses:
    """Return the complexity model's P of the classes of every task."""
    folder = default_artefact()
    model = load_artefact(folder)
    predictor = ClassPredictor(model)
    prompts = [routing_input_of_text(task.prompt) for task in everyday_tasks(seed, per_level)]
    classes = np.array([predictor.classes(prompt, model.encode(prompt)) for prompt in prompts])
    return TaskClasses(folder.name, classes.round(6).tolist())
