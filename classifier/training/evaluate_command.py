"""What `aio classifier evaluate` does, free of any command-line library."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from classifier.artefact import load_artefact, load_base
from classifier.fallback import fallback_of
from classifier.hidden_state_encoder import HiddenStateEncoder
from classifier.outcome_model import OutcomeModel
from classifier.routing_input import routing_input_of_text
from classifier.training.artefact_predictor import ArtefactPredictor, RecipePredictor
from classifier.training.command import decision_milliseconds
from classifier.training.dataset import OutcomeRow, data_hash
from classifier.training.encoded_rows import EncodedRows, encode_rows
from classifier.training.evaluate import Report, evaluate, refusal_reasons
from classifier.training.evaluation import FORMAT, Evaluation, Predictions, Unseen, sharpness, tables
from classifier.training.evaluation_text import evaluation_text
from classifier.training.feature_costs import FeatureCost, feature_costs
from classifier.training.hidden_predictor import HiddenStateRecipe
from classifier.training.hidden_train import ReadLayer, read_stored
from classifier.training.learning_curve import LearningPoint, learning_curve
from classifier.training.noise_ceiling import repeat_metrics
from classifier.training.predictors import Predictor, PredictorUnavailableError
from classifier.training.probabilities import ProbabilityMetrics
from classifier.training.registered import DOMAIN_LABEL, PREDICTORS, SHIPPED
from classifier.training.row_files import EvaluationRows, read_rows
from classifier.training.stored_predictions import StoredPredictions, fitted_or_stored, predictions_file
from classifier.training.subsets import RESAMPLES, Outcomes, subsets
from classifier.training.train import heuristic_rows
from classifier.training.unseen import fallback_metrics, labelled_metrics, novelty_metrics
from inference_core.bench.machine import describe_machine

Progress = Callable[[str, float], None]
# Beside the shipped model and the domain's label: predictors whose cost-quality curves are kept for drawing.
DRAWN = (SHIPPED, DOMAIN_LABEL, "TF-IDF + LR", "heuristic (length, keywords)")


@dataclass(frozen=True)
class EvaluateOptions:
    """`predictions`: files of `save_predictions` that join the tables; `keep`: folder where predictions of fitted rows
    are kept between runs; `baselines`: whether the other predictors are fitted too, beside the domain's label."""

    split: str = "test"
    hold: tuple[str, ...] = ()
    predictions: tuple[Path, ...] = ()
    keep: Path | None = None
    baselines: bool = True
    learning: bool = False
    draws: int = RESAMPLES
    seed: int = 0


@dataclass(frozen=True)
class EvaluateOutcome:
    """The evaluation of one artefact; `text` is the report as Markdown, `json` the same as data."""

    version: str
    refusals: list[str]
    evaluation: Evaluation
    text: str
    json: bytes


def evaluate_command(
    folder: Path,
    *,
    data: Path | None = None,
    options: EvaluateOptions | None = None,
    progress: Progress = lambda stage, share: None,
) -> EvaluateOutcome:
    """Measure the artefact in `folder` on a split of the outcomes in `data`, beside everything that is registered.

    `data`: as for `read_rows`. Raises `ArtefactError`, and `TrainingDataError` if data are missing or a split is empty.
    """
    options = options or EvaluateOptions()
    model = load_artefact(folder)
    read_stored(model.encoder)
    run = _Run(model, folder, read_rows(data, options.split), options, progress)
    evaluation = run.evaluation()
    return EvaluateOutcome(
        version=model.version,
        refusals=evaluation.refusals,
        evaluation=evaluation,
        text=evaluation_text(evaluation),
        json=msgspec.json.encode(evaluation),
    )


@dataclass
class _Run:
    """One evaluation under way."""

    model: OutcomeModel
    folder: Path
    rows: EvaluationRows
    options: EvaluateOptions
    progress: Progress
    left_out: dict[str, str] = field(default_factory=dict)

    def evaluation(self) -> Evaluation:
        measured, options = self.rows.measured, self.options
        self.progress("the gates", 0.0)
        report = self._report()
        predictions = self._predictions(self.rows, measured, ArtefactPredictor(self.model), (), 0.05, 0.45)
        self.progress("measuring", 0.45)
        outcomes = Outcomes.of(measured)
        tuned = Outcomes.of(self.rows.valid) if self.rows.valid else None
        found = tables(outcomes, predictions, tuned, drawn=DRAWN, draws=options.draws, seed=options.seed)
        best = self._best(found.probabilities)
        prompts = [row.prompt for row in measured]
        machine = describe_machine()
        return Evaluation(
            format=FORMAT,
            version=self.model.version,
            encoder=self.model.encoder.name,
            split=options.split,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            machine=f"{machine['cpus']} CPUs of {machine['processor']}, Python {machine['python']}",
            data_sha256=data_hash(self.rows.every),
            rows={"train": len(self.rows.train), "valid": len(self.rows.valid), options.split: len(measured)},
            refusals=refusal_reasons(report),
            targets=report.targets,
            within_1_ms=[SHIPPED, *(entry.name for entry in PREDICTORS if entry.within_1_ms)],
            test=found,
            unseen=self._unseen() if options.hold else None,
            learning=self._learning() if options.learning else [],
            repeats=repeat_metrics(self.rows.every),
            sharpness=sharpness(outcomes, predictions.measured, [SHIPPED, *best]),
            costs=self._costs(prompts),
            decision_ms=_decision_ms(load_artefact(self.folder), prompts),
            left_out=self.left_out,
        )

    def _report(self) -> Report:
        """The report that the gates read; an artefact's own base rows stand in where there are no others."""
        domains = sorted({row.domain for row in [*self.rows.train, *self.rows.valid, *self.rows.measured]})
        numbers = {domain: i for i, domain in enumerate(domains)}
        test = _encoded(self.model, self.rows.measured, numbers)
        if self.rows.train and self.rows.valid:
            train, valid = (_encoded(self.model, part, numbers) for part in (self.rows.train, self.rows.valid))
            prompts = [
                [routing_input_of_text(row.prompt) for row in part] for part in (self.rows.valid, self.rows.measured)
            ]
            return evaluate(
                self.model,
                train=train,
                valid=valid,
                test=test,
                baselines={"length heuristic": (heuristic_rows(prompts[0]), heuristic_rows(prompts[1]))},
                seed=self.options.seed,
            )
        base = EncodedRows.from_tensors(load_base(self.folder))
        return evaluate(
            self.model, train=base.take(~base.held), valid=base.take(base.held), test=test, seed=self.options.seed
        )

    def _predictions(
        self,
        rows: EvaluationRows,
        measured: Sequence[OutcomeRow],
        ours: ArtefactPredictor,
        held: Sequence[str],
        start: float,
        end: float,
    ) -> Predictions:
        """Everything registered, fitted on `rows` and asked about its valid rows and `measured`."""
        found = Predictions()
        found.add(SHIPPED, ours.predict(rows.valid), ours.predict(measured))
        entries = [entry for entry in PREDICTORS if self.options.baselines or entry.name == DOMAIN_LABEL]
        if not (rows.train and rows.valid):
            entries = []
        sha = data_hash(rows.every) if self.options.keep else ""
        for number, entry in enumerate(entries):
            self.progress(entry.name, start + (end - start) * number / len(entries))
            path = None
            if self.options.keep is not None:
                path = predictions_file(self.options.keep, entry.name, sha, held)
            try:
                predictor: Predictor = entry.make()
                predictor = fitted_or_stored(predictor, rows.train, rows.valid, measured, path, held)
                found.add(entry.name, predictor.predict(rows.valid), predictor.predict(measured))
            except PredictorUnavailableError as error:
                self.left_out[entry.name] = str(error)
        for file in self.options.predictions:
            stored = StoredPredictions(file)
            if set(stored.held) != set(held):
                continue
            if stored.covers(measured) and stored.covers(rows.valid):
                found.add(stored.name, stored.predict(rows.valid), stored.predict(measured))
            else:
                self.left_out[stored.name] = f"its file has not a prediction for every row ({file.name})."
        return found

    def _unseen(self) -> Unseen:
        """The same comparison with whole domains kept from all training."""
        hold = self.options.hold
        seen, measured = self.rows.without(hold), self.rows.held(hold)
        self.progress("the recipe without the domains held out", 0.5)
        recipe = self._recipe()
        recipe.fit(seen.train, seen.valid)
        predictions = self._predictions(seen, measured, recipe.fitted, hold, 0.55, 0.8)
        outcomes, tuned = Outcomes.of(measured), Outcomes.of(seen.valid)
        found = tables(outcomes, predictions, tuned, by_domain=True, draws=self.options.draws, seed=self.options.seed)
        self.progress("novelty", 0.8)
        known = Outcomes.of(seen.measured)
        novelty = {
            "seen": recipe.novelty(seen.measured),
            "unseen": recipe.novelty(measured),
        }
        safe = fallback_of(recipe.fitted.model.manifest)
        fallback = []
        for chosen, members, which in ((known, seen.measured, "seen"), (outcomes, measured, "unseen")):
            p = recipe.predict(members).astype(np.float64)
            for one in subsets(chosen, draws=self.options.draws, seed=self.options.seed):
                fallback += fallback_metrics(one, p[one.at], novelty[which][one.at], safe, seen=which == "seen")
        return Unseen(
            hold=list(hold),
            rows=len(measured),
            tables=found,
            novelty=novelty_metrics(known, outcomes, novelty["seen"], novelty["unseen"], safe.threshold),
            fallback=fallback,
            labelled=labelled_metrics(recipe.fitted, measured, outcomes, self.options.seed),
        )

    def _recipe(self) -> RecipePredictor | HiddenStateRecipe:
        if isinstance(self.model.encoder, HiddenStateEncoder):
            spec = self.model.encoder.spec
            return HiddenStateRecipe(ReadLayer(spec.model, spec.layer), self.options.seed)
        return RecipePredictor(self.options.seed, self.model.manifest.encoder.get("teacher") or "")

    def _learning(self) -> list[LearningPoint]:
        def show(labels: int) -> None:
            self.progress(f"learning curve, {labels:,} labels", 0.85)

        return learning_curve(
            self._recipe,
            self.rows.train,
            self.rows.valid,
            self.rows.measured,
            seed=self.options.seed,
            progress=show,
        )

    def _costs(self, prompts: Sequence[str]) -> list[FeatureCost]:
        self.progress("costs", 0.95)
        train = [row.prompt for row in self.rows.train] if self.options.baselines else []
        return feature_costs(load_artefact(self.folder), prompts, train)

    def _best(self, found: Sequence[ProbabilityMetrics]) -> list[str]:
        """The predictor beside ours that ranks best, of those that know the prompt alone."""
        rivals = [m for m in found if m.predictor not in (SHIPPED, DOMAIN_LABEL, "other models' outcomes")]
        ranked = sorted(rivals, key=lambda m: -(m.auc.value if m.auc else 0.0))
        return [ranked[0].predictor] if ranked else []


def _encoded(model: OutcomeModel, rows: Sequence[OutcomeRow], numbers: dict[str, int]) -> EncodedRows:
    return encode_rows(
        model.encoder,
        [routing_input_of_text(row.prompt) for row in rows],
        Outcomes.of(rows).labels.astype(np.float32),
        group=np.array([numbers[row.domain] for row in rows], np.int32),
    )


def _decision_ms(model: OutcomeModel, prompts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """(median, p99) of test prompts, and of one that is cut to about 64 or 512 tokens of them joined."""
    words = " ".join(prompts[:200]).split()
    # English has about three words in four tokens.
    sized = {tokens: [" ".join(words[i : i + tokens * 3 // 4]) for i in range(0, 3000, 15)] for tokens in (64, 512)}
    found = {"test prompts": decision_milliseconds(model, prompts)}
    found |= {f"{tokens}-token prompts": decision_milliseconds(model, texts) for tokens, texts in sized.items()}
    return {name: (round(median, 4), round(p99, 4)) for name, (median, p99) in found.items()}
