"""A console over a log whose engine has ended, for tests of its pages and acts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from engine_tools import make_pipeline, run_to_end

from transporter.audit import AuditFile, Operator
from transporter.console.app import create_app
from transporter.console.sources import find_sources
from transporter.console.state import Console
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.pipeline.observe_config import ConsoleAccess, ListenAddress

if TYPE_CHECKING:
    from pathlib import Path

    from flask.testing import FlaskClient

LISTEN = ListenAddress("127.0.0.1", 9465)
JSON = {"Accept": "application/json"}
TOKENS = {
    "viewer": "viewer-0123456789abcdef",
    "operator": "operator-0123456789abcdef",
}
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e&\"'"
CANARY = "canary-7f3a"
SECRET = "hunter2-of-the-sink"  # noqa: S105 - to be looked for


def make_shop(found: Path) -> Path:
    """Run a pipeline in *found* to its end: with parked entries, a hostile one and a change."""
    lines = [f"{'ab'[number % 2]} {number}" for number in range(12)]
    routes = {
        "out": {"on_error": "park", "writer": {"reject": [3, 7]}},
        "some": {"namespace": "^a"},
    }
    pipeline = make_pipeline(found, lines, **routes)
    run_to_end(pipeline)
    document = json.loads((found / "pipeline.yaml").read_text())
    document["routes"][0]["writer"]["password"] = SECRET
    (found / "shop.yaml").write_text(json.dumps(document, indent=1))
    with CommitLog.open(found / "log") as log:
        hidden = f"{HOSTILE}{CANARY}".encode()
        hostile = Message(HOSTILE, hidden, hidden, headers=((HOSTILE, hidden),))
        log.append(messages_to_batch([hostile]), "r")
    with AuditFile(found / "log").change(
        "ack", Operator("ann", 7, 9), route="out", first=0, last=1
    ):
        pass
    return found


def make_console(folder: Path, **access: Any) -> Console:
    """Return a console of the pipeline in *folder* with this access."""
    tokens = [{"name": role, "token": token, "role": role} for role, token in TOKENS.items()]
    file = folder / "shop.yaml"
    sources = find_sources([file], {})
    rights = ConsoleAccess.model_validate({"tokens": tokens, **access})
    return Console.of(sources, {"shop": str(file)}, LISTEN, rights)


def client_of(console: Console) -> FlaskClient:
    """Return a client of *console* that has not logged in."""
    return create_app(console).test_client()
