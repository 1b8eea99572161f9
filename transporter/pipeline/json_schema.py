"""JSON Schema of pipeline files, for editors that complete and check while one is written.

It includes every installed adaptor and step. ``transporter check`` also finds problems that a
schema cannot express: unknown names, wrong expressions, settings that do not fit together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import GenerateJsonSchema

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import READER, WRITER, adaptor_entry_points, find_adaptor
from transporter.pipeline.config import READER_KEYS, WRITER_KEYS, Keys
from transporter.pipeline.steps.registry import KINDS
from transporter.units import DURATION, SIZE, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic_core import core_schema

    Schema = dict[str, Any]

DIALECT: Final = GenerateJsonSchema.schema_dialect
_VARIABLE: Final = {"type": "string", "pattern": r"\$\{"}
"""A value from a variable, which is unknown yet."""
_DEFAULTED: Final = {"name", "log"}
"""Keys that a file may omit although the completed model requires them."""
_BOUNDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
"""Names of bounds, which pydantic keeps where a validator stands before a number."""


def pipeline_schema() -> Schema:
    """Return the schema of a pipeline file, importing every installed adaptor."""
    schema = schema_of(Keys)
    found = schema["$defs"]
    for ours in ("Secrets", "SecretSettings", "Template"):
        found.pop(ours)
    found["ReaderConfig"] = _adaptor_schema(READER, found)
    found["WriterConfig"] = _adaptor_schema(WRITER, found)
    found["StepConfig"] = _step_schema(found)
    schema["required"] = [key for key in schema["required"] if key not in _DEFAULTED]
    found["LogConfig"].pop("required")
    return schema | {"$schema": DIALECT, "title": "A transporter pipeline"}


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the schema of the part of a file that *model* reads."""
    return dict(_allow_variables(model.model_json_schema(schema_generator=_Generator)))


class _Generator(GenerateJsonSchema):
    """Generator that accepts anything that only a validator can check."""

    def handle_invalid_for_json_schema(
        self,
        schema: core_schema.CoreSchema,  # noqa: ARG002 - pydantic gives it
        error_info: str,  # noqa: ARG002 - as above
    ) -> Schema:
        return {}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        # Python's values are not those of a file. _opened() adds the forms of a file.
        inner = self.generate_inner(schema["schema"])
        default = schema.get("default")
        title = next(_titles(inner), None)
        if isinstance(default, int | float) and title in (DURATION, SIZE):
            text = format_duration(default) if title == DURATION else format_size(int(default))
            return {**inner, "default": text}
        plain = isinstance(default, bool | int | float | str)
        return {**inner, "default": default} if plain and "$ref" not in inner else inner


def _titles(schema: Schema) -> Iterator[str]:
    for each in (schema, *schema.get("anyOf", ())):
        if "title" in each:
            yield each["title"]


def _allow_variables(node: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Allow a variable in place of a number, a boolean or an enumerated word."""
    if isinstance(node, list):
        return [_allow_variables(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: _allow_variables(value) for key, value in node.items()}
    types = found.get("type", [])
    asked = {types} if isinstance(types, str) else set(types)
    fixed = bool(asked & {"integer", "number", "boolean"}) and "string" not in asked
    if fixed:
        found = {_BOUNDS.get(key, key): value for key, value in found.items()}
    if fixed or "enum" in found or "const" in found:
        about = {key: found.pop(key) for key in ("title", "description", "default") if key in found}
        return {**about, "anyOf": [found, dict(_VARIABLE)]}
    return found


def _adaptor_schema(kind: str, definitions: Schema) -> Schema:
    """Return the schema of adaptors of *kind*, and add their settings to *definitions*."""
    model = definitions[f"{kind.capitalize()}Config"]
    keys = READER_KEYS if kind == READER else WRITER_KEYS
    own = {key: model["properties"][key] for key in keys}
    asked_of_all = set(keys) & set(model["required"])
    names, cases = [], []
    for name in sorted(adaptor_entry_points(kind).names):
        try:
            cls = find_adaptor(kind, name, Path())
        except ConfigError:
            continue  # 'adaptors list' shows the reason
        settings = _prefixed_schema(cls.Config, f"{kind}.{name}", definitions)
        settings["properties"] = own | settings.get("properties", {})
        settings["required"] = sorted({*asked_of_all, *settings.get("required", ())})
        settings["description"] = (cls.__doc__ or "").partition("\n")[0]
        definitions[f"{kind}.{name}"] = settings
        names.append(name)
        asked = {"properties": {"adaptor": {"const": name}}, "required": ["adaptor"]}
        cases.append({"if": asked, "then": {"$ref": f"#/$defs/{kind}.{name}"}})
    local = {"type": "string", "pattern": ":", "description": "module:Class beside this file"}
    return {
        "type": "object",
        "properties": own | {"adaptor": {"anyOf": [{"enum": names}, local, dict(_VARIABLE)]}},
        "required": sorted(asked_of_all),
        "allOf": cases,
    }


def _step_schema(definitions: Schema) -> Schema:
    """Return the schema of a step: a mapping of one key, its name."""
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {
            name: _prefixed_schema(kind.settings, f"step.{name}", definitions)
            for name, kind in sorted(KINDS.items())
        },
    }


def _prefixed_schema(model: type[BaseModel], prefix: str, definitions: Schema) -> Schema:
    """Return the schema of *model*. Referenced schemas go under *prefix* of *definitions*."""
    template = f"#/$defs/{prefix}.{{model}}"
    schema = model.model_json_schema(schema_generator=_Generator, ref_template=template)
    inner = schema.pop("$defs", {})
    definitions.update({f"{prefix}.{name}": _allow_variables(each) for name, each in inner.items()})
    return dict(_allow_variables(schema))
