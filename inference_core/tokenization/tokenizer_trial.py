"""Reads a stranger's tokenizer.json, and renders its chat template, once in a child process with limits, before this
process does."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.model_file import MAX_TOKENIZER, read_model_file

_ROOT = Path(__file__).parents[2]
MAX_BYTES, MAX_SECONDS = 2 << 30, 10
MAX_TEMPLATE_BYTES, MAX_TEMPLATE_SECONDS = 256 << 20, 5
# The child imports the library alone: this is half as long as with this package.
_LIMITS = """
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
"""
_TOKENIZER = f"""
import resource, sys
sys.path[:] = sys.argv[3:]
from tokenizers import Tokenizer
{_LIMITS}
try:
    tokenizer = Tokenizer.from_buffer(sys.stdin.buffer.read())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode("a \\U0010fffd" + " word, 12 words;" * 1000)
except MemoryError:
    raise
except BaseException:
    # What the library refuses, the serving process refuses with the library's own words.
    pass
"""
_TEMPLATE = f"""
import json, resource, sys
sys.path[:] = sys.argv[3:]
from inference_core.errors import CoreError
from inference_core.tokenization.chat_template import ChatTemplate, TemplateWorkError
{_LIMITS}
source, special, with_tools, probes = json.load(sys.stdin)
try:
    template = ChatTemplate(source, special, with_tools)
except CoreError:
    # What is no template, the serving process refuses, too.
    sys.exit()
for messages, tools in probes:
    try:
        template.render(messages, add_generation_prompt=True, extra={{"tools": tools}})
    except TemplateWorkError:
        raise
    except CoreError:
        pass
"""


def _probes() -> list[tuple[list[dict[str, object]], list[object] | None]]:
    """Chats with tools and without, of one turn and of hundreds, with short texts and long ones."""
    schema: dict[str, object] = {"type": "string", "description": "d"}
    for _ in range(20):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "array", "items": {"type": "number"}}}}
    tools: list[object] = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}]
    call = {"id": "c12345678", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    user: dict[str, object] = {"role": "user", "content": "Hello"}
    answer: dict[str, object] = {"role": "assistant", "content": "<think>\nso\n</think>\n\nHi"}
    calls: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: dict[str, object] = {"role": "tool", "tool_call_id": "c12345678", "name": "f", "content": "r"}
    long: dict[str, object] = {"role": "user", "content": "Some words.\n" * 5_000}
    system: dict[str, object] = {"role": "system", "content": "Be brief."}
    agent = [user, calls, result, answer] * 4
    chats = [agent[:turns] for turns in range(1, len(agent))] + [[user, answer] * turns for turns in range(1, 9)]
    chats += [
        [user, answer, user],
        [system, user],
        [system, user, answer, user],
        [user, answer] * 100 + [user],
        [long],
        agent * 12,
    ]
    return [(chat, offered) for chat in chats for offered in (None, tools)]


def require_small_file(file: Path) -> None:
    """As `require_small`, of a file's content. Raises ModelFileError, also for one of more than 64 MB."""
    require_small(file, read_model_file(file, MAX_TOKENIZER))


def require_small(file: Path, content: bytes) -> None:
    """Raise ModelFileError if reading a tokenizer.json takes more than 2 GB or 10 s of processor time."""
    if not _passes("tokenizers", _TOKENIZER, content, MAX_BYTES, MAX_SECONDS):
        raise ModelFileError(
            f"{file} is too large: reading it takes more than {MAX_BYTES >> 30} GB of memory or {MAX_SECONDS} s"
        )


def require_bounded_template(source: str, special_tokens: Mapping[str, str], with_tools: str | None = None) -> None:
    """Raise ModelFileError if compiling and rendering a chat template takes more than 256 MB or 5 s of processor time.
    What is no template passes: compiling says what is wrong with it."""
    content = json.dumps([source, special_tokens, with_tools, _probes()]).encode()
    if not _passes("jinja2", _TEMPLATE, content, MAX_TEMPLATE_BYTES, MAX_TEMPLATE_SECONDS):
        raise ModelFileError(
            "the chat template does too much: rendering short chats takes more than "
            f"{MAX_TEMPLATE_BYTES >> 20} MB of memory or {MAX_TEMPLATE_SECONDS} s; use another template or model"
        )


def _passes(library: str, program: str, content: bytes, most_bytes: int, most_seconds: int) -> bool:
    """Whether `program` reads `content` within the limits. The answer for a content that does is kept in the cache
    folder, so that a child reads each once."""
    key = hashlib.blake2b(content, key=version(library).encode(), digest_size=20).hexdigest()
    passed = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aio" / library / key
    if passed.exists():
        return True
    # An editable install has this package on no path: a hook finds it, which the child does not have.
    paths = [str(_ROOT), *filter(None, sys.path)]
    command = [sys.executable, "-I", "-S", "-c", program, str(most_bytes), str(most_seconds), *paths]
    try:
        child = subprocess.run(  # noqa: S603 - our own program
            command, input=content, capture_output=True, timeout=6 * most_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    if child.returncode:
        return False
    with suppress(OSError):
        passed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        passed.touch()
    return True
