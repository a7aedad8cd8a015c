"""One caller's request after parsing, independent of HTTP.

With it come its caller and its permissions and limits, as plain data from the guard to routing and billing; what an
agent's client says of its session; and its service class: its deadline, its priority, what alerts hold it to.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from gateway.base.identity import TraceContext
from tiers.catalog.consent import ALL, NO_CREDENTIAL, Consent, CredentialConsent, Reader, hidden_from
from tiers.catalog.tier_spec import SamplingDefaults, TierSpec
from tiers.conversation import FieldNames, ReasoningEffort
from tiers.errors import CallerCredential
from tiers.prompt_bounds import Conversation, most_tokens_of, most_tokens_raw
from tiers.tier import GenerationRequest, Sent, UsageMeter

Scope = Literal["inference", "viewer", "admin"]
# `viewer` reads what `/v1/admin` and `/admin/api` show, `admin` changes it too, and only `inference` asks for answers.
SCOPES: tuple[Scope, ...] = ("inference", "viewer", "admin")
Period = Literal["day", "month", "total"]

CALLER = "caller"
"""Where a request's state holds its Caller."""


class BudgetRef(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that the caller's requests are charged to: US dollars per calendar day or month (UTC), or in total."""

    budget_id: str
    period: Period
    amount_usd: float
    subject_kind: Literal["key", "team"] = "key"
    """Whether it is the key's own budget or its team's."""

    @property
    def said(self) -> str:
        """Such as "$5 per day"."""
        return f"${self.amount_usd:g} {'in total' if self.period == 'total' else f'per {self.period}'}"


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may use; None is no bound. Rates are per sliding minute, tokens those of prompt and answer."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    budgets: tuple[BudgetRef, ...] = ()


UNLIMITED = Allowance()


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends a request, and what it may do.

    `tenant` separates caches and prefixes: the team where there is one, else the key.
    """

    key_id: str | None = None
    """The pseudonym under which rows are recorded; None without a key. A static key's is its name."""
    name: str = ""
    team: str | None = None
    """Id of the team."""
    team_name: str | None = None
    """What operators call the team."""
    scopes: frozenset[str] = frozenset(SCOPES)
    consent: Consent = ALL
    """Which tiers may see its requests, and whether these may be used for more than their answers."""
    quality_target: float | None = None
    """The target of requests that name none of their own."""
    min_tier: int | None = None
    """The least tier that may answer its requests."""
    max_cost_usd: float | None = None
    """The most that one of its requests may be predicted to cost; None for no bound."""
    priority_ceiling: int = 0
    """The most urgent class it may ask for (`Command.priority`: 0 goes first)."""
    strict: bool = False
    """Whether unknown fields of its requests are refused."""
    aliases: dict[str, str] = {}
    """Its own names of models."""
    allowance: Allowance = UNLIMITED

    @property
    def tenant(self) -> str:
        """Whose caches and prefixes the caller shares; "" where no keys are asked for."""
        return self.team or self.key_id or ""

    def may_use(self, tier: Reader) -> bool:
        """Whether the caller may be answered by this tier; one that asks for a credential, by a request with one."""
        return tier.number >= (self.min_tier or 1) and hidden_from(tier, self.consent) in (None, NO_CREDENTIAL)


# Every caller while no keys are configured.
KEYLESS = Caller()


TurnKind = Literal["main", "housekeeping", "compaction", "subagent"]


class ClientTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a known client, or of a caller that names its conversation. Ids are hints of the caller: at most
    128 plain characters each, and without meaning outside the caller's key
    (`gateway.inference.conversations.session_digest`).
    """

    client: str
    """Its name in `gateway.inference.clients` or `gateway.inference.front_ends`; "" for none of them."""
    session: str | None = None
    """The client's id of the session."""
    agent: str | None = None
    """The client's id of an agent within the session; None for the main one."""
    parent: str | None = None
    """The agent or session that started this one."""
    kind: TurnKind = "main"
    """"housekeeping" is a title, a topic check or a commit message; "compaction" is a summary in place of a long
    history.
    """
    plan_mode: bool = False
    """Whether a plan is asked for, and nothing may be changed yet."""


SloName = Literal["edge", "chat", "search", "interactive", "batch"]

# OpenAI's names of the scheduling classes, by priority.
SERVICE_TIERS = ("priority", "default", "flex")


class SloClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class of service."""

    name: SloName
    ttft_seconds: float
    """Seconds until the first token."""
    priority: int
    """The priority where the caller names none; 0 goes first."""

    def ttft_limit(self, objective_seconds: float, *, asked: bool) -> float:
        """Seconds until the first token that a request is held to: those of the class that was `asked` for. Without it,
        those of the usual, or its tier's objective where that is longer: a small machine's tiers promise less."""
        return self.ttft_seconds if asked else max(self.ttft_seconds, objective_seconds)


# SPEC GW-18: conversations 50 to 100 ms, search augmentation 200, edge 20; interactive half a second, batch two.
SLO_CLASSES: dict[str, SloClass] = {
    slo.name: slo
    for slo in (
        SloClass(name="edge", ttft_seconds=0.020, priority=0),
        SloClass(name="chat", ttft_seconds=0.100, priority=0),
        SloClass(name="search", ttft_seconds=0.200, priority=1),
        SloClass(name="interactive", ttft_seconds=0.500, priority=1),
        SloClass(name="batch", ttft_seconds=2.0, priority=2),
    )
}


def slo_class(name: SloName | None, priority: int) -> SloClass:
    """The class that was asked for, or the usual one of a request of this priority."""
    return SLO_CLASSES[name or ("batch" if priority >= SLO_CLASSES["batch"].priority else "interactive")]


Prompt = str | list[int]
CacheMode = Literal["use", "refresh", "off"]
TIER_DEFAULTS = SamplingDefaults.__struct_fields__
_MOST_TOKENS = "most tokens"
# Of a context, for an answer: with less, an agent's ends in the middle of a call.
MIN_ANSWER_SHARE = 16


class PrivateMark(msgspec.Struct, frozen=True):
    """Why only local tiers may see a request."""

    because: str
    """A rule, a header or its session."""
    where: str = ""
    """Where in the request; "" for its session."""

    def __str__(self) -> str:
        return f"{self.because} in {self.where}" if self.where else self.because


class RoutingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a request itself says of its routing, in its headers; None where it says nothing."""

    quality_target: float | None = None
    """`x-aio-quality`, a number or a named setting: the share of answers that must be no worse than the strongest
    tier's."""
    min_tier: int | None = None
    """`x-aio-min-tier`."""
    max_cost_usd: float | None = None
    """`x-aio-max-cost`: the most that it may be predicted to cost."""
    deadline_seconds: float | None = None
    """`x-aio-deadline-ms`: the bound on the time to the first token, from arrival."""
    conversation: str | None = None
    """`x-aio-conversation`: the caller's own id of it; None: it is recognised by its messages."""
    slo: SloName | None = None
    """`x-aio-slo`: its service class."""
    cache: CacheMode | None = None
    """`x-aio-cache`: use (of sampled answers too), refresh (a new answer), off."""
    agree: bool | None = None
    """`x-aio-agree`: whether cheap tiers answer at once and are compared; None: by the knob's rule."""
    may_wait: bool | None = None
    """`x-aio-may-wait`: whether the first byte of a stream may wait for that; None: by the knob's."""
    continues: bool | None = None
    """`x-aio-continue`: whether a stream whose server fails may go on elsewhere; None: by the knob."""
    consent: Consent = ALL
    """`x-aio-consent`: answer (to be used for its answer alone), local (to be seen by local tiers alone), or both."""
    private: PrivateMark | None = None
    """`x-aio-private`, true: as local, for the rest of its session too; false: nothing."""
    credential: CallerCredential | None = None
    """`x-aio-upstream-authorization`: the caller's own credential, for a tier that asks for it."""


NO_OPTIONS = RoutingOptions()


class AnswerLimits(msgspec.Struct, frozen=True):
    """The limits of an answer under a budget, as its hold counts on them."""

    tokens: Mapping[str, int]
    """Most tokens of a choice, by the name of the catalogue's entry. Without a limit, that of the caller holds, or the
    answer may fill the context."""
    unlimited: frozenset[str]
    """Entries whose servers ignore limits."""
    least: int
    """No limit is lowered below so many tokens."""

    def with_limit(self, entry: str, tokens: int) -> "AnswerLimits":
        """Return the same with this limit of one entry."""
        return msgspec.structs.replace(self, tokens={**self.tokens, entry: tokens})

    def after(self, drawn: int) -> "AnswerLimits":
        """Return the limits of the rest of an answer of which so many tokens are there."""
        return msgspec.structs.replace(self, tokens={name: max(1, most - drawn) for name, most in self.tokens.items()})


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants, and how it is to be served. Of `generation.messages` and `prompts` exactly one is set."""

    api: Literal["chat", "completion"]
    requested_model: str
    """The name of a model or of `auto`; what follows the colon is the adapter."""
    generation: GenerationRequest
    """What a tier is asked for, whichever it is; `generations` adds what depends on the tier, on the caller and on
    which of the `prompts` it is. Its `arrival` is set, and `n` are the choices that the caller gets per prompt: the
    best of `best_of` if that is set.
    """
    created_at: float
    """UTC epoch seconds."""
    prompts: list[Prompt] | None = None
    unset: tuple[str, ...] = ()
    """Sampling fields left to the tier."""
    stream: bool = False
    caller: Caller = KEYLESS
    own_consent: Consent = ALL
    """What the request itself consents to, its key aside."""
    private: PrivateMark | None = None
    """What narrowed it to local tiers; None for nothing."""
    usual_max_tokens: bool = False
    """Whether `max_tokens` is the API's own default, which a server elsewhere is not sent."""
    best_of: int | None = None
    service_tier: str | None = None
    """The service tier that the answer repeats."""
    metadata: dict[str, str] | None = None
    """The caller's tags, recorded as they are."""
    options: RoutingOptions = NO_OPTIONS
    """What it says of its routing. The credential there is for the tier that is asked first."""
    trace: TraceContext | None = None
    user: str | None = None
    """The caller's end user, by whose name experiments are split; not recorded."""
    client: ClientTurn | None = None
    """What its client says of it; None where nothing is recognised."""
    dropped_turns: int = 0
    """How many of its oldest turns were left out, because no tier could read them all."""
    ruled_headers: dict[str, str] | None = None
    """The headers that the catalogue's rules look at; None without any."""
    limits: AnswerLimits | None = None
    """Limits of an answer under a budget whose caller sets none; None for others."""
    names: FieldNames = FieldNames()
    """How the caller's dialect calls its fields."""

    @property
    def request_id(self) -> str:
        """Its id, of ours or the caller's."""
        return self.generation.request_id

    def with_generation(self, **changes: Any) -> "InferenceRequest":
        """Return the request with these fields of its generation part."""
        return msgspec.structs.replace(self, generation=msgspec.structs.replace(self.generation, **changes))

    def without_credential(self) -> "InferenceRequest":
        """Return the request as any tier but the first may see it."""
        if self.options.credential is None:
            return self
        return msgspec.structs.replace(self, options=msgspec.structs.replace(self.options, credential=None))

    def for_another_answer(self, avoid: tuple[int, ...]) -> "InferenceRequest":
        """Return the request for another answer than the tokens `avoid`: with another seed, if it has one, because
        equal seeds draw equal answers."""
        sampling = self.generation.sampling
        grammar = sampling.grammar
        if grammar is not None and grammar.kind == "json_schema":
            grammar = msgspec.structs.replace(grammar, avoid=avoid)
        seed = None if sampling.seed is None else sampling.seed ^ 1
        return self.with_generation(sampling=msgspec.structs.replace(sampling, seed=seed, grammar=grammar))

    @property
    def wanted_quality(self) -> float | None:
        """The quality target that the request asks for, else that of its key; None for neither."""
        own = self.options.quality_target
        return self.caller.quality_target if own is None else own

    @property
    def max_cost_usd(self) -> float | None:
        """The most that it may be predicted to cost: by itself and by its key."""
        own, allowed = self.options.max_cost_usd, self.caller.max_cost_usd
        return own if allowed is None else allowed if own is None else min(own, allowed)

    @property
    def consent(self) -> Consent:
        """Which tiers may see it, and whether for more than its answer: what both its key and itself consent to."""
        if self.own_consent is ALL and self.options.credential is None:
            return self.caller.consent
        both = self.caller.consent.narrowed(self.own_consent)
        return both if self.options.credential is None else CredentialConsent.of(both)

    @property
    def key_id(self) -> str | None:
        return self.caller.key_id

    @property
    def is_bound(self) -> bool:
        """Whether tools, a grammar or an adapter shape the answer, so that it cannot be compared with a free one."""
        asked = self.generation
        return asked.sampling.grammar is not None or asked.tooling is not None or bool(asked.adapter)

    @property
    def is_comparable(self) -> bool:
        """Whether other tiers can answer the same request: free, or with the same `response_format` or tools."""
        asked = self.generation
        free = asked.sampling.grammar is None or asked.response_format is not None
        return free and not asked.adapter

    def least_room(self, max_context: int) -> int:
        """The tokens that a context of so many must have left for the answer: `max_tokens` is an upper bound, which an
        answer may fall short of. A prompt that is repeated without an answer may fill the context."""
        wanted, share = self.generation.max_tokens, max_context // MIN_ANSWER_SHARE or 1
        if not wanted:
            wanted = 0 if wanted == 0 and self.generation.echo else 1
        return wanted if wanted < share else share

    @property
    def choices(self) -> int:
        """How many choices the answer has, over all prompts."""
        return self.generation.n * len(self.prompts or [None])

    @property
    def drawn(self) -> int:
        """How many choices a tier draws for each prompt."""
        return self.best_of or self.generation.n

    @property
    def is_single(self) -> bool:
        """Whether one choice is drawn, for one prompt."""
        return self.choices == 1 and self.drawn == 1

    @property
    def scores_per_token(self) -> int:
        """How many log-probabilities the answer has for each token of the prompts that it repeats; 0 for none."""
        logprobs = self.generation.sampling.logprobs
        return self.generation.n * (1 + logprobs) if self.generation.echo and logprobs is not None else 0

    def most_scores(self) -> int:
        """Return an upper bound on the log-probabilities of repeated prompts, from their bytes."""
        each = self.scores_per_token
        return each and each * sum(map(most_tokens_of, self.prompts or ()))

    def stated_limit(self, spec: TierSpec) -> int | None:
        """Return the most output tokens of a choice at the tier of `spec`, by its caller, the catalogue or the limits
        that a budget sets; None where none of them sets any."""
        stated = spec.stated_limit(self.generation.max_tokens)
        usual = None if self.limits is None else self.limits.tokens.get(spec.name)
        return stated if usual is None else usual if stated is None else min(stated, usual)

    def is_deterministic(self, spec: TierSpec) -> bool:
        """Whether the tier of `spec` gives equal requests equal answers: with temperature 0 or a seed, all draws of our
        tiers are functions of the request (SPEC GW-04); of other servers it is what the caller asked for."""
        left_open = "temperature" in self.unset
        temperature = spec.sampling.temperature if left_open else self.generation.sampling.temperature
        return self.generation.sampling.seed is not None or temperature == 0

    @property
    def is_bounded(self) -> bool:
        """Whether its caller has a budget, or it a maximum cost."""
        return bool(self.caller.allowance.budgets) or self.max_cost_usd is not None

    def most_prompt_tokens(self) -> int:
        """Return an upper bound on the prompt's tokens, from its bytes; the longest prompt's, of several."""
        read = self.generation.prompts_read
        if (most := read.get(_MOST_TOKENS)) is None:
            # Kept, since megabytes take milliseconds.
            most = read[_MOST_TOKENS] = self._most_prompt_tokens()
        return int(most)

    def _most_prompt_tokens(self) -> int:
        asked = self.generation
        if asked.messages is not None:
            return Conversation(asked.messages, asked.tooling, asked.template_variables, asked.opaque).most_tokens()
        return most_tokens_raw(self.prompts or ())

    def generations(self, spec: TierSpec) -> list[GenerationRequest]:
        """The requests for the tier of `spec`: one per prompt, with the tier's defaults and objective."""
        if self.prompts is None or len(self.prompts) == 1:
            return [self._generation(spec, self.request_id, self.prompts[0] if self.prompts else None)]
        return [
            self._generation(spec, f"{self.request_id}-{index}", prompt) for index, prompt in enumerate(self.prompts)
        ]

    def _generation(self, spec: TierSpec, request_id: str, prompt: Prompt | None) -> GenerationRequest:
        shared, options = self.generation, self.options
        changes = {name: value for name in self.unset if (value := getattr(spec.sampling, name)) is not None}
        explicit = (*shared.given, *changes) if changes else shared.given
        if self.drawn > shared.n and shared.sampling.logprobs is None:
            changes["logprobs"] = 0  # the best choices are ranked by them
        usual = spec.objective.ttft_ms / 1e3 if options.slo is None else SLO_CLASSES[options.slo].ttft_seconds
        seconds = usual if options.deadline_seconds is None else options.deadline_seconds
        return msgspec.structs.replace(
            shared,
            request_id=request_id,
            prompt=prompt,
            sampling=msgspec.structs.replace(shared.sampling, **changes) if changes else shared.sampling,
            reasoning_effort=effort_at(shared, spec),
            max_tokens=None if self.usual_max_tokens and spec.remote is not None else shared.max_tokens,
            given=explicit,
            n=self.drawn,
            deadline=shared.arrival + seconds,
            strict_deadline=options.deadline_seconds is not None,
            salt=self.caller.tenant,
            trace=None if self.trace is None else self.trace.headers,
            whole=not self.stream,
            credential=options.credential if spec.asks_credential else None,
            # Each attempt counts its own.
            sent=Sent(),
            meter=UsageMeter(),
        )

    def recorded_messages(self) -> list[dict[str, str]] | None:
        """The conversation as the record keeps it; a raw prompt is one turn of the role `prompt`. Only text
        is kept: `attachments` says what else there was."""
        if not self.consent.reuse:
            return None
        if self.generation.messages is not None:
            return [
                {"role": message.role, "content": message.recorded_content()}
                | ({"attachments": message.attachments} if message.media else {})
                for message in self.generation.messages
            ]
        return [
            {"role": "prompt", "content": prompt if isinstance(prompt, str) else _written(prompt)}
            for prompt in self.prompts or []
        ]


def _written(ids: list[int]) -> str:
    """Numbers with spaces between them; there may be hundreds of thousands."""
    return msgspec.json.encode(ids)[1:-1].replace(b",", b" ").decode()


def effort_at(asked: GenerationRequest, spec: TierSpec) -> ReasoningEffort | None:
    """The reasoning effort for the tier of `spec`: what the caller says of thinking, in any form, comes first."""
    if asked.reasoning_effort is not None or asked.reasoning_budget is not None or spec.effort is None:
        return asked.reasoning_effort
    return None if asked.opaque is not None and asked.opaque.says_thinking else spec.effort
