"""A model that may become a tier: where it is, and what is known of it; and the providers whose keys are in the
environment, with those of their models that make sensible tiers.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tiers.catalog.gpu_group import GpuGroupSpec, named_billions
from tiers.catalog.price_list import is_closed, listed_family, listed_model
from tiers.catalog.pricing import price_of_size, request_cost_usd
from tiers.catalog.providers import PROVIDER_KINDS, PROVIDERS, given_variable
from tiers.catalog.tier_spec import OWN_SERVERS, Capabilities, Price, ProviderName, RemoteKind

PROMPT_TOKENS, ANSWER_TOKENS = 200, 200
"""Of the request by which candidates are ordered; as a catalogue's defaults."""
# Ends of names that are resolved in one's own network alone.
_OWN_NAMES = (".local", ".internal", ".lan", ".intranet", ".home.arpa", ".localhost", ".svc")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `url`, `provider`, `path`, `group` and `remote` is set."""

    source: str
    """Where it was found, in words; candidates of one source are one server's or one key's."""
    model: str
    """The model's name there; "" is a server's only model, still unknown."""
    url: str = ""
    provider: str = ""
    path: str = ""
    group: GpuGroupSpec | None = None
    """The GPU group that holds the model of this name."""
    name: str = ""
    kind: RemoteKind = "openai"
    api_key_env: str | None = None
    max_context: int | None = None
    context_note: str = ""
    """Why `max_context` is what it is, where a reader may want to change it."""
    capabilities: Capabilities = Capabilities()
    billions: float | None = None
    price: Price | None = None
    """The price list's price, or that of `price_from`; None if the list does not know it."""
    price_from: str = ""
    is_default: bool = True
    """Whether it may be proposed without a question."""
    remote: dict[str, Any] = {}
    """The entry's whole table of that name."""
    further: dict[str, Any] = {}
    """Other fields of the entry."""

    @property
    def estimate(self) -> Price | None:
        """The price, or an estimate by the model's size; None if neither is known."""
        billions = self.billions or named_billions(self.model)
        return self.price or (None if billions is None else price_of_size(billions))

    @property
    def addresses(self) -> list[str]:
        """Where its server is; empty for a model in process."""
        table = self.remote
        many = [replica["base_url"] for replica in table.get("replicas", [])] + table.get("base_urls", [])
        return [url for url in (self.url, table.get("base_url", ""), *many) if url]

    @property
    def is_own(self) -> bool:
        """Whether it runs on a server of one's own, which costs the same used or idle. A model that only its maker
        serves never does: what is at that address passes requests on."""
        kind = self.remote.get("kind", self.kind)
        if self.provider or kind in PROVIDER_KINDS or is_closed(self.model or str(self.remote.get("model", ""))):
            return False
        return kind in OWN_SERVERS or all(map(_is_own_host, self.addresses))

    @property
    def lacks_price(self) -> bool:
        """Whether it is paid by the token, at a price that is unknown."""
        return not self.is_own and (self.price is None or bool(self.price.estimated))

    @property
    def cost_usd(self) -> float:
        """US dollars of an ordinary request. Unknown is 0 for a server of one's own without a size in its name, and
        infinite for one that is paid by the token."""
        if (price := self.estimate) is None:
            return 0.0 if self.is_own else float("inf")
        return request_cost_usd(price, PROMPT_TOKENS * 1000, ANSWER_TOKENS * 1000) / 1000


def by_cost(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates, cheapest first; equal ones keep their order."""
    return sorted(map(guessed, candidates), key=lambda candidate: candidate.cost_usd)


def guessed(candidate: Candidate) -> Candidate:
    """Return a candidate that is paid by the token with a guess at its price, if it has none: that of the newest listed
    model of its family, else by its size."""
    if candidate.price is not None or candidate.is_own:
        return candidate
    model = candidate.model or str(candidate.remote.get("model", ""))
    family = listed_family(model)
    price = candidate.estimate if family is None else family.price
    if price is None:
        return candidate
    like = "a guess by its size" if family is None else f"a guess: that of {family.model}"
    return msgspec.structs.replace(candidate, price=_by_place(price), price_from=like)


def price_notes(candidates: Iterable[Candidate]) -> list[str]:
    """Return a line for each candidate whose price is unknown."""
    return [
        f"{candidate.name or candidate.model}: its price is unknown; it is placed "
        + ("last" if candidate.price is None else f"by {candidate.price_from}")
        + ". Write its price into the catalogue"
        for candidate in candidates
        if candidate.lacks_price
    ]


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates as tiers, cheapest first: models on servers of one's own, which cost the same used or idle,
    before those that are paid by the token. One whose price is unknown comes after all servers of one's own, and
    after the cheapest price that is known.

    Estimates are lowered to the cheapest paid model's price, or raised to the tier below's, so that costs rise.
    """
    ordered = by_cost(candidates)
    own = [model for model in ordered if model.is_own and (model.price is None or model.price.estimated)]
    paid = [model for model in ordered if model not in own]
    priced = [model for model in paid if not model.lacks_price]
    least = max((model.cost_usd for model in priced if model.is_own or model is priced[0]), default=0.0)
    paid.sort(key=lambda model: (max(model.cost_usd, least), True) if model.lacks_price else (model.cost_usd, False))
    return [_at_most(model, paid[0].price) for model in own] + _rising(paid) if paid else own


def _rising(paid: Sequence[Candidate]) -> list[Candidate]:
    """Raise guesses to the price of the candidate before them."""
    rising: list[Candidate] = []
    for model in paid:
        least = rising[-1].price if rising else None
        is_guess = model.price is not None and model.price.estimated
        if is_guess and least is not None and model.cost_usd < rising[-1].cost_usd:
            rising.append(msgspec.structs.replace(model, price=_by_place(least)))
        else:
            rising.append(model)
    return rising


def _by_place(price: Price) -> Price:
    """Return the first rates of a price as a guess that keeps its place among the tiers."""
    return Price(
        input_usd_per_million=price.input_usd_per_million,
        output_usd_per_million=price.output_usd_per_million,
        estimated="order",
    )


def _at_most(own: Candidate, ceiling: Price | None) -> Candidate:
    price = own.estimate
    if (
        price is None
        or ceiling is None
        or request_cost_usd(price, PROMPT_TOKENS, ANSWER_TOKENS)
        <= request_cost_usd(ceiling, PROMPT_TOKENS, ANSWER_TOKENS)
    ):
        return own
    return msgspec.structs.replace(own, price=_by_place(ceiling))


def _is_own_host(url: str) -> bool:
    """Whether an address is in one's own network, as far as its name tells."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((*_OWN_NAMES, ".cluster.local", "host.docker.internal"))
    return address.is_private or address.is_loopback


def proposed(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """Return at most `most` candidates that make sensible tiers: of every source its cheapest and its strongest."""
    chosen: list[Candidate] = []
    for source in dict.fromkeys(candidate.source for candidate in candidates):
        ordered = by_cost(candidate for candidate in candidates if candidate.source == source and candidate.is_default)
        chosen += ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]
    return in_order(chosen[:most])


def with_names(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, each with a name of its own: its model's, unless it has one."""
    named: list[Candidate] = []
    taken = {candidate.name for candidate in candidates if candidate.name}
    for candidate in candidates:
        name = candidate.name
        if not name:
            wanted = name = tier_name(candidate.model or "tier")
            number = 2
            while name in taken:
                name, number = f"{wanted}-{number}", number + 1
            taken.add(name)
        named.append(msgspec.structs.replace(candidate, name=name))
    return named


def tier_name(model: str) -> str:
    """Return a tier's name for a model: the last part of its name, of letters, digits, dots and dashes."""
    last = model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "tier"


class Proposal(NamedTuple):
    """A provider and the models to propose where its key is set: a cheap and a strong one, in the price list."""

    provider: ProviderName
    label: str
    models: tuple[str, ...]


PROPOSALS = (
    Proposal("openai", "OpenAI", ("gpt-6-luna", "gpt-6.1-sol")),
    Proposal("anthropic", "Anthropic", ("claude-haiku-5-5", "claude-opus-5-5")),
    Proposal("gemini", "Gemini", ("gemini-3.5-flash-lite", "gemini-4-argon")),
    Proposal("azure", "Azure OpenAI", ()),
    Proposal("openrouter", "OpenRouter", ("openai/gpt-6-luna", "anthropic/claude-opus-5.5")),
)
AZURE_DEPLOYMENTS = ("AZURE_OPENAI_DEPLOYMENT", "AZURE_OPENAI_DEPLOYMENT_NAME", "AZURE_OPENAI_CHAT_DEPLOYMENT_NAME")
OPENAI_HOSTS = ("https://api.openai.com/v1", "https://api.openai.com")


def provider_named(name: str) -> ProviderName | None:
    """Return the provider that a catalogue calls `name`."""
    return next((provider for provider in PROVIDERS if provider == name), None)


def key_variable(provider: ProviderName, environ: Mapping[str, str]) -> str | None:
    """Return the variable that holds the provider's key; None if none is set."""
    return given_variable(PROVIDERS[provider], environ)


def other_openai_server(environ: Mapping[str, str]) -> str | None:
    """Return `OPENAI_BASE_URL` if it is not OpenAI's own: the key then belongs to that server."""
    url = environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    return url if url and url not in OPENAI_HOSTS else None


def find_providers(environ: Mapping[str, str]) -> tuple[list[Candidate], list[str]]:
    """Return the proposed models of providers with a key, and notes on keys that need more than the key."""
    candidates: list[Candidate] = []
    notes: list[str] = []
    for proposal in PROPOSALS:
        if (variable := key_variable(proposal.provider, environ)) is None:
            continue
        if proposal.provider == "openai" and other_openai_server(environ):
            continue
        models = proposal.models
        if proposal.provider == "azure":
            if not environ.get("AZURE_OPENAI_ENDPOINT", "").strip():
                notes.append(f"{variable} is set, but not AZURE_OPENAI_ENDPOINT: set it to use Azure OpenAI")
                continue
            models = tuple(name for var in AZURE_DEPLOYMENTS if (name := environ.get(var, "").strip()))[:1]
            if not models:
                notes.append(f"{variable} is set: name a deployment of yours with --tier NAME=azure:DEPLOYMENT")
        candidates += [provider_candidate(proposal.provider, model, variable) for model in models]
    return candidates, notes


def provider_candidate(provider: ProviderName, model: str, variable: str | None) -> Candidate:
    """Return a provider's model with what the price list knows of it; `variable`: of its key, None if none is set."""
    listed = listed_model(model, provider=provider)
    label = next((proposal.label for proposal in PROPOSALS if proposal.provider == provider), provider)
    where = f"in {variable}" if variable else f"expected in {PROVIDERS[provider].key_variables[0]}"
    return Candidate(
        source=f"{label}, key {where}",
        model=model,
        provider=provider,
        price=None if listed is None else listed.price,
        max_context=None if listed is None else listed.max_context,
    )
