"""A model's chat template: untrusted Jinja from a model file, run in a sandbox, with transformers' extensions.

What a render may do is bounded: see `template_budget`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.io.background_tasks import AbandonedWorkError
from inference_core.tokenization.template_budget import RenderBudget, TemplateWorkError
from inference_core.tokenization.template_environment import TemplateEnvironment
from inference_core.tokenization.template_filters import BudgetContext

MAX_SOURCE = 200_000
"""Characters: the longest templates have some 30,000."""
MAX_TOKENS = 12_000
MAX_STATEMENTS = 1_500
"""Of one template: the largest have some 2,000 and 250. Jinja takes time in the square of the statements."""
_LONGEST_DATE = 200
# Filters after which Jinja replaces characters of HTML in texts.
_ESCAPING = frozenset(("e", "escape", "forceescape", "safe"))


class ChatTemplate:
    """The constructor compiles `source` and raises ModelFileError for a syntax error. `uses_tools`: whether it reads
    the variable `tools`, so that it can describe functions to the model. `literals`: the texts that it writes,
    compares with or reads as attributes; `inspected`: those that it looks for, as in `content.split('</think>')`, and
    characters that it escapes.
    `with_tools`: the source that renders chats with tools, where the model has another for them; `tool_source`: the one
    that does. `is_slow`: a render has done so much work that further ones should not hold up other requests."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], with_tools: str | None = None) -> None:
        environment = TemplateEnvironment()
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._special_tokens = dict(special_tokens)
        self.source = source
        if len(source) > MAX_SOURCE:
            raise ModelFileError(f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are supported")
        try:
            _require_few(environment.lex(source))
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
            self.uses_tools = "tools" in find_undeclared_variables(parsed)
        except jinja2.TemplateError as error:
            raise ModelFileError(f"the chat template is not valid Jinja: {error}") from error
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
        TemplateWorkError for more work than these messages allow."""
        if self._with_tools is not None and extra.get("tools"):
            try:
                return self._with_tools.render(messages, add_generation_prompt=add_generation_prompt, extra=extra)
            finally:
                self.is_slow |= self._with_tools.is_slow
        given = {"messages": list(messages), **extra}
        variables = {"tools": None, "documents": None, **self._special_tokens, **extra, "messages": given["messages"]}
        context = self._template.new_context(variables | {"add_generation_prompt": add_generation_prompt})
        assert isinstance(context, BudgetContext)
        context.budget = RenderBudget(given)
        try:
            return context.budget.joined(self._template.root_render_func(context))
        except (TemplateWorkError, AbandonedWorkError):
            raise
        except Exception as error:  # A template can raise any Python exception.
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {str(error) or type(error).__name__}", "messages"
            ) from error
        finally:
            self.is_slow |= context.budget.is_large


def _require_few(tokens: Iterable[tuple[int, str, str]]) -> None:
    """Raise TemplateError for more tokens or statements than are compiled in a second."""
    count = Counter(kind for _, kind, _ in tokens if kind != "whitespace")
    if count.total() > MAX_TOKENS or count["block_begin"] > MAX_STATEMENTS:
        raise jinja2.TemplateError(
            f"it has {count.total()} tokens and {count['block_begin']} statements; at most {MAX_TOKENS} and "
            f"{MAX_STATEMENTS} are supported"
        )


def _constants(node: nodes.Node) -> list[str]:
    return [constant.value for constant in node.find_all(nodes.Const) if isinstance(constant.value, str)]


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    if len(form) > _LONGEST_DATE:
        raise jinja2.TemplateError(f"a date may have at most {_LONGEST_DATE} characters")
    return datetime.now().strftime(form)
