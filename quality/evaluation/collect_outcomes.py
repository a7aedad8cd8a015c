"""Ask tiers verifiable prompts and store the evidence of each answer and whether it was right, without texts."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
import numpy as np

from classifier.class_predictor import ClassPredictor
from classifier.errors import TrainingDataError
from classifier.evidence import EVIDENCE_NAMES, evidence_features
from classifier.features.routing_input import routing_input
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.outcome_model import OutcomeModel
from classifier.training.data.outcome_folder import (
    SCHEMA_VERSION,
    CollectedTier,
    OutcomeFolder,
    Outcomes,
    OutcomesManifest,
    row_of,
)
from inference_core.io.json_lines import json_lines
from quality.evaluation.task_set import Kind, Task, check, tasks
from quality.evaluation.tier_accuracy import ANSWER_TOKENS, collected, in_turn, question_request
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.deltas import SECOND_TEMPERATURE, CollectedChoice, asking_uncertainty, uncertainty_of
from tiers.final_answer.extract import agreement, final_answer
from tiers.final_answer.quantities import final_number
from tiers.final_answer.short_answers import choice_letter, options
from tiers.tier import Delta, Tier

Progress = Callable[[str, float], None]

SHARD_ROWS = 32
# What a task set can give of a kind and level without running out of different prompts.
PER_LEVEL = 24
WORD_PROBLEMS = "gsm8k"
WORD_PROBLEMS_FILE = "gsm8k_sample.jsonl"
KINDS: tuple[Kind, ...] = get_args(Kind)
CHOICE = "choice"
GROUPS = [*KINDS, WORD_PROBLEMS, CHOICE]


class PromptModel(NamedTuple):
    """What predicts from the prompt alone: the encoder's model, and the probabilities that serving begins with."""

    model: OutcomeModel
    predictor: ClassPredictor


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its one right answer."""

    prompt: str
    answer: str
    group: str
    """A task of `GROUPS`."""
    level: int

    @property
    def row(self) -> int:
        """The row number in the folder."""
        return row_of(self.prompt)


class WordProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `gsm8k_sample.jsonl`; the number of `steps` of the reference solution is its difficulty."""

    prompt: str
    answer: str
    steps: int


class ChoiceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a file of multiple-choice questions; the prompt has the options, `answer` is the correct letter."""

    prompt: str
    answer: str


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """How to collect: the seed of the tasks and the number of requests in flight."""

    seed: int
    concurrency: int
    second: bool = True
    """Draw a second sample per answer, from which the value of agreement is learned."""


def graded_questions(seed: int, count: int, kinds: Sequence[Kind] = KINDS) -> list[Question]:
    """Return `count` different tasks of the generated set, spread over levels; the easiest have fewer.

    A larger `count` starts with the same tasks, so that a collection can be extended.
    """
    by_prompt: dict[str, Question] = {}
    for turn in range(count):
        for task in tasks(seed + turn, PER_LEVEL):
            if len(by_prompt) >= count:
                return list(by_prompt.values())
            question = Question(prompt=task.prompt, answer=task.answer, group=task.kind, level=task.level)
            if task.kind in kinds:
                by_prompt.setdefault(task.prompt, question)
    return list(by_prompt.values())


def word_problems(folder: Path, count: int) -> list[Question]:
    """Return the first `count` word problems of the public sample, which have known final numbers.

    Raises `TrainingDataError` if the file is missing or damaged.
    """
    path = folder / WORD_PROBLEMS_FILE
    try:
        with path.open("rb") as file:
            rows = [msgspec.json.decode(line, type=WordProblem) for line in file][:count]
    except (OSError, msgspec.MsgspecError) as error:
        raise TrainingDataError(f"{path}: {error}; set AIO_DATA to the folder that holds it.") from error
    return [Question(prompt=r.prompt, answer=r.answer, group=WORD_PROBLEMS, level=r.steps) for r in rows]


def choice_questions(file: Path) -> list[Question]:
    """Read multiple-choice questions from the JSON lines of `file`; more options mean a higher level.

    Raises `TrainingDataError` naming an invalid line: options are letters from A on, each on a line of its own or in
    brackets, and the answer is one of them.
    """
    questions = []
    for where, row in json_lines(file, ChoiceQuestion, TrainingDataError, "; every line needs a prompt and an answer."):
        offered = options(row.prompt)
        if row.answer not in offered:
            shown = ", ".join(offered) or "nothing"
            raise TrainingDataError(f"{where}: the answer is {row.answer!r}; the prompt offers {shown}.")
        questions.append(Question(prompt=row.prompt, answer=row.answer, group=CHOICE, level=len(offered)))
    return questions


def is_right(question: Question, text: str) -> bool:
    """Whether `text` answers `question`."""
    if question.group == CHOICE:
        return choice_letter(text, options(question.prompt)) == question.answer
    if question.group == WORD_PROBLEMS:
        number = final_number(text)
        return number is not None and number == final_number(question.answer)
    task = msgspec.convert(
        {"prompt": question.prompt, "answer": question.answer, "kind": question.group, "level": question.level}, Task
    )
    return check(task, text)


def outcomes_manifest(
    catalog: Catalog, numbers: Sequence[int], model: OutcomeModel, how: Collection
) -> OutcomesManifest:
    """Return the manifest of a collection over these tiers."""
    return OutcomesManifest(
        schema_version=SCHEMA_VERSION,
        catalog=catalog.name,
        catalogue_fingerprint=catalog.fingerprint,
        tiers={str(number): _collected(catalog, number) for number in numbers},
        groups=GROUPS,
        seed=how.seed,
        max_tokens=ANSWER_TOKENS,
        classifier_version=model.version,
        encoder=model.encoder_hash,
        feature_names=list(FEATURE_NAMES),
        evidence_names=list(EVIDENCE_NAMES),
    )


async def collect_outcomes(
    tiers: Sequence[Tier],
    catalog: Catalog,
    folder: OutcomeFolder,
    questions: Sequence[Question],
    prompts: PromptModel,
    how: Collection,
    progress: Progress,
) -> int:
    """Ask each started tier the questions not answered yet, at temperature 0; return the number of new answers.

    A second sample of a checkable answer is drawn at `SECOND_TEMPERATURE`, as the gateway does. Rows are stored by
    shard: an interruption loses at most the current shard and the answers in flight. Raises `TierMeasurementError` if a
    tier cannot answer; earlier answers stay stored.
    """
    asked = 0
    for index, tier in enumerate(tiers):
        done = folder.rows_of(tier.number)
        left = [question for question in questions if question.row not in done]
        spec = catalog.tier(tier.number)
        for begun in range(0, len(left), SHARD_ROWS):
            some = left[begun : begun + SHARD_ROWS]
            progress(tier.name, (index + begun / len(left)) / len(tiers))
            answers = await in_turn(some, how.concurrency, partial(_answered, tier, spec, how))
            folder.append(tier.number, _outcomes(some, answers, prompts))
            asked += len(some)
    return asked


class _Answered(CollectedChoice):
    """The answer to one question, its uncertainty, and its `agreement` with a second sample."""

    uncertainty: list[float] = msgspec.field(default_factory=list)
    agreement: float | None = None

    def take(self, delta: Delta) -> None:
        CollectedChoice.take(self, delta)
        self.uncertainty += uncertainty_of(delta)


async def _answered(tier: Tier, spec: TierSpec, how: Collection, number: int, question: Question) -> _Answered:
    answer = await _sampled(tier, spec, question, 0.0)
    if how.second and final_answer(question.prompt, answer.text) is not None:
        second = await _sampled(tier, spec, question, SECOND_TEMPERATURE)
        answer.agreement = agreement(question.prompt, answer.text, second.text)
    return answer


async def _sampled(tier: Tier, spec: TierSpec, question: Question, temperature: float) -> _Answered:
    request_id = f"outcome-{tier.number}-{question.row}-{temperature:g}"
    request = question_request(spec, request_id, question.prompt, temperature, whole=True)
    return await collected(tier, asking_uncertainty(request, tier, spec.tells_logprobs), _Answered())


def _outcomes(questions: Sequence[Question], answers: Sequence[_Answered], prompts: PromptModel) -> Outcomes:
    inputs = [routing_input([{"role": "user", "content": question.prompt}]) for question in questions]
    turns = [prompts.model.encode(prompt) for prompt in inputs]
    p_ok = [prompts.predictor.prediction(prompt, turn).p_ok for prompt, turn in zip(inputs, turns, strict=True)]
    evidence = [evidence_features(answer.text, answer.finish_reason, answer.uncertainty) for answer in answers]
    agreements = [np.nan if answer.agreement is None else answer.agreement for answer in answers]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    return Outcomes(
        row=np.asarray([question.row for question in questions], np.int64),
        group=np.asarray([GROUPS.index(question.group) for question in questions], np.int16),
        level=np.asarray([question.level for question in questions], np.int16),
        p_ok=np.asarray(p_ok, np.float32),
        features=np.stack([turn.features for turn in turns]).astype(np.float32),
        embedding=np.stack([turn.embedding for turn in turns]).astype(np.float32),
        evidence=np.stack(evidence),
        agreement=np.asarray(agreements, np.float32),
        prompt_tokens=np.asarray([usage.prompt_tokens for usage in usages], np.int32),
        answer_tokens=np.asarray([usage.completion_tokens for usage in usages], np.int32),
        correct=np.asarray([is_right(q, a.text) for q, a in zip(questions, answers, strict=True)], np.bool_),
    )


def _collected(catalog: Catalog, number: int) -> CollectedTier:
    spec = catalog.tier(number)
    return CollectedTier(
        model=spec.model_name,
        policy=str(type(spec.policy).__struct_config__.tag),
        fingerprint=catalog.tier_fingerprint(number),
        input_usd_per_million=spec.price.input_usd_per_million,
        output_usd_per_million=spec.price.output_usd_per_million,
    )
