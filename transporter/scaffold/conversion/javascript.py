"""The subset of JavaScript in which a ``pipeline.js`` of compose/transporter is written.

tree-sitter parses the file, and nothing of it is executed. Accepted are assignments of names,
calls, chains of calls, and literals. Anything else is refused by its line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError, EnvironmentFault
from transporter.pipeline.problems import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 64
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_CODE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,6})\})")
_CONSTANTS: Final = {"true": True, "false": False, "null": None, "undefined": None}
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Name:
    """A name that an earlier statement has assigned."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, or with *target* of a method."""

    function: str
    arguments: tuple[Any, ...]
    line: int
    target: Call | Name | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """An object literal, with the line of each key."""

    values: dict[str, Any]
    lines: dict[str, int]


@dataclass(frozen=True, slots=True)
class Statement:
    """An expression, and the name that it is assigned to, if any."""

    target: str | None
    value: Any
    line: int


def parse(text: bytes, file: str) -> list[Statement]:
    """Return the statements of a file.

    Raises:
        ConfigError: If it is not JavaScript, or not of the subset.
        EnvironmentFault: If the extra ``migrate`` is not installed.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES} bytes; no pipeline needs that", file)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", file, line) from error
    root = _tree(text)
    if broken := next(_broken(root), None):
        missing = f"{broken.type!r} is missing" if broken.is_missing else "this cannot be parsed"
        raise ConfigError(f"is not JavaScript: {missing}", file, _line(broken))
    return [each for node in _children(root) for each in _Reader(file).statements(node)]


def _tree(text: bytes) -> Node:
    try:
        import tree_sitter_javascript  # noqa: PLC0415 - an extra
        from tree_sitter import Language, Parser  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise EnvironmentFault(
            "reading JavaScript needs tree-sitter, which is not installed: "
            "pip install 'transporter-engine[migrate]'"
        ) from error
    return Parser(Language(tree_sitter_javascript.language())).parse(text).root_node


def _broken(root: Node) -> Iterator[Node]:
    """Yield the nodes at which the text is not JavaScript. It may be nested to any depth."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        elif node.has_error:
            waiting.extend(reversed(node.children))


def _children(node: Node) -> list[Node]:
    """Return the named children of a node that are not comments."""
    return [each for each in node.named_children if each.type != "comment"]


def _line(node: Node) -> int:
    return int(node.start_point[0]) + 1


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the nodes of one file."""

    file: str

    def statements(self, node: Node) -> Iterator[Statement]:
        """Yield the assignments and calls of a statement."""
        if node.type in ("variable_declaration", "lexical_declaration"):
            for each in _children(node):
                name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
                if name is None or name.type != "identifier" or value is None:
                    raise self._refused(each)
                yield Statement(_text(name), self.value(value), _line(each))
        elif node.type == "expression_statement":
            (expression,) = _children(node)
            yield self._expression(expression)
        elif node.type != "empty_statement":
            raise self._refused(node)

    def value(self, node: Node, depth: int = 0) -> Any:  # noqa: ANN401 - any literal
        """Return the value of an expression: a literal, a call, or a name."""
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"is nested more than {MAX_DEPTH} levels deep", self.file, _line(node)
            )
        if (constant := _CONSTANTS.get(node.type, node)) is not node:
            return constant
        if (read := self._readers().get(node.type)) is None:
            raise self._refused(node)
        return read(node, depth)

    def _readers(self) -> dict[str, Callable[[Node, int], Any]]:
        """Return the method for each type of node."""
        return {
            "string": lambda node, _: self._string(node),
            "template_string": lambda node, _: self._template(node),
            "regex": lambda node, _: _text(node),
            "number": lambda node, _: self._number(node),
            "unary_expression": lambda node, _: self._number(node),
            "identifier": lambda node, _: Name(_text(node), _line(node)),
            "array": lambda node, depth: [self.value(each, depth + 1) for each in _children(node)],
            "object": self._object,
            "call_expression": self._call,
        }

    def _template(self, node: Node) -> str:
        if any(each.type == "template_substitution" for each in node.named_children):
            raise self._refused(node)
        return self._string(node)

    def _expression(self, node: Node) -> Statement:
        if node.type != "assignment_expression":
            return Statement(None, self.value(node), _line(node))
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is None or right is None or left.type != "identifier":
            raise self._refused(node)
        return Statement(_text(left), self.value(right), _line(node))

    def _call(self, node: Node, depth: int) -> Call:
        function, arguments = (
            node.child_by_field_name("function"),
            node.child_by_field_name("arguments"),
        )
        if function is None or arguments is None or arguments.type != "arguments":
            raise self._refused(node)
        values = tuple(self.value(each, depth + 1) for each in _children(arguments))
        if function.type == "identifier":
            return Call(_text(function), values, _line(node))
        owner, name = (
            function.child_by_field_name("object"),
            function.child_by_field_name("property"),
        )
        if function.type != "member_expression" or owner is None or name is None:
            raise self._refused(node)
        target = self.value(owner, depth + 1)
        if not isinstance(target, Call | Name):
            raise self._refused(owner)
        return Call(_text(name), values, _line(name), target)

    def _object(self, node: Node, depth: int) -> Mapping:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for pair in _children(node):
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if pair.type != "pair" or key is None or value is None:
                raise self._refused(pair)
            if key.type not in ("property_identifier", "string", "number"):
                raise self._refused(key)
            name = self._string(key) if key.type == "string" else _text(key)
            values[name], lines[name] = self.value(value, depth + 1), _line(pair)
        return Mapping(values, lines)

    def _string(self, node: Node) -> str:
        pieces = []
        for each in node.named_children:
            text = _text(each)
            pieces.append(self._escape(each) if each.type == "escape_sequence" else text)
        return "".join(pieces)

    def _escape(self, node: Node) -> str:
        text = _text(node)
        if code := _CODE.fullmatch(text):
            number = int(next(filter(None, code.groups())), 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:  # noqa: PLR2004 - Unicode's own
                raise self._refused(node)
            return chr(number)
        if text[1:] in ("\n", "\r\n"):
            return ""
        return _ESCAPES.get(text[1:], text[1:])

    def _number(self, node: Node) -> int | float:
        try:
            number = json.loads(_text(node))
        except ValueError:
            raise self._refused(node) from None
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self._refused(node)
        return number

    def _refused(self, node: Node) -> ConfigError:
        kind = node.type.replace("_", " ")
        return ConfigError(
            f"is not converted: {one_line(kind)[:_SHOWN]}; only calls, names and plain values are, "
            "so write the value in its place",
            self.file,
            _line(node),
        )
