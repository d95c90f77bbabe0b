"""Renders messages to the prompt text that the model was trained on, with its chat template.

The template is a program from the checkpoint, never from a request. It runs in
jinja2's sandbox without a loader (so it can't open files), sees only plain JSON
values, and is limited in output size and in time. The environment is that of
Hugging Face templates, so that prompts agree character for character.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qwen3_a8w8.errors import CheckpointError, InvalidRequestError
from qwen3_a8w8.text.checkpoint_file import read_json_object, read_text_file
from qwen3_a8w8.text.tokenizer import TOKENIZER_CONFIG_FILE

TEMPLATE_FILE = "chat_template.jinja"
MAX_PROMPT_CHARS = 16 * 2**20
MAX_RENDER_S = 2.0
"""A thousand long messages take some 10 ms; only a hostile request takes seconds."""

MAX_KWARGS_CHARS = 16 * 2**10
ROLES = ("system", "user", "assistant", "tool")
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template"})
_deadline_s: ContextVar[float] = ContextVar("deadline_s", default=math.inf)


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        source: its text.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        name: str = TEMPLATE_FILE,
        max_chars: int = MAX_PROMPT_CHARS,
        max_render_s: float = MAX_RENDER_S,
    ) -> None:
        """Compiles the template.

        Args:
            source: jinja2 text.
            special_tokens: variables of the template, e.g. `eos_token`.
            name: where the text came from, for messages.
            max_chars: longest prompt in characters.
            max_render_s: most seconds that one rendering may take.

        Raises:
            CheckpointError: the template has a syntax error.
        """
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._max_chars = max_chars
        self._max_render_s = max_render_s
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise CheckpointError(
                f"{name}: expected a jinja2 chat template, found an error"
                f"{'' if line is None else f' in line {line}'}: {error}"
            ) from error

    @classmethod
    def from_directory(
        cls, directory: str | Path, *, special_tokens: Mapping[str, str] | None = None
    ) -> ChatTemplate | None:
        """Template of a checkpoint directory, or None if it has none.

        `chat_template.jinja` takes precedence over the field of `tokenizer_config.json`; of several
        named templates there the one called "default" is used.

        Raises:
            CheckpointError: a file is damaged or the template has a syntax error.
        """
        path = Path(directory) / TEMPLATE_FILE
        if path.exists():
            return cls(read_text_file(path), special_tokens=special_tokens, name=str(path))
        path = Path(directory) / TOKENIZER_CONFIG_FILE
        value = read_json_object(path).get("chat_template")
        if isinstance(value, list):
            named = {e.get("name"): e.get("template") for e in value if isinstance(e, dict)}
            value = named.get("default", value)
        if value is None:
            return None
        if not isinstance(value, str):
            raise CheckpointError(
                f"{path}: chat_template: expected a string, or a list with a template named "
                f"'default', found {type(value).__name__} {str(value)[:80]!r}"
            )
        return cls(value, special_tokens=special_tokens, name=f"{path}: chat_template")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders the prompt text.

        Args:
            messages: role, content, tool_calls ... as plain JSON values.
            tools: function definitions in OpenAI's format, or None.
            add_generation_prompt: end with the start of an assistant message.
            template_kwargs: further variables, e.g. `{"enable_thinking": False}`.

        Raises:
            InvalidRequestError: the template rejects the messages, a message lacks what the
                template needs or has another role, a kwarg is reserved, the kwargs or the prompt
                are too long, or rendering takes too long.
        """
        kwargs = dict(template_kwargs or {})
        _check_kwargs(kwargs)
        _check_roles(messages)
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        parts: list[str] = []
        num_chars = 0
        token = _deadline_s.set(time.monotonic() + self._max_render_s)
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                num_chars += len(part)
                if num_chars > self._max_chars:
                    break
        except _RenderTimeoutError:
            raise InvalidRequestError(
                f"the chat template takes more than {self._max_render_s:g} s to render these "
                "messages; send fewer of them",
                param="messages",
            ) from None
        except Exception as error:
            # The template is third-party code on a client's data: whatever it raises, from
            # raise_exception() to a TypeError, means that it can't render these messages.
            raise InvalidRequestError(
                f"the chat template can't render these messages: {error}", param="messages"
            ) from error
        finally:
            _deadline_s.reset(token)
        if num_chars > self._max_chars:
            raise InvalidRequestError(
                f"the rendered prompt has more than {self._max_chars} characters; shorten "
                "the messages or tools",
                param="messages",
            )
        return "".join(parts)


def _check_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    """Templates leave out messages of roles that they don't know, without a word."""
    for place, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise InvalidRequestError(
                f"messages[{place}].role is {message.get('role')!r:.60}; expected "
                f"{', '.join(ROLES)}",
                param=f"messages[{place}].role",
            )


def _check_kwargs(kwargs: Mapping[str, Any]) -> None:
    if reserved := sorted(_RESERVED & kwargs.keys()):
        raise InvalidRequestError(
            f"chat_template_kwargs sets {reserved[0]!r}, which the server sets or which has a "
            "request field of its own; remove it from chat_template_kwargs",
            param="chat_template_kwargs",
        )
    try:
        num_chars = len(json.dumps(kwargs))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"chat_template_kwargs isn't a JSON object of moderate depth: {error}",
            param="chat_template_kwargs",
        ) from error
    if num_chars > MAX_KWARGS_CHARS:
        raise InvalidRequestError(
            f"chat_template_kwargs has {num_chars} characters as JSON, the limit is "
            f"{MAX_KWARGS_CHARS}; shorten it",
            param="chat_template_kwargs",
        )


class _RenderTimeoutError(Exception):
    """One rendering has exceeded its time."""


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with a time check wherever a template reads something or calls.

    A loop that does neither ends soon: the sandbox bounds `range`, the request bounds its messages.
    Products and powers, which could grow small operands without limit, are bounded in size.
    """

    intercepted_binops = frozenset({"*", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _size(left) * _size(right) > MAX_PROMPT_CHARS or (operator == "**" and right > 64):
            raise jinja2.TemplateError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)


def _check_time() -> None:
    if time.monotonic() > _deadline_s.get():
        raise _RenderTimeoutError


def _size(factor: Any) -> float:
    return abs(factor) if isinstance(factor, int | float) else len(factor)


class _GenerationTag(Extension):
    """Replaces `{% generation %}...{% endgeneration %}`, a training mark, with its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML; a prompt isn't HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)
