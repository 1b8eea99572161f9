"""The console as a WSGI application, and its server: admission, security headers, errors."""

from __future__ import annotations

import logging
import os
import traceback
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from flask import Flask, Response, g, redirect, render_template, request, url_for
from jinja2 import StrictUndefined
from waitress.server import create_server
from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import ClosingIterator

from transporter.console import pages
from transporter.console.act_pages import add_acts
from transporter.console.answers import error_json, wants_json
from transporter.console.entry_pages import Exports, Trials
from transporter.console.formats import count_text, one_line, visible
from transporter.console.guard import Identity, RequestFacts
from transporter.console.sessions import SESSION_SECONDS
from transporter.errors import (
    ActionRefused,
    ConfigError,
    EnvironmentFault,
    LogError,
    OffsetRefused,
    TransporterError,
    UnknownName,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from flask.json.provider import DefaultJSONProvider

    from transporter.console.answers import Answer
    from transporter.console.state import Console, Outcome

THREADS: Final = 8
CONNECTIONS: Final = 500
"""Connections at once. Beyond that nobody is accepted until one closes."""
SILENCE: Final = 20
"""Seconds after which a connection is closed that sends no request, or no more of one."""
_MOST_BODY: Final = 64 << 10
_PUBLIC: Final = frozenset({"login", "log_in", "healthz", "static"})
"""Endpoints that need no identity."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer a browser would send "Origin: null" with forms, and the guard needs Origin
    # where there is no Sec-Fetch-Site: over plain HTTP under another name than loopback's.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STATUSES: Final = (
    (UnknownName, 404),
    (OffsetRefused, 404),
    (ConfigError, 400),
    (ActionRefused, 409),
    (EnvironmentFault, 503),
    (LogError, 503),
)


@contextmanager
def serving(console: Console, listener: socket.socket) -> Iterator[Callable[[], None]]:
    """Yield a function that serves *console* on *listener* until it is interrupted."""
    logging.getLogger("waitress").setLevel(logging.ERROR)
    server = create_server(
        create_app(console),
        sockets=[listener],
        threads=THREADS,
        ident=None,
        clear_untrusted_proxy_headers=False,  # the guard knows which peers to believe
        url_prefix=console.access.base_path,
        max_request_body_size=_MOST_BODY,
        connection_limit=CONNECTIONS,
        asyncore_use_poll=True,  # select() cannot wait for that many
        channel_timeout=SILENCE,
        cleanup_interval=SILENCE // 4,
    )
    try:
        yield server.run
    finally:
        server.close()
        console.close()


def create_app(console: Console) -> Flask:
    """Return the application that serves *console*."""
    app = Flask("transporter.console", static_folder="static", template_folder="templates")
    cast("DefaultJSONProvider", app.json).sort_keys = False  # the order of the commands
    app.config["MAX_CONTENT_LENGTH"] = _MOST_BODY
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 3600
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.filters.update(count=count_text, line=one_line, visible=visible)
    app.wsgi_app = _counting(app.wsgi_app, console)  # type: ignore[assignment, method-assign]
    app.before_request(lambda: _admit(console))
    app.after_request(_add_headers)
    app.context_processor(lambda: _common_values(console))
    app.register_error_handler(Exception, _report_error)
    _add_login(app, console)
    added = pages.add_pages(app, console)
    Exports(app, added)
    Trials(app, console, added, add_acts(app, console, added))
    return app


def _counting(answer: WSGIApplication, console: Console) -> WSGIApplication:
    """Return *answer* with its requests counted until all that they are answered is sent."""

    def counted(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        console.activity.begin()
        try:
            return ClosingIterator(answer(environ, start_response), console.activity.end)
        except BaseException:
            console.activity.end()
            raise

    return counted


def _admit(console: Console) -> Answer | None:
    """Refuse the request, or find out who sends it."""
    g.identity = None
    facts = RequestFacts(
        method=request.method,
        peer=request.environ.get("REMOTE_ADDR", ""),
        headers={name.lower(): value for name, value in request.headers.items()},
        session=console.sessions.find(request.cookies.get(console.cookie, "")),
    )
    g.origin, g.is_secure = console.guard.origin_of(facts), console.guard.is_secure(facts)
    refusal = console.guard.check_origin(facts)
    if refusal is not None:
        return _refuse(refusal.status, refusal.reason)
    g.identity = console.guard.identify(facts)
    if g.identity is None and request.endpoint not in _PUBLIC:
        return _refuse(401, "You are not logged in.")
    return None


def _refuse(status: int, reason: str) -> Answer:
    if wants_json() or request.args.get("part"):
        return error_json("Refused", reason, 1), status
    if status == 401:  # noqa: PLR2004 - the page to log in on
        return render_template("login.html", reason=""), status
    return render_template("error.html", heading="Refused", text=reason), status


def _add_headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.endpoint != "static":
        response.headers["Cache-Control"] = "no-store"
    response.headers["Vary"] = "Accept, Cookie"
    return response


def _common_values(console: Console) -> dict[str, Any]:
    identity: Identity | None = g.get("identity")
    return {
        "identity": identity,
        "logs": list(console.sources) if identity else [],
        "has_tokens": bool(console.access.tokens),
        "cannot_act": console.guard.refusal_to_act(identity) if identity else "",
        "outcome": _outcome(console, identity),
    }


def _outcome(console: Console, identity: Identity | None) -> Outcome | None:
    """Return the outcome of the act that led to this page, once, to the person who acted."""
    if identity is None or "part" in request.args or "done" not in request.args:
        return None
    found = console.outcomes.take(request.args["done"])
    return found if found is not None and found.sender == identity else None


def _add_login(app: Flask, console: Console) -> None:
    @app.get("/login")
    def login() -> Answer:
        """Log in by a link, which works once, or show the page to log in on."""
        link = request.args.get("link", "")
        if not link or request.method == "HEAD":  # a program looks, which spends nothing
            return render_template("login.html", reason="")
        return _begin_session(console, console.links.take(link))

    @app.post("/login")
    def log_in() -> Answer:
        """Log in by the secret of a link, or by a token."""
        secret = request.form.get("secret", "").strip().rpartition("link=")[2]
        return _begin_session(
            console, console.links.take(secret) or console.guard.token_holder(secret)
        )

    @app.post("/logout")
    def logout() -> Answer:
        """End the session."""
        console.sessions.take(request.cookies.get(console.cookie, ""))
        response = redirect(url_for("login"), 303)
        response.delete_cookie(console.cookie, path=_cookie_path(console))
        return response

    @app.get("/healthz")
    def healthz() -> Answer:
        """Report that the console answers. It says nothing about any log."""
        return Response("ok\n", mimetype="text/plain")


def _begin_session(console: Console, identity: Identity | None) -> Answer:
    if identity is None:
        reason = "That link or token is not valid. A link works once, and for 60 seconds."
        return render_template("login.html", reason=reason), 401
    secret = console.sessions.issue(replace(identity, via="session"))
    response = redirect(url_for("home"), 303)
    response.set_cookie(
        console.cookie,
        secret,
        max_age=int(SESSION_SECONDS),
        path=_cookie_path(console),
        httponly=True,
        samesite="Strict",
        secure=request.is_secure or g.is_secure,
    )
    return response


def _cookie_path(console: Console) -> str:
    return console.access.base_path or "/"


def _report_error(error: Exception) -> Answer:
    """Return an error as a page or as JSON: never a traceback, and never the text of a bug."""
    if isinstance(error, TransporterError):
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
        return _error_answer(type(error).__name__, str(error), error.exit_code, status)
    if isinstance(error, HTTPException):
        return _error_answer(error.name, error.description or error.name, 1, error.code or 500)
    if os.environ.get("TRANSPORTER_DEBUG") == "1":
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119 - text only
    text = (
        f"This is a bug in transporter: {type(error).__name__} at {place}. Start the console "
        "with TRANSPORTER_DEBUG=1 for the traceback, and please report it."
    )
    return _error_answer("InternalError", text, 1, 500)


def _error_answer(kind: str, text: str, exit_code: int, status: int) -> Answer:
    if wants_json():
        return error_json(kind, text, exit_code), status
    return render_template("error.html", heading=kind, text=visible(text)), status
