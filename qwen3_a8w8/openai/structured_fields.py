"""Fields of a request that ask for structured output.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*` fields, SGLang's
`regex`, `ebnf` and `json_schema`, and llama.cpp's `grammar` and `json_schema`; a request may use
one of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from qwen3_a8w8.openai.foreign_fields import check_refused
from qwen3_a8w8.openai.request import FieldError, NestedModel, RequestModel
from qwen3_a8w8.text.structured import StructuredOutput

_KINDS = {"json_", "json_object", "regex", "choice", "grammar", "whitespace_pattern"}

_SINGLE_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""Fields that are a structured output by themselves: vLLM's older ones, SGLang's, llama.cpp's."""


class JsonSchemaFormat(NestedModel):
    """A named JSON schema; description is for the reader."""

    name: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(NestedModel):
    """Structured output in OpenAI's format; `schema` is llama.cpp's, for either type of JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise FieldError(
                "response_format has type 'json_schema' but no json_schema; add one",
                "response_format.json_schema",
            )
        if self.schema_ is not None and (self.type == "text" or self.json_schema is not None):
            raise FieldError(
                "response_format has a schema besides its "
                f"{'type text' if self.type == 'text' else 'json_schema'}; remove one of them",
                "response_format.schema",
            )
        return self

    @property
    def schema_value(self) -> dict[str, Any] | bool | None:
        """The schema, wherever it stands; None: any object, or text."""
        if self.json_schema is not None and self.type == "json_schema":
            return self.json_schema.schema_
        return self.schema_


class StructuredOutputsField(NestedModel):
    """Structured output in vLLM's format."""

    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: bool | None = None


class StructuredFields(RequestModel):
    """Fields of which at most one may be set, and the white space between JSON tokens."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _check_structured(self) -> StructuredFields:
        names = ("response_format", "structured_outputs", *_SINGLE_FIELDS)
        given = [name for name in names if getattr(self, name) is not None]
        if given[:1] == ["response_format"] and self.response_format_type == "text":
            del given[0]
        if len(given) > 1:
            raise FieldError(
                f"{given[0]} and {given[1]} both request structured output; remove one of them",
                given[1],
            )
        tag = self.structured_outputs
        if tag is not None and tag.structural_tag is not None:
            raise FieldError(
                "structured_outputs has a structural_tag, which isn't supported; use json, "
                "regex, choice or grammar, or tools with tool_choice 'required'",
                "structured_outputs.structural_tag",
            )
        if tag is not None and tag.disable_additional_properties:
            raise FieldError(
                "structured_outputs has disable_additional_properties true, which isn't supported; "
                "set additionalProperties to false in the schema",
                "structured_outputs.disable_additional_properties",
            )
        if self.guided_whitespace_pattern is not None and self.guided_json is None:
            raise FieldError(
                "guided_whitespace_pattern is set without guided_json; remove it",
                "guided_whitespace_pattern",
            )
        check_refused(self.model_extra or {})
        return self

    @property
    def response_format_type(self) -> str:
        """Type of `response_format`; "text" without one."""
        return "text" if self.response_format is None else self.response_format.type

    def structured_output(self) -> StructuredOutput | None:
        """The structured output that the fields request, or None.

        Raises:
            InvalidRequestError: it is malformed, too long or nested too deeply.
        """
        if self.response_format is not None and self.response_format_type != "text":
            schema = self.response_format.schema_value
            if schema is None:
                return StructuredOutput(json_object=True, param="response_format")
            named = self.response_format.json_schema
            return StructuredOutput(
                json=schema,
                is_lenient=named is not None and named.strict is False,
                param="response_format",
            )
        if self.structured_outputs is not None:
            kinds = self.structured_outputs.model_dump(by_alias=True, include=_KINDS)
            given = {name: value for name, value in kinds.items() if value is not None}
            if self.structured_outputs.disable_any_whitespace:
                given["whitespace_pattern"] = ""
            return StructuredOutput.from_fields(given, param="structured_outputs")
        for name, kind in _SINGLE_FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                fields = {kind: value}
                if name == "guided_json" and self.guided_whitespace_pattern is not None:
                    fields["whitespace_pattern"] = self.guided_whitespace_pattern
                return StructuredOutput.from_fields(fields, param=name)
        return None
