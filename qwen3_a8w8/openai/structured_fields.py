"""The request fields that give an answer a form, and their way to `StructuredOutput`.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*` fields. A
request may use one of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qwen3_a8w8.openai.field_errors import FieldError
from qwen3_a8w8.openai.request import RequestModel
from qwen3_a8w8.text.structured import StructuredOutput

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


class JsonSchemaFormat(BaseModel):
    """A named JSON schema."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Form of the answer in OpenAI's words."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise FieldError(
                "response_format has type 'json_schema' but no json_schema; add one",
                "response_format.json_schema",
            )
        return self


class StructuredOutputsField(BaseModel):
    """Form of the answer in vLLM's words."""

    model_config = ConfigDict(strict=True, extra="allow")

    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None


class StructuredFields(RequestModel):
    """Fields of which at most one may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _check_structured(self) -> StructuredFields:
        names = ("response_format", "structured_outputs", *_GUIDED)
        given = [name for name in names if getattr(self, name) is not None]
        if given[:1] == ["response_format"] and self.response_format_type == "text":
            del given[0]
        if len(given) > 1:
            raise FieldError(
                f"{given[0]} and {given[1]} both give the answer a form; leave one of them out",
                given[1],
            )
        tag = self.structured_outputs
        if tag is not None and tag.structural_tag is not None:
            raise FieldError(
                "structured_outputs has a structural_tag, which isn't supported; use json, "
                "regex, choice or grammar, or tools with tool_choice 'required'",
                "structured_outputs.structural_tag",
            )
        return self

    @property
    def response_format_type(self) -> str:
        """Of `response_format`; "text" without one."""
        return "text" if self.response_format is None else self.response_format.type

    def structured_output(self) -> StructuredOutput | None:
        """The form that the fields ask for, or None.

        Raises:
            InvalidRequestError: it is malformed, too long or nested too deep.
        """
        if self.response_format_type == "json_object":
            return StructuredOutput(json_object=True, param="response_format")
        if self.response_format is not None and self.response_format.json_schema is not None:
            form = self.response_format.json_schema
            return StructuredOutput(
                json=form.schema_,
                is_lenient=form.strict is False,
                param="response_format",
            )
        if self.structured_outputs is not None:
            kinds = self.structured_outputs.model_dump(
                by_alias=True, include={"json_", "json_object", "regex", "choice", "grammar"}
            )
            given = {name: value for name, value in kinds.items() if value is not None}
            return StructuredOutput.from_fields(given, param="structured_outputs")
        for name, kind in _GUIDED.items():
            value = getattr(self, name)
            if value is not None:
                return StructuredOutput.from_fields({kind: value}, param=name)
        return None
