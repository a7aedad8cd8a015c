"""The command lines and reports of the engine programs."""

import shutil
import subprocess

import pytest

from tiers.engines import (
    PROGRAMS,
    EngineKind,
    EngineSpec,
    child_environment,
    command_line,
    option_problems,
    served_name,
)

COMMANDS = {
    "llama-server": "--host 127.0.0.1 --port 4000 --model MODEL --alias NAME --metrics -c 8192",
    "vllm": "serve MODEL --host 127.0.0.1 --port 4000 --served-model-name NAME -c 8192",
    "sglang": "serve --model-path MODEL --host 127.0.0.1 --port 4000 --served-model-name NAME --enable-metrics"
    " --api-key KEY -c 8192",
    "ollama": "serve -c 8192",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_each_engine_is_started_on_loopback_with_the_arguments_of_the_catalogue_last(kind: EngineKind) -> None:
    spec = EngineSpec(kind=kind, model="m", args=("-c", "8192"))
    assert command_line(spec, "/bin/x", "MODEL", "NAME", 4000, "KEY") == ["/bin/x", *COMMANDS[kind].split(" ")]


def test_ollama_listens_at_the_given_port_and_no_secret_reaches_an_engine() -> None:
    spec = EngineSpec(kind="ollama", model="m", env={"CUDA_VISIBLE_DEVICES": "1", "OLLAMA_KEEP_ALIVE": "5m"})
    inherited = {"PATH": "/bin", "AIO_ADMIN_KEYS": "k", "OPENAI_API_KEY": "s", "OLLAMA_HOST": "0.0.0.0:11434"}
    assert child_environment(spec, inherited, ["OPENAI_API_KEY"], 4000, "") == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "OLLAMA_HOST": "127.0.0.1:4000",
        "OLLAMA_KEEP_ALIVE": "5m",
        "CUDA_VISIBLE_DEVICES": "1",
    }


@pytest.mark.parametrize(("kind", "variable"), [("llama-server", "LLAMA_API_KEY"), ("vllm", "VLLM_API_KEY")])
def test_the_key_of_an_engine_is_not_on_its_command_line(kind: EngineKind, variable: str) -> None:
    spec = EngineSpec(kind=kind, model="m")
    assert "KEY" not in command_line(spec, "x", "M", "N", 1, "KEY")
    assert child_environment(spec, {}, [], 1, "KEY")[variable] == "KEY"


@pytest.mark.parametrize(
    ("kind", "body", "context"),
    [
        ("llama-server", b'{"default_generation_settings": {"n_ctx": 4096, "params": {}}, "total_slots": 4}', 4096),
        ("llama-server", b"{}", None),
        ("vllm", b'{"object": "list", "data": [{"id": "m", "max_model_len": 40960}]}', 40960),
        ("sglang", b'{"data": [{"id": "m", "max_model_len": 8192, "owned_by": "sglang"}]}', 8192),
        ("vllm", b'{"data": []}', None),
        ("ollama", b'{"models": [{"name": "m", "context_length": 4096}]}', 4096),
        ("ollama", b'{"models": []}', None),
    ],
)
def test_an_engine_reports_the_longest_sequence_it_takes(kind: EngineKind, body: bytes, context: int | None) -> None:
    assert PROGRAMS[kind].context(body) == context


@pytest.mark.parametrize(
    ("kind", "model", "name"),
    [
        ("vllm", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("vllm", "hf:Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("vllm", "/models/Qwen3-8B/", "Qwen3-8B"),
        ("llama-server", "models/Qwen3-8B.gguf", "Qwen3-8B"),
        ("llama-server", "Qwen/Qwen3-8B-GGUF:Q8_0", "Qwen/Qwen3-8B-GGUF:Q8_0"),
        ("ollama", "qwen3:8b", "qwen3:8b"),
    ],
)
def test_a_model_is_served_by_its_id_or_by_the_last_part_of_its_path(kind: EngineKind, model: str, name: str) -> None:
    assert served_name(model, PROGRAMS[kind]) == name


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (EngineSpec(kind="vllm", model="m", args=("--port=1",)), "engine_args: --port=1 is set by AIO; leave it out"),
        (EngineSpec(kind="llama-server", model="m", args=("-m", "x")), "engine_args: -m is set by AIO; leave it out"),
        (EngineSpec(kind="vllm", model="--help"), "model = '--help': expected what the engine serves"),
        (EngineSpec(kind="ollama", model="m", revision="v1"), "ollama has no revisions; write the tag into"),
        (EngineSpec(kind="ollama", model="m", env={"OLLAMA_HOST": "x"}), "engine_env.OLLAMA_HOST: is set by AIO"),
    ],
)
def test_what_aio_sets_itself_is_refused(spec: EngineSpec, problem: str) -> None:
    assert problem in " ".join(option_problems(spec))


@pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama-server is not installed")
def test_the_installed_llama_server_knows_every_option_that_aio_gives() -> None:
    said = subprocess.run(["llama-server", "--help"], capture_output=True, text=True, check=False, timeout=60)
    spec = EngineSpec(kind="llama-server", model="m")
    options = [arg for arg in command_line(spec, "x", "M", "N", 1, "K") if arg.startswith("-")]
    assert [option for option in options if option not in said.stdout] == []


@pytest.mark.skipif(shutil.which("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_knows_every_option_that_aio_gives() -> None:
    said = subprocess.run(["vllm", "serve", "--help=all"], capture_output=True, text=True, check=False, timeout=300)
    spec = EngineSpec(kind="vllm", model="m")
    options = [arg for arg in command_line(spec, "x", "M", "N", 1, "K") if arg.startswith("-")]
    assert [option for option in options if option not in said.stdout] == []
