"""The same work in Bytewax, the rival of ``file-file``.

``python -m benchmarks.flows FOLDER OUTPUT`` gets ready, reports it, and runs once a line comes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import bytewax.operators as op
from bytewax.connectors.files import DirSource, FileSink
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

KEPT: Final = "kept"
OMITTED: Final = "note"
RENAMED: Final = ("trace", "trace_id")


def dataflow(folder: Path, output: Path) -> Dataflow:
    """Return the flow from the lines in *folder* to *output*.

    Half of them are kept. Of these one field is left out and another renamed.
    """
    flow = Dataflow("file-file")
    lines = op.input("read", flow, DirSource(folder, glob_pat="*.jsonl"))
    parsed = op.map("parse", lines, json.loads)
    kept = op.filter("filter", parsed, _is_kept)
    done = op.map("change", kept, _change)
    op.output("write", op.key_on("key", done, _one_key), FileSink(output))
    return flow


def _is_kept(document: dict[str, Any]) -> bool:
    return bool(document["kind"] == KEPT)


def _change(document: dict[str, Any]) -> str:
    del document[OMITTED]
    document[RENAMED[1]] = document.pop(RENAMED[0])
    return json.dumps(document)


def _one_key(_: str) -> str:
    return "all"


def main(folder: str, output: str) -> None:
    """Run when a line comes on standard input."""
    flow = dataflow(Path(folder), Path(output))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    run_main(flow)  # type: ignore[no-untyped-call]
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
