"""One tier of a catalogue as typed data: model or server, decoding policy, sampling, price and objective.

`Capabilities` are what its model can take and give, other than text.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec

from tiers.catalog.replica_spec import ApiKeySpec, BalancingSpec, ReplicaSpec
from tiers.conversation import ReasoningEffort
from tiers.engines import EngineSpec

Capability = Literal["vision", "audio", "files", "tools", "json_schema", "logprobs"]
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)
# Parts of messages.
MEDIA: tuple[Capability, ...] = ("vision", "audio", "files")
CAPABILITY_OF: Mapping[str, Capability] = {
    "image": "vision",
    "video": "vision",
    "audio": "audio",
    "file": "files",
}

# Of in-process models and of most servers, unless declared otherwise.
USUAL: frozenset[Capability] = frozenset({"tools", "json_schema", "logprobs"})
# Kinds of servers whose own API has less, or whose models all have more.
USUAL_OF_KIND: Mapping[str, frozenset[Capability]] = {
    "triton-tensorrt-llm": frozenset({"json_schema"}),
    "triton-vllm": frozenset(),
    "anthropic": frozenset({"vision", "files", "tools", "json_schema"}),
    "gemini": frozenset({"vision", "audio", "files", "tools", "json_schema"}),
    "bedrock": frozenset({"tools"}),
    "vertex-gemini": frozenset({"vision", "audio", "files", "tools", "json_schema"}),
    "vertex-anthropic": frozenset({"vision", "files", "tools", "json_schema"}),
}
# Kinds of servers of which every model gives log-probabilities; some of OpenAI's reject a request for them.
LOGPROB_KINDS = frozenset({"vllm", "sglang"})


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declared abilities of a tier; None: not declared, and the default of its kind of server holds."""

    vision: bool | None = None
    """Whether it reads images in messages."""
    audio: bool | None = None
    """Whether it reads audio in messages."""
    files: bool | None = None
    """Whether it reads files in messages."""
    tools: bool | None = None
    """Whether it calls functions."""
    json_schema: bool | None = None
    """Whether it answers by a schema."""
    logprobs: bool | None = None
    """Whether it gives log-probabilities of its tokens."""

    def over(self, usual: frozenset[Capability]) -> frozenset[Capability]:
        """Return what a tier has whose kind of server usually has `usual`."""
        declared = {name: getattr(self, name) for name in CAPABILITIES}
        return frozenset(name for name in CAPABILITIES if (name in usual if declared[name] is None else declared[name]))


Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]

MIN_TIERS, MAX_TIERS = 2, 8
HOUR_WRITE_FACTOR = 2.0
"""What a token written into Anthropic's cache for an hour costs, in multiples of one of the prompt."""
USUAL_CONTEXT = 32_768
"""Tokens, where neither catalogue, price list nor server tells a remote model's context."""
TierNumber = Annotated[int, msgspec.Meta(ge=1, le=MAX_TIERS)]


class TierClass(StrEnum):
    """The kind of prompt a tier is made for (SPEC RT-01): the hardest that a 3B, an 8B or a 70B model, or a 70B model
    with chain of thought, answers well enough."""

    SIMPLE = "SIMPLE"
    MEDIUM = "MEDIUM"
    COMPLEX = "COMPLEX"
    EXPERT = "EXPERT"


RemoteKind = Literal[
    "openai", "vllm", "sglang", "llama-server", "tensorrt-llm", "tgi", "triton-tensorrt-llm", "triton-vllm",
    "openai-provider", "azure", "anthropic", "gemini", "bedrock", "vertex-gemini", "vertex-anthropic",
]  # fmt: skip
ONE_CHOICE: tuple[RemoteKind, ...] = ("anthropic", "gemini", "bedrock", "vertex-gemini", "vertex-anthropic")
"""Kinds of servers whose answers have one choice, so that several are several requests."""
OWN_SERVERS: frozenset[RemoteKind] = frozenset(
    {"vllm", "sglang", "llama-server", "tensorrt-llm", "tgi", "triton-tensorrt-llm", "triton-vllm"}
)
"""Kinds of servers that one runs oneself."""

ProviderName = Literal[
    "anthropic", "azure", "bedrock", "deepseek", "fireworks", "gemini", "groq", "mistral", "openai", "openrouter",
    "together", "vertex", "xai",
]  # fmt: skip


CallDialectName = Literal["hermes", "llama3", "mistral"]
"""How a model writes calls of tools into its text."""
ServedEndpoint = Literal["rerank", "moderations", "images", "speech", "transcriptions"]
"""Endpoints besides answers that are passed through; `transcriptions` are translations, too, `images` also edits."""


class TlsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM for the `https` of a server."""

    ca: str | None = None
    """The authorities that the server's certificate may be of, instead of those of this machine."""
    certificate: str | None = None
    """The certificate that AIO shows it."""
    key: str | None = None
    """The certificate's key, if it is in a file of its own."""


NO_TLS = TlsSpec()


class RemoteSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server elsewhere that answers for a tier.

    Several servers of the same model have `base_urls` instead of `base_url`, or `replicas`, which may differ in weight
    and key; requests are spread as `balancing` says.
    """

    base_url: str = ""
    """The part before `/chat/completions` (usually ending in `/v1`), Triton's before `/v2`."""
    base_urls: list[str] = []
    replicas: list[ReplicaSpec] = []
    balancing: BalancingSpec = BalancingSpec()
    engine: EngineSpec | None = None
    """Instead of an address: the server is a process that AIO starts itself, at an address of its own choice."""
    kind: RemoteKind = "openai"
    """The kind of server, which decides its health probe, its queue metrics and its own field names. `openai` is any
    OpenAI-compatible server. The others are vLLM, SGLang, `llama-server`, `trtllm-serve`, Hugging Face's Text
    Generation Inference (`tgi`), and Triton Inference Server with the TensorRT-LLM or the vLLM backend, where `model`
    is the name in Triton's model repository; and a provider's API (`TierSpec.provider`): OpenAI's as providers have it,
    Azure OpenAI, Anthropic Messages, Gemini, Bedrock's Converse, and Vertex AI, whose `api_key_env` names a file of
    credentials.
    """
    model: str = ""
    """Empty for the server's only model, which is found when the tier starts."""
    tokenizer: str | None = None
    """For Triton, the model file or folder whose chat template formats conversations; without it only raw prompts are
    answered.
    """
    cumulative_text: bool = False
    """For Triton with TensorRT-LLM, whether each event repeats the text before it, as the model `tensorrt_llm_bls` does
    with `accumulate_tokens`.
    """
    whole_path: Literal["generate", "infer"] = "generate"
    """For Triton with TensorRT-LLM, the endpoint for whole answers; `infer` for a model that is not decoupled."""
    max_context: Annotated[int, msgspec.Meta(ge=2)] | None = None
    """In tokens; None for what the server tells, else `USUAL_CONTEXT`."""
    api_key_env: str | None = None
    """The environment variable with the key; a catalogue never contains the key."""
    api_keys: list[ApiKeySpec] = []
    """Several keys for the one `base_url`, instead of `api_key_env`; requests are spread over them as over replicas."""
    credentials: Literal["catalogue", "caller"] = "catalogue"
    """Whose credentials the server gets: those that the catalogue names, or the caller's own, sent with the request."""
    connect_timeout_seconds: Positive = 5.0
    read_timeout_seconds: Positive = 60.0
    total_timeout_seconds: Positive = 600.0
    stream_usage: bool = True
    """Whether to ask for token counts (`stream_options`); switch it off for a server that rejects the field."""
    stream_whole: bool = False
    """Stream from the server even if the caller wants the whole answer. A hanging server is then detected after
    `read_timeout_seconds` instead of `total_timeout_seconds`, for more work per token.
    """
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """OpenAI's reasoning models accept only `max_completion_tokens`, older servers only `max_tokens`."""
    service_fields: bool = True
    """Whether the server gets fields of the caller that mean something to a provider alone (`user`, `store`,
    `metadata`, `prompt_cache_key` and the like); switch it off for a server that refuses them.
    """
    responses: Literal["never", "needed", "always"] = "never"
    """Whether chats reach the server by OpenAI's Responses API: `needed`, where a request loses something as a chat
    (reasoning next to tools, tools that the provider runs), `always`, or `never`.
    """
    tls: TlsSpec = NO_TLS
    """Certificates of its own for the servers."""
    body: dict[str, Any] = {}
    """Further fields of every request, as `{ chat_template_kwargs = { enable_thinking = false } }`, where the caller
    has not set them.
    """
    forward: list[str] = []
    """Names of fields beyond OpenAI's API that the server gets from callers, in addition to those that its kind is
    known to have.
    """

    @property
    def servers(self) -> list[ReplicaSpec]:
        """All servers in one form, one or several; one with several keys is several."""
        if self.api_keys and self.base_url:
            return [
                ReplicaSpec(
                    base_url=self.base_url,
                    api_key_env=key.env,
                    requests_per_minute=key.requests_per_minute,
                    tokens_per_minute=key.tokens_per_minute,
                )
                for key in self.api_keys
            ]
        urls = [self.base_url] if self.base_url else self.base_urls
        return [ReplicaSpec(base_url=url) for url in urls] + self.replicas

    @property
    def is_triton(self) -> bool:
        """Whether it speaks Triton's protocol instead of OpenAI's."""
        return self.kind.startswith("triton-")

    @property
    def is_replicated(self) -> bool:
        """Whether the servers or their keys are given as a list, even of one."""
        return bool(self.api_keys) or (not self.base_url and self.engine is None)

    def alone(self, replica: ReplicaSpec) -> "RemoteSpec":
        """Return this spec with `replica` as the only server."""
        key = replica.api_key_env or self.api_key_env
        return msgspec.structs.replace(
            self, base_url=replica.base_url, base_urls=[], replicas=[], api_keys=[], api_key_env=key
        )


class PlainSpec(msgspec.Struct, frozen=True, tag_field="kind", tag="plain", forbid_unknown_fields=True):
    """Decode once."""


class SelfConsistencySpec(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="self-consistency", forbid_unknown_fields=True
):
    """Majority vote of several samples if the answer is short and checkable (Wang et al. 2022)."""

    samples: Annotated[int, msgspec.Meta(ge=2, le=64)] = 5
    temperature: Annotated[float, msgspec.Meta(gt=0, le=2)] = 0.7


class ChainOfThoughtSpec(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="chain-of-thought", forbid_unknown_fields=True
):
    r"""Think first, within `budget_tokens`, then answer (SPEC TI-04). A model that writes `<think>…</think>` itself
    needs opening `<think>\n`, marker `</think>` and answer opening `\n</think>\n\n`.

    Probes are greedy answers. They take their tokens from the budget and are billed as reasoning.
    """

    budget_tokens: Count
    instruction: str = "Think step by step before you answer."
    """Appended to the last user turn."""
    opening: str = "Let's think step by step.\n"
    """Starts the assistant's turn. Thinking ends at the first of `end_markers`, at the end of the turn or with the
    budget.
    """
    end_markers: tuple[str, ...] = ("</think>", "Final answer:")
    answer_opening: str = "\n\nFinal answer:"
    """Introduces the answer after the thoughts."""
    min_answer_tokens: Count = 64
    """Tokens that are reserved for the answer, or half of a small `max_tokens`."""
    settled_probes: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    """End the thought once that many consecutive probes gave the same short answer; 0 never probes for agreement."""
    probe_confidence: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """End the thought at the first probe whose answer the model is that sure of (SPEC TI-16), by the geometric mean of
    its tokens' probabilities; 0 never does.
    """
    probe_every_tokens: Count = 32
    """Probes are drawn at ends of sentences at least so many tokens apart."""
    probe_tokens: Count = 16
    """Most tokens of a probe."""


PolicySpec = PlainSpec | SelfConsistencySpec | ChainOfThoughtSpec


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values for requests that do not set them (SPEC GW-04); None: the catalogue sets none. A tier in process then has
    those of `USUAL_SAMPLING`, and a server elsewhere its own."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Positive | None = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


USUAL_SAMPLING = SamplingDefaults(temperature=0.7, top_p=0.9, top_k=0, min_p=0.0, repetition_penalty=1.0)
"""Of tiers in process."""


class PriceStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all tokens of a request cost whose prompt has more than `above_prompt_tokens`; else as `Price`."""

    above_prompt_tokens: Count
    input_usd_per_million: NonNegative
    output_usd_per_million: NonNegative
    cached_input_usd_per_million: NonNegative | None = None
    cache_write_usd_per_million: NonNegative | None = None
    cache_write_1h_usd_per_million: NonNegative | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """US dollars per million tokens; dollars per million times tokens are micro-dollars."""

    input_usd_per_million: NonNegative
    output_usd_per_million: NonNegative
    cached_input_usd_per_million: NonNegative | None = None
    """Price of prompt tokens that a server read from its cache; None is as much as other prompt tokens."""
    cache_write_usd_per_million: NonNegative | None = None
    """Price of prompt tokens that it wrote into its cache; None is as much as other prompt tokens."""
    cache_write_1h_usd_per_million: NonNegative | None = None
    """Price of prompt tokens that it wrote for an hour. None is twice as much as other prompt tokens where writes have
    a price at all, which is Anthropic's rule (its page on prompt caching: 1.25 times for five minutes, twice for an
    hour).
    """
    steps: list[PriceStep] = []
    """Other prices of long prompts, ascending."""
    estimated: Literal["", "size", "seconds", "order"] = ""
    """The basis of an estimate if the catalogue has no price (`tiers.catalog.pricing`): the model's size, the seconds
    of an answer, or the tier's position; "" for a given price.
    """
    listed: str = ""
    """The price list that it comes from, with its version; "" for a price of the catalogue or an estimate."""

    def of_prompt(self, tokens: float) -> "Price":
        """Return the price of a request with a prompt of so many tokens."""
        last = None
        for step in self.steps:
            if tokens > step.above_prompt_tokens:
                last = step
        if last is None:
            return self
        rates = {name: getattr(last, name) for name in PriceStep.__struct_fields__ if name != "above_prompt_tokens"}
        return Price(**rates, estimated=self.estimated, listed=self.listed)

    @property
    def hour_write_usd_per_million(self) -> float | None:
        """The price of prompt tokens that a server writes into its cache for an hour; None: that of any others."""
        if self.cache_write_1h_usd_per_million is not None or self.cache_write_usd_per_million is None:
            return self.cache_write_1h_usd_per_million
        return HOUR_WRITE_FACTOR * self.input_usd_per_million


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency objective in milliseconds: time to first token and time between tokens."""

    ttft_ms: Positive
    itl_ms: Positive


USUAL_OBJECTIVE = Objective(ttft_ms=2000, itl_ms=100)
NO_PRICE = Price(input_usd_per_million=0.0, output_usd_per_million=0.0, estimated="order")


class TierSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tier; SPEC RT-07's six fields are `number`, `model_name`, `url`, `price`, `mean_latency_ms`, `max_tokens`.

    Only `name` and one of `model`, `remote`, and `provider` with `model` are required. Other missing values are filled
    in when the catalogue is read (`tiers.catalog.defaults`); until then they are 0, or `NO_PRICE`. A `provider` has
    become a `remote` table by then.
    """

    SHORT_FORM: ClassVar[tuple[str, ...]] = (
        "url", "kind", "api_key_env", "api_keys", "credentials", "max_context", "body", "forward",
        "read_timeout_seconds", "total_timeout_seconds", "balancing", "tls",
    )  # fmt: skip
    """Further keys of an entry in TOML, which the reader moves to `remote`."""

    number: TierNumber = 0
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    tier_class: TierClass | None = msgspec.field(name="class", default=None)
    """Describes the tier: it routes prompts while no outcomes of these tiers are known."""
    model: str | None = None
    """A model of the catalogue's cores. Exactly one of `model` and `remote` is set."""
    adapter: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """The LoRA adapter that the tier answers with, by its name among those of its model or by the path of its PEFT
    folder, which becomes a name when the catalogue is read (SPEC TI-10).
    """
    provider: ProviderName | None = None
    remote: RemoteSpec | None = None
    policy: PolicySpec = PlainSpec()
    sampling: SamplingDefaults = SamplingDefaults()
    price: Price = NO_PRICE
    objective: Objective = USUAL_OBJECTIVE
    expected_answer_tokens: Count = 0
    """The mean number of billed output tokens, reasoning and discarded samples included; it determines predicted costs.
    """
    mean_latency_ms: Positive = 0.0
    """The expected duration of an answer; routing uses it until there are measurements."""
    max_tokens: Count = 0
    """Most output of one request; 0 for no bound."""
    default_max_tokens: Count | None = None
    """Most output of a request without its own bound; None means `max_tokens`. Without either, a server elsewhere gets
    only the caller's bound.
    """
    effort: ReasoningEffort | None = None
    """The reasoning effort of requests that say nothing of thinking themselves; one model at several efforts is several
    tiers, which share its cache.
    """
    max_output_tokens: Count | None = None
    """The most that the model of a server elsewhere can answer, as its maker publishes it; None for what the server
    tells of it.
    """
    tool_dialect: CallDialectName | None = None
    """How the model writes tool calls, if its chat template does not show it."""
    capabilities: Capabilities = Capabilities()
    fallback: list[str] | None = None
    """The names of tiers and targets that are tried in this order if the tier fails before its answer starts; None for
    the next tier up, once.
    """
    fallback_named: bool = False
    """Whether a request that names the entry goes on to the tiers of its `fallback`, too, instead of to its targets
    alone.
    """
    serves: list[ServedEndpoint] = []
    """The further endpoints of its server that are passed through for it."""
    unit_prices: dict[ServedEndpoint, NonNegative | Annotated[dict[str, NonNegative], msgspec.Meta(min_length=1)]] = {}
    """US dollars for each of these endpoints: per thousand searches of `rerank` and inputs of `moderations`, per image,
    per million characters of `speech`, per hour of `transcriptions`. Images may have a table of prices by size and
    quality: `"1024x1024"`, `"hd 1792x1024"`, and `default` for requests that name neither.
    """
    extra_prices: dict[str, NonNegative] = {}
    """What its server bills besides tokens, by the names of `tiers.dialects.extras`: US dollars of a use, or what the
    prices of tokens are multiplied by.
    """
    local: bool | None = None
    """Whether what it is sent stays in the operator's network; None for what `is_local` says."""

    @property
    def model_name(self) -> str:
        """The model that answers, local or remote; the tier's name for a server's only model, not in the catalogue."""
        return (self.remote.model or self.name) if self.remote is not None else str(self.model)

    @property
    def served_name(self) -> str:
        """The model with the adapter that the tier binds, as requests name it: `MODEL:ADAPTER`, or the model alone."""
        return self.model_name if self.adapter is None else f"{self.model_name}:{self.adapter}"

    @property
    def url(self) -> str:
        """The address of the tier: a base URL or several, the program that AIO starts, or `in-process`."""
        if self.remote is not None and self.remote.engine is not None:
            return f"engine {self.remote.engine.kind}"
        return ", ".join(s.base_url for s in self.remote.servers) if self.remote is not None else "in-process"

    @property
    def is_local(self) -> bool:
        """Whether what the tier is sent stays in the operator's network: as declared, else where its model runs in AIO
        or in an engine that AIO starts. Of a server with an address nothing is assumed."""
        return self.remote is None or self.remote.engine is not None if self.local is None else self.local

    @property
    def asks_credential(self) -> bool:
        """Whether its server is asked with the caller's own credential."""
        return self.remote is not None and self.remote.credentials == "caller"

    @property
    def has(self) -> frozenset[Capability]:
        """What the tier can take and give: what is declared, else what its kind of server usually has."""
        usual = USUAL if self.remote is None else USUAL_OF_KIND.get(self.remote.kind, USUAL)
        return self.capabilities.over(usual)

    @property
    def tells_logprobs(self) -> bool:
        """Whether a request for log-probabilities is safe: as declared, else for a model of ours, and where every model
        of its kind of server gives them."""
        declared = self.capabilities.logprobs
        return self.remote is None or self.remote.kind in LOGPROB_KINDS if declared is None else declared

    def stated_limit(self, max_tokens: int | None) -> int | None:
        """Return the most output tokens of a choice by the catalogue or this `max_tokens`; None: neither sets it."""
        wanted, most = self.default_max_tokens if max_tokens is None else max_tokens, self.max_tokens or None
        return most if wanted is None or (most is not None and most < wanted) else wanted

    @property
    def samples_per_choice(self) -> int:
        """The number of sequences that one choice may bill, each up to the request's `max_tokens`."""
        return self.policy.samples if isinstance(self.policy, SelfConsistencySpec) else 1
