"""A model's chat template: untrusted Jinja from a model file, run in a sandbox, with transformers' extensions."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_core.errors import InvalidRequestError, ModelFileError


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; rendering outputs its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The constructor compiles `source` and raises ModelFileError for a syntax error. `uses_tools`: whether it reads
    the variable `tools`, so that it can describe functions to the model. `literals`: the texts that it writes or
    compares with; `inspected`: those that it looks for in the messages, as in `content.split('</think>')`.
    `with_tools`: the source that renders chats with tools, where the model has another for them; `tool_source`: the one
    that does."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], with_tools: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._special_tokens = dict(special_tokens)
        self.source = source
        try:
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
        except jinja2.TemplateError as error:
            raise ModelFileError(f"the chat template is not valid Jinja: {error}") from error
        self.uses_tools = "tools" in find_undeclared_variables(parsed)
        self.literals = (*(data.data for data in parsed.find_all(nodes.TemplateData)), *_constants(parsed))
        tests = parsed.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test))
        self.inspected = frozenset(text for test in tests for text in _constants(test))
        self.tool_source = source
        self._with_tools: ChatTemplate | None = None
        if with_tools is not None:
            other = self._with_tools = ChatTemplate(with_tools, special_tokens)
            self.tool_source, self.uses_tools = with_tools, other.uses_tools
            self.literals, self.inspected = self.literals + other.literals, self.inspected | other.inspected

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, extra: Mapping[str, Any]
    ) -> str:
        """Render the prompt. Raises InvalidRequestError(param="messages") with the template's error."""
        if self._with_tools is not None and extra.get("tools"):
            return self._with_tools.render(messages, add_generation_prompt=add_generation_prompt, extra=extra)
        variables = {"tools": None, "documents": None, **self._special_tokens, **extra}
        try:
            return self._template.render(
                **variables, messages=list(messages), add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # A template can raise any Python exception.
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error or type(error).__name__}", "messages"
            ) from error


def _constants(node: nodes.Node) -> list[str]:
    return [constant.value for constant in node.find_all(nodes.Const) if isinstance(constant.value, str)]


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's own filter, which escapes HTML: models were not trained on that."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
