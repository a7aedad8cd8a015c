"""The classifier as routing sees it: what it reads of a request, and a version for each request, from which comes
everything one decision needs.

A decision is made with one loaded version and its rules, and never with two. The active version and its canary are
loaded at start, and replaced in one assignment when the registry's pointer names others.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from classifier.class_predictor import ClassPredictor, Float, threshold_of
from classifier.decision import Decision, PolicyInputs, Prediction
from classifier.encoders.hidden_state_encoder import HiddenStateEncoder, StateSource, StateSpec
from classifier.encoders.static_encoder import SlowEncoder
from classifier.errors import ArtefactError, CheckpointError
from classifier.features.routing_input import RoutingInput, routing_input
from classifier.local.cells import ClassTable
from classifier.local.own import OwnOutcomes
from classifier.model.answer_length import AnswerLength
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import OutcomeModel
from classifier.native import MISSING
from classifier.policy.decide import decide
from classifier.policy.experiment_split import Arm, ArmName, Split
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import default_artefact
from classifier.registry.registry import POINTER, ArtefactRegistry
from gateway.base.inference_request import InferenceRequest
from gateway.base.stores.followed_file import FollowedFile
from inference_core.extras import MissingExtraError, optional_imports

if TYPE_CHECKING:
    from classifier.complexity.encoder_classes import EncoderClasses


def routing_input_of(request: InferenceRequest, previous_tiers: tuple[int, ...] = ()) -> RoutingInput:
    """The classifier's input for a request; of several prompts, the longest."""
    asked = request.generation
    if asked.messages is not None:
        messages, media_tokens = [], 0
        for message in asked.messages:
            messages.append({"role": message.role, "content": message.text})
            if message.media:
                media_tokens += message.media_tokens
        return routing_input(
            messages,
            key=request.key_id or "",
            tenant=request.caller.tenant,
            max_tokens=asked.max_tokens,
            has_tools=asked.tooling is not None,
            has_schema=asked.sampling.grammar is not None,
            plan_mode=request.client is not None and request.client.plan_mode,
            previous_tiers=previous_tiers,
            media_tokens=media_tokens,
        )
    longest = max(request.prompts or [""], key=len)
    if isinstance(longest, str):
        return routing_input(
            [{"role": "user", "content": longest}],
            key=request.key_id or "",
            tenant=request.caller.tenant,
            max_tokens=asked.max_tokens,
        )
    return RoutingInput(turn="", turn_chars=0, prompt_tokens=len(longest), max_tokens=asked.max_tokens)


# Without a classifier: the share of answers no worse than the strongest tier's that is usually wanted.
USUAL_QUALITY_TARGET = 0.95


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True):
    """By which a tier is chosen (`PolicyInputs`)."""

    quality_target: float
    tau: float
    objective: Literal["utility", "target"] = "utility"

    @classmethod
    def of_classes(cls, quality_target: float | None) -> "RoutingRule":
        """The rule of every version of the classifier; None is the default target. Raises `PolicyInputsError`."""
        tau = threshold_of(quality_target)
        return cls(quality_target=tau, tau=tau)

    @classmethod
    def of_heuristic(cls, quality_target: float | None) -> "RoutingRule":
        """The rule for the length heuristic: its probabilities are only an order, so the target becomes a threshold.

        The cube spreads the heuristic's pessimistic probabilities over the tiers; it rises from 0 to 1 with the target.
        """
        target = USUAL_QUALITY_TARGET if quality_target is None else quality_target
        return cls(quality_target=target, tau=target**3, objective="target")


def choice_at(inputs: PolicyInputs, rule: RoutingRule) -> int:
    """Return the tier that `decide` chooses by another rule; in observe mode, routing's own choice."""
    return decide(msgspec.structs.replace(ruled_by(inputs, rule), observe_tier=None)).tier


def ruled_by(inputs: PolicyInputs, rule: RoutingRule) -> PolicyInputs:
    return msgspec.structs.replace(inputs, quality_target=rule.quality_target, tau=rule.tau, objective=rule.objective)


class RoutingModel(Protocol):
    """One version of the outcome model."""

    on_trial: bool
    """Whether it is a canary, not the current version."""

    def predict(self, routing_input: RoutingInput) -> Prediction:
        """P(no worse) of every tier."""


@runtime_checkable
class EncodesAhead(Protocol):
    """A version whose encoder may take milliseconds (`slow`)."""

    @property
    def slow(self) -> bool:
        """Whether `predict` would hold up others."""

    async def encode_ahead(self, routing_input: RoutingInput) -> None:
        """Have the prompt encoded, so that `predict` need not wait."""


class Classifier(Protocol):
    """The current outcome model, and perhaps a canary or an experiment with two arms."""

    def split(self) -> Split | None:
        """The experiment that is under way."""

    def model_for(self, request_id: str, arm: ArmName | None = None) -> RoutingModel:
        """The version that decides about this request: that of its `arm`, if it is in one. While nothing is promoted,
        always the same one."""


def rule_of(classifier: Classifier, request_id: str, quality_target: float | None) -> RoutingRule:
    """The rule by which a request is decided: that of all versions, or of the length heuristic where none serves."""
    try:
        classifier.model_for(request_id)
    except ArtefactError:
        return RoutingRule.of_heuristic(quality_target)
    return RoutingRule.of_classes(quality_target)


class VersionPrediction(msgspec.Struct, frozen=True):
    """What one version of the classifier, or the heuristic, says."""

    prediction: Prediction
    rule: RoutingRule
    on_trial: bool = False


class Routed(msgspec.Struct, frozen=True):
    decision: Decision
    app: str = ""
    """Hash of the system prompt."""


class LoadedVersion:
    """The version that serves, or a canary (`on_trial`). Immutable, except that `own` labels of the catalogue and
    `lengths` of answers are replaced whole.

    It decides by the prompt's complexity class: by a table that it learned of the catalogue's tiers or, without one, by
    the catalogue's `prior`, by default of as many tiers as the version is for, spread evenly; and by the own labels.
    """

    def __init__(
        self,
        model: OutcomeModel,
        *,
        on_trial: bool = False,
        prior: ClassTable | None = None,
        classes: "EncoderClasses | None" = None,
    ) -> None:
        """`classes`: what classifies in place of the n-gram model."""
        self.model, self.on_trial, self._prior, self._classes = model, on_trial, prior, classes
        self._predictor = ClassPredictor(model, prior, classes)
        self._slow_encoder = model.encoder if isinstance(model.encoder, SlowEncoder) else None
        self.own: OwnOutcomes | None = None
        self.lengths: AnswerLength | None = None

    @property
    def version(self) -> str:
        """The artefact's name."""
        return self.model.version

    @property
    def kind(self) -> Literal["measured", "prior"]:
        """Whether its table was learned of the catalogue that it serves."""
        return self._predictor.kind

    @property
    def table(self) -> Float:
        """[4, tiers - 1]: what it knows of the tiers by class without own labels."""
        return self._predictor.table

    @property
    def head(self) -> LearnedHead | None:
        """The head over all keys that replaces the table, if it learned one."""
        return self._predictor.head

    @property
    def class_model(self) -> str:
        """The name of the model that classifies prompts."""
        return self._predictor.class_model

    @property
    def slow(self) -> bool:
        """Whether its encoder, or that of the classes, takes milliseconds."""
        return self._slow_encoder is not None or self._classes is not None

    def predict(self, routing_input: RoutingInput) -> Prediction:
        """P(good enough) of every tier, and its answer's tokens where these can be predicted."""
        lengths = self.lengths
        prediction, turn = self._predictor.read(routing_input, self.own)
        if lengths is not None:
            tokens = lengths.by_tier(turn.features, turn.embedding)
            prediction = msgspec.structs.replace(prediction, predicted_tokens=tokens)
        return prediction

    def use_lengths(self, lengths: AnswerLength | None) -> None:
        """Predict answers' lengths by `lengths`, unless they were fitted on the embeddings of another encoder."""
        self.lengths = lengths if lengths is not None and lengths.encoder == self.model.encoder_hash else None

    async def encode_ahead(self, routing_input: RoutingInput) -> None:
        """Have the prompt encoded while other requests are served."""
        submitted = [] if self._slow_encoder is None else [self._slow_encoder.submit(routing_input.turn)]
        if self._classes is not None:
            submitted += [self._classes.submit(reading.turn) for reading, _ in routing_input.as_classified]
        await asyncio.gather(*map(asyncio.wrap_future, submitted))

    def for_catalogue(self, fingerprint: str, prior: ClassTable | None) -> "LoadedVersion":
        """The same version for the catalogue of this fingerprint and `prior`."""
        model = self.model.for_catalogue(fingerprint)
        version = LoadedVersion(model, on_trial=self.on_trial, prior=prior, classes=self._classes)
        version.own, version.lengths = self.own, self.lengths
        return version


log = logging.getLogger(__name__)

_PERSON = b"aio-canary-v1"


class ActiveVersions(msgspec.Struct, frozen=True):
    """The versions that serve. It is replaced whole, so that its versions always belong together."""

    current: LoadedVersion
    """The version that decides, except for the canary's share."""
    canary: LoadedVersion | None = None
    """The version that decides on a `share` of the requests."""
    share: float = 0.0
    split: Split | None = None
    arms: dict[str, LoadedVersion] = {}

    @property
    def versions(self) -> list[LoadedVersion]:
        """All that decide, each once."""
        trial = [] if self.canary is None else [self.canary]
        return list(dict.fromkeys([self.current, *trial, *self.arms.values()]))

    def version_for(self, request_id: str, arm: ArmName | None = None) -> LoadedVersion:
        """The version that decides about a request of this `arm`: the same one whenever and wherever it is asked."""
        if arm is not None and arm in self.arms:
            return self.arms[arm]
        return self.current if self.canary is None or canary_draw(request_id) >= self.share else self.canary


class ActiveClassifier:
    """Serves the registry's current version, or the one that ships with the package while nothing was promoted.

    A version that is not accepted changes nothing: the one before it goes on, and `refusal` and the log say why; a
    canary that is not accepted gets no requests. Without any version every call raises `ArtefactError`, and routing
    falls back on its heuristic. `on_change` is called with what serves, after each change, by any thread.
    """

    def __init__(
        self,
        root: Path,
        catalogue_fingerprint: str,
        on_change: Callable[[ActiveVersions], None] = lambda serving: None,
        *,
        prior: ClassTable | None = None,
        must_be_measured: bool = False,
        states: Callable[[StateSpec], StateSource] | None = None,
        class_encoder: str = "",
    ) -> None:
        """`prior`: what is known of the catalogue's tiers by class, for versions that learned nothing of them; None: of
        as many tiers as the version is for, spread evenly.
        `states`: who computes hidden states for an encoder that reads them; by default it loads the model here.
        `class_encoder`: what classifies in place of the n-gram model (`load_classes`); where it cannot, the n-gram
        model does, and `class_refusal` and the log say why."""
        self._states = states
        self._registry = ArtefactRegistry(root)
        self._fingerprint, self._prior, self._must_be_measured = catalogue_fingerprint, prior, must_be_measured
        self._on_change = on_change
        self._serving: ActiveVersions | None = None
        self.is_quick = False
        """Whether no version that serves has an encoder that takes milliseconds."""
        self._lengths: AnswerLength | None = None
        self._loaded: tuple[ActiveVersions | None, list[str]] | None = None
        self.before_serving: Callable[[Sequence[LoadedVersion]], Awaitable[None]] | None = None
        """Awaited with versions that are new, before `follow` lets them serve."""
        self._pointer = FollowedFile(root / POINTER, lambda _: self._load(), "classifier versions", removed=self._load)
        self.refusal = "no artefact was loaded yet"
        self._classes: EncoderClasses | None = None
        self.class_refusal = ""
        if MISSING:
            log.warning(MISSING)
        if class_encoder:
            from classifier.complexity.encoder_classes import load_classes

            try:
                self._classes = load_classes(class_encoder, root)
            except CheckpointError as error:
                self.class_refusal = str(error)
                log.error("the n-gram model classifies: %s", error)

    @property
    def prior(self) -> ClassTable | None:
        """What is known of the catalogue's tiers without any version."""
        return self._prior

    @property
    def serving(self) -> ActiveVersions:
        """What serves now. Raises `ArtefactError` if nothing does."""
        if self._serving is None:
            raise ArtefactError(self.refusal)
        return self._serving

    @property
    def serving_or_none(self) -> ActiveVersions | None:
        """What serves now, if anything does."""
        return self._serving

    @property
    def model(self) -> OutcomeModel:
        """The current version's model. Raises `ArtefactError` if there is none."""
        return self.serving.current.model

    def model_for(self, request_id: str, arm: ArmName | None = None) -> LoadedVersion:
        """The version that decides about this request, of this `arm` of the experiment."""
        return self.serving.version_for(request_id, arm)

    def split(self) -> Split | None:
        """The experiment under way, unless an arm of it cannot serve."""
        return None if self._serving is None else self._serving.split

    def use_lengths(self, lengths: AnswerLength | None) -> None:
        """Predict answers' lengths by `lengths` from now on, with whatever version serves."""
        self._lengths = lengths
        if self._serving is not None:
            self._give_lengths(self._serving)

    def _give_lengths(self, serving: ActiveVersions) -> None:
        for version in filter(None, (serving.current, serving.canary)):
            version.use_lengths(self._lengths)

    def load(self) -> None:
        """Load what the pointer names now, if that has changed, and serve it; never raises."""
        self._pointer.refresh()
        self._serve_loaded()

    async def follow(self, seconds: float) -> None:
        """Look at the registry's pointer every `seconds`, load what it names, and serve it after `before_serving`."""
        while True:
            await asyncio.to_thread(self._pointer.refresh)
            while (loaded := self._loaded) is not None:
                await self._prepare(loaded[0])
                if self._loaded is loaded:
                    self._serve_loaded()
            await asyncio.sleep(seconds)

    async def _prepare(self, loaded: ActiveVersions | None) -> None:
        if loaded is not None and self.before_serving is not None:
            served = [] if self._serving is None else [version.version for version in self._serving.versions]
            await self.before_serving([version for version in loaded.versions if version.version not in served])

    async def serve_catalogue(self, fingerprint: str, prior: ClassTable | None) -> None:
        """Go on for a catalogue of other answers, whose outcomes may not have been measured."""
        self._fingerprint, self._prior = fingerprint, prior
        serving = self._serving
        if serving is None or self._must_be_measured:
            self._activate(*await asyncio.to_thread(self._read))
            self._loaded = None
            return
        now = {id(version): version.for_catalogue(fingerprint, prior) for version in serving.versions}
        renewed = msgspec.structs.replace(
            serving,
            current=now[id(serving.current)],
            canary=None if serving.canary is None else now[id(serving.canary)],
            arms={name: now[id(version)] for name, version in serving.arms.items()},
        )
        self._activate(renewed, [])
        if self._loaded is not None:
            # It was read for the catalogue before.
            self._loaded = await asyncio.to_thread(self._read)

    def _load(self) -> None:
        self._loaded = self._read()

    def _serve_loaded(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._activate(*loaded)

    def _read(self) -> tuple[ActiveVersions | None, list[str]]:
        """What the pointer names, with the reasons of refusals; what serves already is not loaded again."""
        problems: list[str] = []
        current = self._serving.current if self._serving is not None else None
        try:
            folder = self._registry.current_or(default_artefact())
            current = LoadedVersion(self._accepted(folder), prior=self._prior, classes=self._classes)
        except (ArtefactError, OSError) as error:
            problems.append(f"the classifier stays {current.version if current else 'missing'}: {error}")
        if current is None:
            return None, problems
        canary, share = None, 0.0
        try:
            pointer = self._registry.canary()
            if pointer is not None and pointer.version != current.version:
                model = self._accepted(self._registry.folder(pointer.version))
                canary = LoadedVersion(model, on_trial=True, prior=self._prior, classes=self._classes)
                share = pointer.share
        except (ArtefactError, OSError) as error:
            problems.append(f"the canary gets no requests: {error}")
        split, arms = None, {}
        try:
            if (split := self._registry.experiment()) is not None:
                arms = {"a": self._arm(split.a, current), "b": self._arm(split.b, current)}
        except (ArtefactError, OSError) as error:
            split = None
            problems.append(f"the experiment gets no requests: {error}")
        return ActiveVersions(current, canary, share, split, arms), problems

    def _arm(self, arm: Arm, current: LoadedVersion) -> LoadedVersion:
        """The version that decides about an arm: of an arm that is a tier, the current one."""
        if arm.version is None or arm.version == current.version:
            return current
        model = self._accepted(self._registry.folder(arm.version))
        return LoadedVersion(model, prior=self._prior, classes=self._classes)

    def _accepted(self, folder: Path) -> OutcomeModel:
        tiers = None if self._prior is None else self._prior.p.shape[1] + 1
        model = accepted_artefact(folder, self._fingerprint, tiers=tiers, must_be_measured=self._must_be_measured)
        if isinstance(model.encoder, HiddenStateEncoder) and self._states is not None:
            model.encoder.read_from(self._states(model.encoder.spec))
        if isinstance(model.encoder, SlowEncoder):
            try:
                with optional_imports(f"the encoder of {model.manifest.version}"):
                    model.encoder.warm()
            except MissingExtraError as error:
                raise ArtefactError(str(error)) from error
        return model

    def _activate(self, serving: ActiveVersions | None, problems: list[str]) -> None:
        """One assignment: a request holds the old versions or the new ones, whichever thread routes it. A version that
        goes on, perhaps with another canary, keeps its own labels."""
        self.refusal = "; ".join(problems)
        for problem in problems:
            log.error("%s", problem)
        if serving is None:
            return
        self._give_lengths(serving)
        labels = {} if self._serving is None else {version.version: version.own for version in self._serving.versions}
        for version in serving.versions:
            version.own = version.own or labels.get(version.version)
        self._serving, self.is_quick = serving, not any(version.slow for version in serving.versions)
        trial = f", {serving.canary.version} on trial for {serving.share:.1%}" if serving.canary is not None else ""
        log.info("classifier %s (%s) is active%s", serving.current.version, serving.current.kind, trial)
        self._on_change(serving)


def canary_draw(request_id: str) -> float:
    """A number in [0, 1) that depends on the request's id alone; a canary has those below its share."""
    return _draw(request_id, _PERSON)


def _draw(request_id: str, person: bytes) -> float:
    digest = hashlib.blake2b(request_id.encode(errors="replace"), digest_size=8, person=person)
    return int.from_bytes(digest.digest(), "big") / 2**64


# Share of the decisions in which labels of other tenants count. They may change one decision in six at most; an eighth
# keeps to that by chance, too: of 720 decisions, more than 120 are drawn with a probability of 0.0005.
OTHERS_SHARE = 1 / 8
_OTHERS = b"aio-others-v1"


def drawn_for_others(prompt: RoutingInput, request_id: str) -> RoutingInput:
    """Return `prompt` with `from_others` as drawn by the request's id. A conversation that goes on is not drawn: each
    of its turns would be one more chance to move it to a tier on which it then stays."""
    if prompt.previous_tiers or _draw(request_id, _OTHERS) >= OTHERS_SHARE:
        return prompt
    return msgspec.structs.replace(prompt, from_others=True)
