"""Malicious and careless pipeline files, in any number."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from ruamel.yaml import YAML

from transporter.pipeline.yaml_document import MAX_BYTES, MAX_LINE

VALID = """\
name: orders
log: {dir: log, segment_bytes: 1MiB, compression: lz4, max_bytes: 8MiB, on_full: wait}
observe: {listen: "127.0.0.1:0", unready_after: 5s}
readers:
  - name: in
    adaptor: demo
routes:
  - name: out
    namespace: ^orders\\.
    steps:
      - omit: {fields: [customer.card]}
    writer:
      adaptor: file
      path: out.jsonl
    retry: {attempts: 5, backoff: 200ms..30s}
    on_error: park
    park_limit: {entries: 10, bytes: 1MiB}
    linger: 10s
    start: latest
  - name: late
    after: out
    writer: {adaptor: lmdb, path: "${FOLDER:-x}"}
spark: {master: local, config: {spark.ui.enabled: false}}
commit_interval: 1s
"""
_WORDS = (
    *("", "~", "null", "true", "yes", "-1", "0", "1e400", ".nan", "9" * 400, "0x" + "f" * 300),
    *(
        "[]",
        "{}",
        "[[]]",
        "{a: }",
        "- x",
        "? y",
        "|",
        ">",
        "'",
        '"',
        "&a b",
        "*a",
        "!!python/none x",
    ),
    *("<<: *a", "${", "${X}", "${X:?}", "${X:-${Y}}", "$${", "\t", "\0", "\x1b[2J", "\ud7ff\ufffe"),
    *(
        "(",
        "(?",
        "a{1000}{1000}",
        "[[:alpha:]",
        "\\",
        "5s",
        "-5s",
        "1e9d",
        "64MiB",
        "9" * 19 + "TiB",
    ),
    *(
        "..",
        "30s..1s",
        "demo",
        "file:",
        "os:system",
        "a.b:c",
        "../../etc/passwd",
        "/",
        "~x",
        "latest",
    ),
    *("2030-13-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "x" * 5000),
    *(
        "127.0.0.1:99999",
        "[::1]:0",
        "off",
        "é" * 100,
        "#",
        "%YAML 1.1",
        "---",
        "...",
        ":",
        "- - - -",
    ),
)


def hostile(seed: int) -> bytes:
    """Return the file of this *seed*."""
    chance = random.Random(seed)
    kind = chance.choice(_LARGE if chance.random() < _OFTEN_LARGE else _SMALL)
    return kind(chance)[: MAX_BYTES + 1]


def _token(chance: random.Random) -> bytes:
    """Return a valid file with some of its words replaced."""
    lines = VALID.split("\n")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        words = lines[at].split(" ")
        words[chance.randrange(len(words))] = chance.choice(_WORDS)
        lines[at] = " ".join(words)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _value(chance: random.Random) -> bytes:
    """Return a valid file in which a value has another type."""
    lines = VALID.split("\n")
    at = chance.choice([n for n, line in enumerate(lines) if ": " in line])
    key, _, _ = lines[at].rpartition(": ")
    lines[at] = f"{key}: {_tree(chance, chance.randint(0, 6))}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _tree(chance: random.Random, depth: int) -> str:
    if depth == 0:
        return chance.choice(_WORDS) or "x"
    inner = [_tree(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if chance.random() < 0.5:
        return f"[{', '.join(inner)}]"
    return "{" + ", ".join(f"{chance.choice('abcd')}: {each}" for each in inner) + "}"


def _bytes(chance: random.Random) -> bytes:
    """Return a valid file with some bytes changed, cut out or put in."""
    data = bytearray(VALID.encode())
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return bytes(data[: chance.randint(1, len(data))] if chance.random() < 0.2 else data)


def _lines(chance: random.Random) -> bytes:
    """Return a valid file with lines moved, repeated or indented otherwise."""
    lines = VALID.split("\n")
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(lines))
        line = lines.pop(at)
        where = chance.randrange(len(lines))
        lines[where:where] = [" " * chance.randint(0, 9) + line.lstrip()] * chance.randint(0, 3)
    return "\n".join(lines).encode()


def _nested(chance: random.Random) -> bytes:
    """Return nesting without end, closed or not."""
    depth = chance.choice((31, 32, 33, 500, 30_000))
    opening, closing = chance.choice(
        (("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[{", "}]"))
    )
    text = opening * depth + "x" + closing * (depth if chance.random() < 0.7 else 0)
    where = chance.choice(("", "readers: ", "routes: [{name: a, steps: ", "spark: {config: "))
    return f"{where}{text}".encode()


def _aliased(chance: random.Random) -> bytes:
    """Return aliases that would unfold into gigabytes."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, chance.randint(2, 30))
    ]
    text = VALID + "\n".join(lines) + "\n"
    if chance.random() < 0.5:
        text = text.replace("name: out", "name: &n out").replace("after: out", "after: *n")
    if chance.random() < 0.3:
        text += "<<: *a0\n"
    return text.encode()


def _huge(chance: random.Random) -> bytes:
    """Return one scalar, key or line that takes all the room there is."""
    size = chance.choice((1000, MAX_LINE - 100, MAX_LINE + 1, MAX_BYTES - 700, MAX_BYTES + 1))
    letter = chance.choice(
        ("x", "9", "(", "a*", "é", "${", "\\", "'", "!", "*", "&", "%", "-", ": ")
    )
    text = (letter * size)[:size]
    quote = chance.choice(("", '"', "'"))
    old, new = chance.choice(
        (
            ("^orders\\.", f"{quote}{text}{quote}"),
            ("orders\n", f"{quote}{text}{quote}\n"),
            ("on_error", f"{quote}{text}{quote}"),
            ("10s", text),
            ("out.jsonl", f"|\n{'        x' * (size // 10)}\n"),
            ("name: orders", "#" + text),
        )
    )
    return VALID.replace(old, new, 1).encode()


def _many(chance: random.Random) -> bytes:
    """Return very many of something: keys, routes, problems, variables, comments."""
    count = chance.choice((50, 500, 5_000, 20_000))
    line = chance.choice(
        (
            "k{n}: 1",
            "name: x",
            "k{n}: ${{X{n}}}",
            "# {n}",
            "---",
            "",
        )
    )
    route = chance.choice(
        (
            "  - {{name: r{n}}}",
            "  - {{name: r, zz: 1}}",
            "  - {{name: r{n}, after: r{m}}}",
            "  - {{name: r{n}, after: q{n}}}",
            "  - {{name: r{n}, writer: {{adaptor: 'no{n}:X'}}}}",
            "  - {{name: r{n}, writer: {{adaptor: nolmdb}}, steps: [{{omt: {{}}}}]}}",
        )
    )
    head = "readers: [{name: a, adaptor: demo}]\n"
    if chance.random() < 0.5:
        return (head + "".join(f"{line}\n".format(n=n) for n in range(count))).encode()
    routes = "".join(f"{route}\n".format(n=n, m=n + 1) for n in range(count))
    return f"{head}routes:\n{routes}".encode()


def _twice(chance: random.Random) -> bytes:
    """Return a file with a duplicate key, at any depth."""
    lines = VALID.split("\n")
    at = chance.choice([n for n, line in enumerate(lines) if ":" in line and "- " not in line])
    lines.insert(chance.randint(at, at + 1), lines[at])
    return "\n".join(lines).encode()


def _noise(chance: random.Random) -> bytes:
    """Return random bytes."""
    size = chance.choice((0, 1, 10, 1000))
    if chance.random() < 0.5:
        return chance.randbytes(size)
    return "".join(chance.choices("[]{},:-?&*!|>'\"%@` \n\t#ab", k=size)).encode()


def _typed(chance: random.Random) -> bytes:
    """Return a file that is valid YAML, in which some values are replaced."""
    root = YAML(typ="safe", pure=True).load(VALID)
    for _ in range(chance.randint(1, 2)):
        where: Any = root
        while True:
            keys = list(where) if isinstance(where, dict) else list(range(len(where)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(where[key], dict | list) and chance.random() < 0.85:
                where = where[key]
                continue
            if chance.random() < 0.1:
                del where[key]
            elif isinstance(where, dict) and chance.random() < 0.1:
                where[chance.choice(_WORDS).encode("ascii", "ignore").decode() or "x"] = 1
            else:
                where[key] = _plain(chance, chance.choice((0, 0, 0, 1, 3)))
            break
    return json.dumps(root, indent=1).encode()


def _plain(chance: random.Random, depth: int) -> Any:
    if depth:
        inner = [_plain(chance, depth - 1) for _ in range(chance.randint(0, 3))]
        return inner if chance.random() < 0.5 else dict(zip("abcd", inner, strict=False))
    if chance.random() < 0.4:
        return chance.choice(
            (None, True, False, 0, -1, 1, 7, 10**30, -0.5, 1e300, "demo", "lmdb", "1s")
        )
    return chance.choice([word for word in _WORDS if word.isprintable()])


_Kind = Callable[[random.Random], bytes]
_SMALL: tuple[_Kind, ...] = (
    *[_typed] * 9,
    _token,
    _token,
    _value,
    _bytes,
    _lines,
    _noise,
    _twice,
    _aliased,
)
_LARGE: tuple[_Kind, ...] = (_nested, _huge, _many)
_OFTEN_LARGE = 0.03
