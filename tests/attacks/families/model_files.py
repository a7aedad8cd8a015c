"""Model files of strangers, as `aio models check` reads them, and long chats for templates: each in a process of its
own, which is watched."""

import json
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from tests.attacks.targets import Target
from tests.fuzz.hostile_json import hostile
from tests.hostile.target import Outcome, attack_class
from tests.inference_core.tokenization.drawn_templates import drawn_template
from tests.inference_core.tokenization.long_chats import drawn_long_chat
from tests.model_files import Change, hostile_changes

MOST_SECONDS, MOST_BYTES = 2.0, 300 * 2**20
# Where the child that reads a tokeniser first is ended at its limit of 10 s, or one that renders a template at 5 s.
_MOST_SECONDS_IF_TOO_LARGE = 12.0
# Of the 4 s of a render, after which the step that it is in ends.
_MOST_SECONDS_OF_A_RENDER = 6.0
# Of the characters of a render: in a list of pieces, and as one text.
_MOST_BYTES_OF_A_RENDER = 1 << 30
# After it a check that does not end is ended.
_LONGEST = 60
# Of the address space, so that what eats memory ends before the machine does.
_MOST_ADDRESSES = 6 << 30


@attack_class("model files", 400, "open")
def model_files(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Folders and files that hang, grow or break their readers: `aio models check` says what is wrong in a sentence,
    within two seconds of processor time and 300 MB."""
    from gateway.planning.model_check import check_model
    from tests.inference_core.quantization.tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="aio-attack-") as folder:
        sound = write_tiny_model(Path(folder) / "sound")
        # What a check imports is loaded before its memory is counted.
        check_model(str(sound))
        yield _outcome("a sound model", *checked(sound), wanted=(0,))
        files = hostile_changes()
        names = draw.sample(list(files), min(count, len(files)))
        for number, name in enumerate(names):
            hostile = Path(folder) / f"m{number}"
            yield _outcome(name, *checked(changed(sound, hostile, files[name])), wanted=(0, 1))
            shutil.rmtree(hostile)


@attack_class("drawn model files", 300, "open")
def drawn_files(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Settings, tokenisers, indexes and headers of tensors with parts replaced, removed, repeated or damaged."""
    from tests.inference_core.quantization.tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="aio-attack-") as folder:
        sound = write_tiny_model(Path(folder) / "sound")
        for number in range(count):
            name = draw.choice(_JSON)
            change = partial(_mutate, name=name, draw=draw)
            hostile = Path(folder) / f"m{number}"
            yield _outcome(f"{name} #{number}", *checked(changed(sound, hostile, change)), wanted=(0, 1))
            shutil.rmtree(hostile)


@attack_class("drawn chat templates", 300, "open")
def drawn_templates(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Templates of loops, macros, filters and methods in any order, as a model's folder brings them."""
    from tests.inference_core.quantization.tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="aio-attack-") as folder:
        sound = write_tiny_model(Path(folder) / "sound")
        for number in range(count):
            source = drawn_template(draw)
            (sound / "chat_template.jinja").write_text(source)
            yield _outcome(f"#{number}: {source[:250]}", *checked(sound), wanted=(0, 1))


@attack_class("long chats", 60, "open")
def long_chats(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Thousands of turns, deep tools and long strings, which templates in the forms of public ones compare, search,
    join and indent: a prompt or a refusal within six seconds of processor time and 1 GB."""
    from inference_core.errors import InvalidRequestError
    from inference_core.tokenization.chat_template import ChatTemplate

    for _ in range(count):
        label, source, (messages, tools) = drawn_long_chat(draw)

        def render() -> tuple[int, str]:
            try:
                template = ChatTemplate(source, {})  # noqa: B023 - it is called at once
                template.render(messages, add_generation_prompt=True, extra={"tools": tools})  # noqa: B023
            except InvalidRequestError:
                return 1, ""
            return 0, ""

        status, text, seconds, taken = watched(render)
        is_over = seconds > _MOST_SECONDS_OF_A_RENDER or taken > _MOST_BYTES_OF_A_RENDER
        problem = f"{seconds:.1f} s and {taken >> 20} MB" if is_over else ""
        yield Outcome(label, 200, bypass=problem if status in (0, 1) else f"status {status}: {text[-300:]} {problem}")


_JSON = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def _mutate(folder: Path, name: str, draw: Random) -> None:
    """Mutate a file of JSON, or the JSON before the tensors."""
    file = folder / name
    content = file.read_bytes() if file.exists() else b'{"eos_token_id": [1, 2], "temperature": 0.5}'
    head, rest = content, b""
    if name == "model.safetensors":
        size = int.from_bytes(content[:8], "little")
        head, rest = content[8 : 8 + size], content[8 + size :]
    made = hostile(json.loads(head), draw)
    file.write_bytes(made if name != "model.safetensors" else len(made).to_bytes(8, "little") + made + rest)


def changed(sound: Path, folder: Path, change: Change) -> Path:
    """Return what is to be checked: a copy of the model with the change, or the GGUF file that it makes."""
    shutil.copytree(sound, folder)
    change(folder)
    single = folder / "model.gguf"
    return single if single.exists() else folder


def checked(path: Path) -> tuple[int, str, float, int]:
    """`aio models check PATH` in a process of its own; see `watched`."""
    from click.testing import CliRunner

    from gateway.cli import main
    from inference_core.errors import CoreError

    def check() -> tuple[int, str]:
        result = CliRunner().invoke(main, ["models", "check", str(path)])
        # The command's own entry says errors of the core in a sentence.
        is_said = result.exception is None or isinstance(result.exception, SystemExit | CoreError)
        return result.exit_code if is_said else 98, f"{result.output[-2000:]}{result.exception!r}"

    return watched(check)


def watched(work: Callable[[], tuple[int, str]]) -> tuple[int, str, float, int]:
    """Do `work` in a process of its own: exit status (98: it raised, -1: it was ended), what it said, seconds of
    processor time, and bytes that it took beyond those of this process."""
    with tempfile.TemporaryFile() as said:
        process = os.fork()
        if process == 0:
            status = 99
            try:
                signal.alarm(_LONGEST)
                resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
                Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
                before = _resident("VmRSS")
                status, report = work()
                report = f"{_resident('VmHWM') - before}\n{report}"
                os.write(said.fileno(), report.encode(errors="replace"))
            finally:
                os._exit(status)
        _, ended, used = os.wait4(process, 0)
        said.seek(0)
        taken, _, text = said.read().decode(errors="replace").partition("\n")
    status = os.waitstatus_to_exitcode(ended)
    return -1 if status < 0 else status, text, used.ru_utime + used.ru_stime, int(taken or _MOST_ADDRESSES)


def _resident(kind: str) -> int:
    """Bytes of this process, now or at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024


def _outcome(name: str, status: int, text: str, seconds: float, taken: int, *, wanted: tuple[int, ...]) -> Outcome:
    problem = ""
    if status not in wanted or "Traceback" in text:
        problem = f"status {status}: {text[-300:]}"
    elif seconds > _most_seconds(text) or taken > MOST_BYTES:
        problem = f"{seconds:.1f} s and {taken >> 20} MB"
    return Outcome(name, 200, bypass=problem)


def _most_seconds(text: str) -> float:
    is_ended = "too large" in text or "does too much" in text
    return _MOST_SECONDS_IF_TOO_LARGE if is_ended else MOST_SECONDS
