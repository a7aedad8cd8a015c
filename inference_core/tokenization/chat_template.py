"""A model's chat template: Jinja from a model file, in a sandbox, with transformers' extensions.

`tokenizer_trial` renders a stranger's template first, in a child process. What a caller's messages can make of one that
passed is bounded here: each turn of a loop and each macro looks at the clock, and long texts are counted.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from threading import local
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.io.background_tasks import AbandonedWorkError, require_wanted

MAX_SOURCE = 100_000
"""Characters: the longest templates have some 30,000, and compiling so many takes a second."""
MAX_SECONDS = 4.0
"""Processor time of a render. Public templates take a tenth for the longest chats; a few compare each turn with all."""
MAX_CHARACTERS = 1 << 26
"""Of a prompt, and of one value as JSON: twice the bytes of a request. `tojson(indent=4)` writes a hundred for one."""
_LOOK_SECONDS = 0.02
_LONGEST_DATE = 200
# Filters after which Jinja replaces characters of HTML in texts.
_ESCAPING = frozenset(("e", "escape", "forceescape", "safe"))
# What no prompt needs, and what searches a text with expressions of its own.
_LEFT_OUT = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")


class TemplateWorkError(InvalidRequestError):
    """The model's chat template takes too long for these messages, or makes too much of them."""


class _Deadline(local):
    """The end of the render that runs on this thread, in its processor time; `look`: when to compare them next."""

    end = float("inf")
    look = float("inf")


_deadline = _Deadline()


def _tick() -> None:
    """Raise TemplateWorkError after the deadline, AbandonedWorkError after the caller left."""
    now = time.monotonic()
    if now < _deadline.look:
        return
    _deadline.look = now + _LOOK_SECONDS
    require_wanted()
    if time.thread_time() > _deadline.end:
        raise _too_much(f"takes more than {MAX_SECONDS:g} s")


def _too_much(what: str) -> TemplateWorkError:
    return TemplateWorkError(
        f"the model's chat template {what} for these messages; shorten them, or use another model or another template",
        "messages",
    )


def _joined(pieces: Iterable[str]) -> str:
    """Return `pieces` as one text of at most MAX_CHARACTERS."""
    parts: list[str] = []
    length = 0
    for piece in pieces:
        _tick()
        parts.append(piece)
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise _too_much(f"writes more than {MAX_CHARACTERS} characters")
    return "".join(parts)


class _Unfolded(CodeGenerator):
    """Computes nothing while it compiles."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Undeclared(_Unfolded, TrackingCodeGenerator):
    """Finds the variables that a template reads and does not set."""


class _Code(_Unfolded):
    """Looks at the clock where code begins that may run again."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        repeated: Any = node.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))
        self._repeated = {id(statement.body) for statement in repeated}
        super().visit_Template(node, frame)

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if id(nodes) in self._repeated:
            self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; rendering outputs its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """What transformers gives to chat templates."""

    code_generator_class = _Code
    concat = staticmethod(_joined)
    tick = staticmethod(_tick)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            optimized=False,
            cache_size=0,
        )
        self.filters["tojson"] = _to_json
        for name in _LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's own filter, which escapes HTML: models were not trained on that."""
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return encoder.encode(value) if indent is None else _joined(encoder.iterencode(value))


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    if len(form) > _LONGEST_DATE:
        raise jinja2.TemplateError(f"a date may have at most {_LONGEST_DATE} characters")
    return datetime.now().strftime(form)


class ChatTemplate:
    """The constructor compiles `source` and raises ModelFileError for a syntax error. `uses_tools`: whether it reads
    the variable `tools`, so that it can describe functions to the model. `literals`: the texts that it writes,
    compares with or reads as attributes; `inspected`: those that it looks for, as in `content.split('</think>')`, and
    characters that it escapes.
    `with_tools`: the source that renders chats with tools, where the model has another for them; `tool_source`: the one
    that does. `is_slow`: even short chats should be rendered on a thread, since a chat took too long."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], with_tools: str | None = None) -> None:
        environment = _Environment()
        self._special_tokens = dict(special_tokens)
        self.source = source
        if len(source) > MAX_SOURCE:
            raise ModelFileError(f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are supported")
        try:
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
            undeclared = _Undeclared(environment)
            undeclared.optimizer = None
            undeclared.visit(parsed)
            self.uses_tools = "tools" in undeclared.undeclared_identifiers
        except jinja2.TemplateError as error:
            raise ModelFileError(f"the chat template is not valid Jinja: {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # Jinja and Python have limits of their own, for nesting and for numbers.
            problem = str(error) or type(error).__name__
            raise ModelFileError(
                f"the chat template cannot be compiled: {problem}; is it nested too deeply?"
            ) from error
        read = (attribute.attr for attribute in parsed.find_all(nodes.Getattr))
        self.literals = (*(data.data for data in parsed.find_all(nodes.TemplateData)), *_constants(parsed), *read)
        tests = parsed.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test))
        escaped = "<>&'\"" if any(used.name in _ESCAPING for used in parsed.find_all(nodes.Filter)) else ""
        self.inspected = frozenset(text for test in tests for text in _constants(test)).union(escaped)
        self.tool_source = source
        self.is_slow = False
        self._with_tools: ChatTemplate | None = None
        if with_tools is not None:
            other = self._with_tools = ChatTemplate(with_tools, special_tokens)
            self.tool_source, self.uses_tools = with_tools, other.uses_tools
            self.literals, self.inspected = self.literals + other.literals, self.inspected | other.inspected

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, extra: Mapping[str, Any]
    ) -> str:
        """Render the prompt. Raises InvalidRequestError(param="messages") with the template's error, of its kind
        TemplateWorkError for what takes too long or becomes too long."""
        if self._with_tools is not None and extra.get("tools"):
            try:
                return self._with_tools.render(messages, add_generation_prompt=add_generation_prompt, extra=extra)
            finally:
                self.is_slow |= self._with_tools.is_slow
        variables = {"tools": None, "documents": None, **self._special_tokens, **extra, "messages": list(messages)}
        context = self._template.new_context(variables | {"add_generation_prompt": add_generation_prompt})
        _deadline.end, _deadline.look = time.thread_time() + MAX_SECONDS, 0.0
        try:
            return _joined(self._template.root_render_func(context))
        except TemplateWorkError:
            self.is_slow = True
            raise
        except AbandonedWorkError:
            raise
        except MemoryError as error:
            raise _too_much("needs more memory than there is") from error
        except Exception as error:  # A template can raise any Python exception.
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {str(error) or type(error).__name__}", "messages"
            ) from error
        finally:
            _deadline.look = float("inf")


def _constants(node: nodes.Node) -> list[str]:
    return [constant.value for constant in node.find_all(nodes.Const) if isinstance(constant.value, str)]
