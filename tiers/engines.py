"""Engines that AIO starts as child processes: the catalogue's entry, the state reported to tiers, the programs.

Command line, environment, health and context of each program, as pure functions. Checked against llama.cpp b11149
(`common/arg.cpp`), vLLM (`entrypoints/openai/cli_args.py`), SGLang (`cli/serve.py`, `srt/entrypoints/http_server.py`)
and Ollama (`envconfig/config.go`, `server/routes.go`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

EngineKind = Literal["llama-server", "vllm", "sglang", "ollama"]
Argument = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server program that AIO starts. Tiers with equal specs share one process."""

    kind: EngineKind
    model: str
    """A file or folder, a Hugging Face id (`org/name`, with `:QUANT` for one GGUF file of several), or a name in
    Ollama's library.
    """
    args: tuple[Argument, ...] = ()
    """Added to the program's command line as they are."""
    env: dict[str, Argument] = {}
    """Added to its environment."""
    revision: str = ""
    """Branch, tag or commit of the Hugging Face id; the first download pins the commit."""
    start_timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 1200.0
    """A start that takes longer has failed."""

    @property
    def answering(self) -> list[object]:
        """What decides its answers, for fingerprints: neither where it listens nor how long it may take to start."""
        return [self.kind, self.model, self.revision, self.args]


EngineState = Literal["starting", "ready", "down"]


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine."""

    state: EngineState
    detail: str
    """What it is doing or what went wrong, as one sentence."""
    program: str = ""
    url: str = ""
    """The base URL of its API, set while it is ready."""
    start: int = 0
    """How many times the program was started; every start after the first is a restart."""
    context: int | None = None
    """The longest sequence in tokens that it reports, if it does."""
    log: str = ""
    """The file of its output."""
    key: str = ""
    """The key that requests carry; it is made at every start and never shown."""

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.start - 1)


StatusOf = Callable[[], EngineStatus]
"""Returns the latest known state of one engine without I/O."""


HOST = "127.0.0.1"

# What the program is given as its model: a GGUF file, a folder of safetensors, or a name that only it knows.
ModelForm = Literal["gguf", "folder", "name"]


@dataclass(frozen=True)
class EngineProgram:
    """One engine."""

    name: str
    """The program on PATH."""
    install: str
    """How to get it, completing "install it: …"."""
    wire: Literal["openai", "vllm", "sglang", "llama-server"]
    """The `remote.kind` of its API."""
    form: ModelForm
    health: str
    """Path of a GET that answers 200 once the model can be used."""
    owned_options: frozenset[str]
    """The options that AIO sets itself."""
    options: Callable[[str, str, int, str], list[str]]
    """Returns the program's options, with the port and, if it `takes_key`, the key that requests must carry."""
    environment: Callable[[int, str], dict[str, str]] = field(default=lambda port, key: {})
    """Returns the program's environment, with the same values."""
    takes_key: bool = True
    """Whether the program asks requests for a key. Without one, any web page in a browser of this machine could ask it
    (Ollama refuses other origins).
    """
    context_path: str = ""
    """Where it reports the longest sequence."""
    context: Callable[[bytes], int | None] = field(default=lambda body: None)
    """How to read the longest sequence from there."""


class _Slot(msgspec.Struct):
    n_ctx: int = 0


class _Props(msgspec.Struct):
    default_generation_settings: _Slot = msgspec.field(default_factory=_Slot)


class _Card(msgspec.Struct):
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card] = []


class _Loaded(msgspec.Struct):
    context_length: int = 0


class _Processes(msgspec.Struct):
    models: list[_Loaded] = []


def _llama_context(body: bytes) -> int | None:
    # Of one slot: the program divides its whole context among the requests that it answers at once.
    return msgspec.json.decode(body, type=_Props).default_generation_settings.n_ctx or None


def _card_context(body: bytes) -> int | None:
    cards = msgspec.json.decode(body, type=_Cards).data
    return cards[0].max_model_len if cards else None


def _ollama_context(body: bytes) -> int | None:
    models = msgspec.json.decode(body, type=_Processes).models
    return (models[0].context_length or None) if models else None


def _llama_options(model: str, served_name: str, port: int, key: str) -> list[str]:
    return ["--host", HOST, "--port", str(port), "--model", model, "--alias", served_name, "--metrics"]


def _vllm_options(model: str, served_name: str, port: int, key: str) -> list[str]:
    return ["serve", model, "--host", HOST, "--port", str(port), "--served-model-name", served_name]


def _sglang_options(model: str, served_name: str, port: int, key: str) -> list[str]:
    return [
        *("serve", "--model-path", model, "--host", HOST, "--port", str(port)),
        *("--served-model-name", served_name, "--enable-metrics", "--api-key", key),
    ]


def _ollama_environment(port: int, key: str) -> dict[str, str]:
    # It unloads a model after five idle minutes by default; then the next request would wait for the load.
    return {"OLLAMA_HOST": f"{HOST}:{port}", "OLLAMA_KEEP_ALIVE": "-1"}


def _options(names: str) -> frozenset[str]:
    return frozenset(names.split())


PROGRAMS: Mapping[EngineKind, EngineProgram] = {
    "llama-server": EngineProgram(
        name="llama-server",
        install="brew install llama.cpp, or a release of https://github.com/ggml-org/llama.cpp, on PATH",
        wire="llama-server",
        form="gguf",
        health="/health",
        owned_options=_options(
            "--host --port --model -m --alias -a --hf-repo -hf -hfr --model-url -mu --api-key --api-key-file"
        ),
        options=_llama_options,
        environment=lambda port, key: {"LLAMA_API_KEY": key},
        context_path="/props",
        context=_llama_context,
    ),
    "vllm": EngineProgram(
        name="vllm",
        install="pip install vllm",
        wire="vllm",
        form="folder",
        health="/health",
        owned_options=_options("--host --port --uds --model --served-model-name --revision --api-key"),
        options=_vllm_options,
        environment=lambda port, key: {"VLLM_API_KEY": key},
        context_path="/v1/models",
        context=_card_context,
    ),
    "sglang": EngineProgram(
        name="sglang",
        install='pip install "sglang[all]"',
        wire="sglang",
        form="folder",
        health="/health",
        owned_options=_options(
            "--host --port --model-path --model --served-model-name --revision --enable-metrics --api-key"
        ),
        options=_sglang_options,
        context_path="/v1/models",
        context=_card_context,
    ),
    "ollama": EngineProgram(
        name="ollama",
        install="https://ollama.com/download",
        wire="openai",
        form="name",
        health="/api/version",
        owned_options=frozenset(),
        options=lambda model, served_name, port, key: ["serve"],
        environment=_ollama_environment,
        takes_key=False,
        context_path="/api/ps",
        context=_ollama_context,
    ),
}


def command_line(spec: EngineSpec, program: str, model: str, served_name: str, port: int, key: str) -> list[str]:
    """Return the arguments that start the engine: `program` is its path, `model` the file, folder or name that it
    serves as `served_name`. `spec.args` come last, and no shell reads them."""
    return [program, *PROGRAMS[spec.kind].options(model, served_name, port, key), *spec.args]


def child_environment(
    spec: EngineSpec, inherited: Mapping[str, str], secret: Sequence[str], port: int, key: str
) -> dict[str, str]:
    """Return the engine's environment: `inherited` without AIO's own settings and the `secret` variables, then what
    the engine needs, then the catalogue's."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("AIO_") and name not in secret}
    return kept | {"PYTHONUNBUFFERED": "1"} | PROGRAMS[spec.kind].environment(port, key) | spec.env


def served_name(model: str, program: EngineProgram) -> str:
    """Return the model's name in the engine's API; a path is shortened to its last part."""
    if program.form == "name" or not (model.startswith(("/", ".", "~", "package:")) or model.endswith(".gguf")):
        return model.removeprefix("hf:")
    return model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def option_problems(spec: EngineSpec) -> list[str]:
    """Return what is wrong with `args`, `env` and `revision`, each as the end of a sentence about the tier."""
    program = PROGRAMS[spec.kind]
    taken = [arg for arg in spec.args if arg.partition("=")[0] in program.owned_options]
    problems = [f"engine_args: {arg} is set by AIO; leave it out" for arg in taken]
    if not spec.model.strip() or spec.model.startswith("-"):
        problems.append(f"model = {spec.model!r}: expected what the engine serves")
    if spec.revision and program.form == "name":
        problems.append(f"revision: {program.name} has no revisions; write the tag into the model's name")
    own = sorted(name for name in spec.env if name in program.environment(0, "") and name != "OLLAMA_KEEP_ALIVE")
    problems += [f"engine_env.{name}: is set by AIO; leave it out" for name in own]
    return problems
