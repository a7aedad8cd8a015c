"""One caller's request after parsing, independent of HTTP."""

from typing import Any, Literal

import msgspec

from gateway.base.requests.caller import KEYLESS, Caller
from gateway.base.requests.slo_class import SLO_CLASSES, SloName
from gateway.base.requests.trace_context import TraceContext
from inference_core.protocol import SamplingParams
from tiers.catalog.tier_spec import SamplingDefaults, TierSpec
from tiers.consent import ALL, Consent
from tiers.prompt_bounds import Conversation, most_tokens_of, most_tokens_raw
from tiers.tier import ChatMessage, GenerationRequest, ReasoningEffort
from tiers.tool_types import Tooling

Prompt = str | list[int]
CacheMode = Literal["use", "refresh", "exact", "off"]
TIER_DEFAULTS = SamplingDefaults.__struct_fields__
_MOST_TOKENS = "most tokens"
# Of a context, for an answer: with less, an agent's ends in the middle of a call.
LEAST_SHARE = 16


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `messages` and `prompts` is set.

    `arrival`: monotonic seconds; `created_at`: UTC epoch seconds. `quality_target`: share of answers that must be
    no worse than the strongest tier's, None for the server's default. `deadline_seconds`: the caller's bound on the
    time to the first token, from arrival. `n`: choices per prompt, the best of `best_of` if that is set. `unset`:
    sampling fields left to the tier; `given`: the caller's that a server elsewhere gets even with their neutral value.
    `usual_max_tokens`: `max_tokens` is the API's own default, which a server elsewhere is not sent. `passed`: see
    `GenerationRequest`. `adapter`: what follows the colon of `requested_model`, "" for none. `own_consent`: what the
    request itself consents to, its key aside. `service_tier`: repeated in the answer. `metadata`: the caller's tags,
    recorded as they are. `user`: its end user, by whose name experiments are split; not recorded. `conversation`: the
    caller's id of it, None if it is recognised by its messages. `slo`: its service class. `cache`: how the response
    cache may be used, None for its default rule. `agree`: whether cheap tiers are compared, None for the knob's rule.
    `dropped_turns`: how many of its oldest turns were left out, because
    no tier could read them all. `echo`, `include_stop`, `prompts_read`, `template_variables` and the `reasoning_…`
    fields: see `GenerationRequest`.
    """

    request_id: str
    api: Literal["chat", "completion"]
    requested_model: str
    sampling: SamplingParams
    arrival: float
    created_at: float
    unset: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    messages: list[ChatMessage] | None = None
    prompts: list[Prompt] | None = None
    stream: bool = False
    caller: Caller = KEYLESS
    own_consent: Consent = ALL
    max_tokens: int | None = None
    usual_max_tokens: bool = False
    passed: dict[str, Any] = {}
    stop: tuple[str, ...] = ()
    tooling: Tooling | None = None
    response_format: dict[str, Any] | None = None
    n: int = 1
    best_of: int | None = None
    echo: bool = False
    include_stop: bool = False
    reasoning_effort: ReasoningEffort | None = None
    reasoning_budget: int | None = None
    template_variables: dict[str, Any] = {}
    priority: int = 1
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    quality_target: float | None = None
    min_tier: int | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None
    trace: TraceContext | None = None
    adapter: str = ""
    user: str | None = None
    conversation: str | None = None
    slo: SloName | None = None
    cache: CacheMode | None = None
    agree: bool | None = None
    dropped_turns: int = 0
    prompts_read: dict[Any, Any] = msgspec.field(default_factory=dict)

    @property
    def wanted_quality(self) -> float | None:
        """The quality target that the request asks for, else that of its key; None for neither."""
        return self.caller.quality_target if self.quality_target is None else self.quality_target

    @property
    def consent(self) -> Consent:
        """Which tiers may see it, and whether for more than its answer: what both its key and itself consent to."""
        own, keys = self.own_consent, self.caller.consent
        return keys if own is ALL else keys.narrowed(own)

    @property
    def key_id(self) -> str | None:
        """The pseudonym of the caller's key."""
        return self.caller.key_id

    @property
    def is_bound(self) -> bool:
        """Whether tools, a grammar or an adapter shape the answer, so that it cannot be compared with a free one."""
        return self.sampling.grammar is not None or self.tooling is not None or bool(self.adapter)

    @property
    def is_comparable(self) -> bool:
        """Whether other tiers can answer the same request: unconstrained, or with the same `response_format`."""
        free = self.sampling.grammar is None or self.response_format is not None
        return free and self.tooling is None and not self.adapter

    def least_room(self, max_context: int) -> int:
        """The tokens that a context of so many must have left for the answer: `max_tokens` is an upper bound, which an
        answer may fall short of."""
        wanted, share = self.max_tokens or 1, max_context // LEAST_SHARE or 1
        return wanted if wanted < share else share

    @property
    def choices(self) -> int:
        """How many choices the answer has, over all prompts."""
        return self.n * len(self.prompts or [None])

    @property
    def scores_per_token(self) -> int:
        """How many log-probabilities the answer has for each token of the prompts that it repeats; 0 for none."""
        logprobs = self.sampling.logprobs
        return self.n * (1 + logprobs) if self.echo and logprobs is not None else 0

    def most_scores(self) -> int:
        """Return an upper bound on the log-probabilities of repeated prompts, from their bytes."""
        each = self.scores_per_token
        return each and each * sum(map(most_tokens_of, self.prompts or ()))

    def is_deterministic(self, spec: TierSpec) -> bool:
        """Whether the tier of `spec` gives equal requests equal answers: with temperature 0 or a seed, all draws of our
        tiers are functions of the request (SPEC GW-04); of other servers it is what the caller asked for."""
        left_open = "temperature" in self.unset
        temperature = spec.sampling.temperature if left_open else self.sampling.temperature
        return self.sampling.seed is not None or temperature == 0

    def most_prompt_tokens(self) -> int:
        """Return an upper bound on the prompt's tokens, from its bytes; the longest prompt's, of several."""
        if (most := self.prompts_read.get(_MOST_TOKENS)) is None:
            # Kept, since megabytes take milliseconds.
            most = self.prompts_read[_MOST_TOKENS] = self._most_prompt_tokens()
        return int(most)

    def _most_prompt_tokens(self) -> int:
        if self.messages is not None:
            return Conversation(self.messages, self.tooling, self.template_variables).most_tokens()
        return most_tokens_raw(self.prompts or ())

    def generations(self, spec: TierSpec) -> list[GenerationRequest]:
        """The requests for the tier of `spec`: one per prompt, with the tier's defaults and objective."""
        if self.prompts is None or len(self.prompts) == 1:
            return [self._generation(spec, self.request_id, self.prompts[0] if self.prompts else None)]
        return [
            self._generation(spec, f"{self.request_id}-{place}", prompt) for place, prompt in enumerate(self.prompts)
        ]

    def _generation(self, spec: TierSpec, request_id: str, prompt: Prompt | None) -> GenerationRequest:
        defaults = spec.sampling
        changes = {name: value for name in self.unset if (value := getattr(defaults, name)) is not None}
        given = (*self.given, *changes) if changes else self.given
        drawn = self.best_of or self.n
        if drawn > self.n and self.sampling.logprobs is None:
            changes["logprobs"] = 0  # the best choices are ranked by them
        usual = spec.objective.ttft_ms / 1e3 if self.slo is None else SLO_CLASSES[self.slo].ttft_seconds
        seconds = usual if self.deadline_seconds is None else self.deadline_seconds
        return GenerationRequest(
            request_id=request_id,
            messages=self.messages,
            prompt=prompt,
            sampling=msgspec.structs.replace(self.sampling, **changes),
            max_tokens=None if self.usual_max_tokens and spec.remote is not None else self.max_tokens,
            given=given,
            passed=self.passed,
            stop=self.stop,
            n=drawn,
            echo=self.echo,
            include_stop=self.include_stop,
            reasoning_effort=self.reasoning_effort,
            reasoning_budget=self.reasoning_budget,
            template_variables=self.template_variables,
            tooling=self.tooling,
            response_format=self.response_format,
            priority=self.priority,
            arrival=self.arrival,
            deadline=self.arrival + seconds,
            strict_deadline=self.deadline_seconds is not None,
            salt=self.caller.tenant,
            adapter=self.adapter,
            trace=None if self.trace is None else self.trace.headers,
            whole=not self.stream,
            prompts_read=self.prompts_read,
        )

    def recorded_messages(self) -> list[dict[str, str]] | None:
        """The conversation as the record keeps it; a raw prompt is one turn of the role `prompt`. Only text
        is kept: `attachments` says what else there was."""
        if not self.consent.reuse:
            return None
        if self.messages is not None:
            return [
                {"role": message.role, "content": message.recorded_content()}
                | ({"attachments": message.attachments} if message.parts else {})
                for message in self.messages
            ]
        return [
            {"role": "prompt", "content": prompt if isinstance(prompt, str) else _written(prompt)}
            for prompt in self.prompts or []
        ]


def _written(ids: list[int]) -> str:
    """Numbers with spaces between them; there may be hundreds of thousands."""
    return msgspec.json.encode(ids)[1:-1].replace(b",", b" ").decode()
