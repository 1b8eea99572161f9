"""The console's pages: each as HTML, and as the JSON of the command that shows the same."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, Final, cast

from flask import Response, g, redirect, render_template, request, url_for

from transporter.console.answers import is_live, render, result_json, wants_json
from transporter.console.formats import (
    MOST_SHOWN,
    bytes_text,
    iso_text,
    pretty_data,
    size_text,
    visible,
)
from transporter.console.readings import (
    CHANGES,
    Fates,
    outline_of,
    read_changes,
    read_entry_page,
    read_parked_page,
)
from transporter.console.search import Limits, Query, read_entry, search, select_span
from transporter.console.state import FormGrant
from transporter.console.views.audit import change_rows, matching_changes
from transporter.console.views.entries import entries_page, entry_row
from transporter.console.views.events import SHOWN, cluster_events, event_rows, event_without_texts
from transporter.console.views.health import disk_facts, health, verification_view
from transporter.console.views.history import history_charts
from transporter.console.views.overview import Overview, leadership, overview
from transporter.console.views.parked import ParkedRow, group_parked, parked_row
from transporter.console.views.privacy import (
    entry_without_payload,
    look_without_texts,
    parked_without_payload,
)
from transporter.console.views.route import route_view
from transporter.control.entry_values import entry_json
from transporter.control.log_facts import log_facts
from transporter.control.request_arguments import parse_offset
from transporter.errors import ActionRefused, ConfigError, OffsetRefused, UnknownName
from transporter.offsets.offset_log import inspect_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flask import Flask

    from transporter.console.answers import Answer
    from transporter.console.search import Direction
    from transporter.console.sources import LogSource, Look
    from transporter.console.state import Console

LIVE_ROWS: Final = 200
LIVE_LIMITS: Final = Limits(LIVE_ROWS, 0.5, 128 << 20)
JSON_BYTES: Final = 16 << 20
"""Bytes of parked entries in one answer, which is in memory as a whole, and more than once."""
_LIVE_BEGIN: Final = 50
"""Entries before the end of the log with which a live tail begins."""


def add_pages(app: Flask, console: Console) -> Pages:
    """Add the pages of *console* to *app*, and return them."""
    pages = Pages(console)
    views: dict[str, Callable[..., Any]] = {
        "/": pages.home,
        "/help": pages.help_page,
        "/p/<log>": pages.overview,
        "/p/<log>/r/<route>": pages.route,
        "/p/<log>/log": pages.entries,
        "/p/<log>/log/<int:offset>": pages.entry,
        "/p/<log>/log/<int:offset>/raw": pages.raw,
        "/p/<log>/parked": pages.parked,
        "/p/<log>/audit": pages.audit,
        "/p/<log>/config": pages.config,
        "/p/<log>/health": pages.health,
        "/p/<log>/events": pages.events,
        "/p/<log>/history": pages.history,
        "/p/<log>/cluster": pages.cluster,
    }
    for rule, view in views.items():
        app.add_url_rule(rule, view.__name__, view)
    return pages


class Pages:
    """The pages of one console. Every method answers one GET, and changes nothing."""

    def __init__(self, console: Console) -> None:
        """Show the logs of *console*."""
        self._console = console

    def home(self) -> Answer:
        """Show all logs, or the only one."""
        sources = self._console.sources
        if len(sources) == 1 and not wants_json():
            return redirect(url_for("overview", log=next(iter(sources))))
        shown = [self._overview(source, self._look(source)) for source in sources.values()]
        result = [
            {
                "log": each.name,
                "directory": each.directory,
                "state": each.state,
                "problems": [problem.text for problem in each.problems],
            }
            for each in shown
        ]
        ordered = sorted(shown, key=lambda each: (not each.problems, each.name))
        return render("fleet.html", result, fleet=ordered)

    def help_page(self) -> Answer:
        """Show the keys, and the commands that do what the console does not."""
        return render_template("help.html", targets=self._console.targets)

    def overview(self, log: str) -> Answer:
        """Show readers, log and routes. The JSON is that of ``transporter status``."""
        source = self.source(log)
        look = self._look(source)
        if wants_json() and look.status is None:
            raise UnknownName(look.problem or f"{source.directory}: there is no log yet")
        return render("overview.html", look.status, view=self._overview(source, look))

    def route(self, log: str, route: str) -> Answer:
        """Show one route. The JSON is its part of ``transporter status``."""
        source = self.source(log)
        look = self._look(source)
        found = self._route_status(look, route)
        values: dict[str, Any] = {"view": route_view(found, look), "name": route}
        if not is_live() and not wants_json():
            outline, problem = outline_of(source)
            changes = matching_changes(read_changes(source.directory).changes, route=route)
            values |= {
                "outline": outline.route(route) if outline is not None else None,
                "outline_problem": problem,
                "file": outline.file if outline is not None else "",
                "changes": change_rows(changes[-10:]),
            }
        return render("route.html", found, log=source.name, **values, **self.frame(source, look))

    def entries(self, log: str) -> Answer:
        """Show the entries that a search finds. The JSON is that of ``transporter log show``."""
        source = self.source(log)
        is_tail = request.args.get("dir") == "live"
        query = self.query()
        payloads = self.may_see_payloads()
        if query.reads_payloads and not payloads:
            raise ActionRefused("only operators may search by key or content here")
        found_log = inspect_log(source.directory)
        span = select_span(query, found_log, datetime.now(UTC))
        after = ""
        if is_tail:
            begin = _number("after", max(-1, span.last - _LIVE_BEGIN))
            after = str(begin)
            span = replace(span, first=max(span.first, begin + 1))
        found = search(source.directory, span, query.direction, LIVE_LIMITS if is_tail else None)
        if wants_json():
            return self._entries_json(found_log.confirmed, found)
        fates = Fates(source)
        rows = [
            entry_row(each, found_log.confirmed, fates.of(each), payloads=payloads)
            for each in found.entries
        ]
        page = entries_page(query, span, found, rows, fates.routes)
        values = {"page": page, "query": query, "tail": is_tail, "after": after}
        return render(
            "entries.html",
            None,
            payloads=payloads,
            **values,
            **self.frame(source, self._look(source)),
        )

    def entry(self, log: str, offset: int) -> Answer:
        """Show one entry, and its fate in each route."""
        source = self.source(log)
        payloads = self.may_see_payloads()
        reading = read_entry_page(source.directory, offset)
        if reading is None:
            raise OffsetRefused(
                f"offset {offset} is not in the log any more: compaction has dropped it, or a "
                "repair could not save it"
            )
        values = entry_json(reading.entry, confirmed=reading.confirmed)
        if not payloads:
            values = entry_without_payload(values)
        if wants_json():
            return result_json([values])
        fates = Fates(source)
        message = reading.entry.message
        shown = [
            (route, fate, fates.parked_reason(route, offset))
            for route, fate in fates.of(reading.entry)
        ]
        return render_template(
            "entry.html",
            reading=reading,
            offset=offset,
            message=message,
            logged_at=iso_text(reading.entry.logged_at / 1e6),
            timestamp=iso_text(message.timestamp / 1e6) if message.timestamp else "",
            key=bytes_text(message.key),
            headers=[(name, bytes_text(value)) for name, value in message.headers],
            data=pretty_data(message.data),
            size=size_text(len(message.data or b"")),
            is_cut=len(message.data or b"") > MOST_SHOWN,
            fates=shown,
            payloads=payloads,
            form=self._form_for("try_entry", source, offset=offset) if payloads and shown else "",
            **self.frame(source, self._look(source)),
        )

    def raw(self, log: str, offset: int) -> Answer:
        """Return the data of one entry as it is, as a file."""
        source = self.source(log)
        if not self.may_see_payloads():
            raise ActionRefused("only operators may see payloads here")
        entry = read_entry(source.directory, offset)
        if entry is None or entry.message.data is None:
            raise OffsetRefused(f"there are no data at offset {offset}")
        name = f"attachment; filename={source.name}-{offset}.bin"
        return Response(
            entry.message.data,
            mimetype="application/octet-stream",
            headers={"Content-Disposition": name},
        )

    def parked(self, log: str) -> Answer:
        """Show parked entries in groups. The JSON is that of ``transporter parked list``."""
        source = self.source(log)
        look = self._look(source)
        routes = [(each["name"], each["parked"]) for each in (look.status or {}).get("routes", ())]
        busiest = max(routes, key=lambda each: each[1], default=("", 0))[0]
        route = request.args.get("route", busiest)
        if not route:
            raise UnknownName("no route has run on this log yet")
        if wants_json():
            return self._parked_json(source, route)
        found = read_parked_page(source.directory, route, self.parked_row)
        return render_template(
            "parked.html",
            groups=group_parked(found.entries),
            found=found,
            route=route,
            routes=routes,
            target=self._console.targets[source.name],
            **self.frame(source, look),
        )

    def _parked_json(self, source: LogSource, route: str) -> Answer:
        view = dict if self.may_see_payloads() else parked_without_payload
        found = read_parked_page(source.directory, route, view, most_bytes=JSON_BYTES)
        damaged = [{"offset": at, "problem": text} for at, text in found.damaged.items()]
        return result_json(
            found.entries, total=found.total, damaged=damaged, left_out=found.left_out
        )

    def parked_row(self, parked: Mapping[str, Any]) -> ParkedRow:
        """Return the row of a *parked* entry as the sender of this request may see it."""
        return parked_row(parked if self.may_see_payloads() else parked_without_payload(parked))

    def audit(self, log: str) -> Answer:
        """Show the changes to the log. The JSON is that of ``transporter audit``."""
        source = self.source(log)
        limit = _number("last", CHANGES)
        who, action = request.args.get("who", ""), request.args.get("action", "")
        found = read_changes(source.directory)
        changes = matching_changes(found.changes, who, action, request.args.get("route", ""))
        changes = changes[-limit:] if limit else changes
        return render(
            "audit.html",
            changes,
            rows=change_rows(changes),
            found=found,
            limit=limit,
            **self.frame(source, self._look(source)),
        )

    def config(self, log: str) -> Answer:
        """Show the pipeline file as it lies there now, without any value of an adaptor."""
        source = self.source(log)
        outline, problem = outline_of(source)
        if wants_json() and outline is None:
            raise ActionRefused(problem)
        return render(
            "config.html",
            asdict(outline) if outline is not None else None,
            outline=outline,
            problem=visible(problem),
            target=self._console.targets[source.name],
            **self.frame(source, self._look(source)),
        )

    def health(self, log: str) -> Answer:
        """Show the log's files. The JSON is that of ``transporter log info``."""
        source = self.source(log)
        facts = log_facts(source.directory)
        facts["directory"] = str(facts["directory"])
        look = self._look(source)
        form = "" if wants_json() else self._form_for("verify", source)
        return render(
            "health.html",
            facts,
            view=health(facts),
            disk=disk_facts(look.status or {}, disk_usage(source.directory).free),
            verification=verification_view(self._console.verifier.state(source.name)),
            form=form,
            target=self._console.targets[source.name],
            **self.frame(source, look),
        )

    def events(self, log: str) -> Answer:
        """Show the engine's newest events. The JSON has those of ``transporter events``."""
        source = self.source(log)
        level, route = request.args.get("level", "info"), request.args.get("route", "")
        found = source.memory.events(level, route)
        if not self.may_see_payloads():
            found = list(map(event_without_texts, found))
        return render(
            "events.html",
            found,
            rows=event_rows(found[-SHOWN:]),
            count=len(found),
            level=level,
            chosen=route,
            **self.frame(source, self._look(source)),
        )

    def history(self, log: str) -> Answer:
        """Show half an hour of readers and routes. The JSON is that of ``transporter history``."""
        source = self.source(log)
        found = source.memory.history()
        charts = list(history_charts(found, time.time())) if found is not None else []
        return render(
            "history.html",
            found,
            charts=charts,
            left_out=found["left_out"] if found is not None else [],
            **self.frame(source, self._look(source)),
        )

    def cluster(self, log: str) -> Answer:
        """Show who leads each reader, the workers, and the latest changes of both."""
        source = self.source(log)
        look = self._look(source)
        found = cluster_events(source.memory.events())
        if not self.may_see_payloads():
            found = list(map(event_without_texts, found))
        status = look.status or {}
        result = {"readers": status.get("readers", ()), "events": found}
        values = {"rows": event_rows(found[-SHOWN:]), "readers": leadership(status)}
        return render("cluster.html", result, **values, **self.frame(source, look))

    def source(self, log: str) -> LogSource:
        """Return the log of this name."""
        found = self._console.sources.get(log)
        if found is None:
            raise UnknownName(f"this console does not show a log named {visible(log)!r}")
        return found

    def _look(self, source: LogSource) -> Look:
        """Return the state of *source* as the sender of this request may see it."""
        look = source.look()
        return look if self.may_see_payloads() else look_without_texts(look)

    def may_see_payloads(self) -> bool:
        """Return whether the sender of this request may see keys, headers and data."""
        return self._console.guard.may_see_payloads(g.identity)

    def _overview(self, source: LogSource, look: Look) -> Overview:
        return overview(
            source.name, str(source.directory), look, self._console.targets[source.name]
        )

    def frame(self, source: LogSource, look: Look) -> dict[str, Any]:
        """Return the values that the frame around each page of a log takes."""
        return {"frame": self._overview(source, look)}

    def _route_status(self, look: Look, route: str) -> Mapping[str, Any]:
        routes = (look.status or {}).get("routes", ())
        found = next((each for each in routes if each["name"] == route), None)
        if found is None:
            known = ", ".join(each["name"] for each in routes) or "none"
            raise UnknownName(f"there is no route {visible(route)!r} on this log (known: {known})")
        return cast("Mapping[str, Any]", found)

    def _form_for(self, endpoint: str, source: LogSource, offset: int | None = None) -> str:
        """Return the right to send a form to *endpoint* once, empty for those who may not act."""
        if self._console.guard.refusal_to_act(g.identity):
            return ""
        path = url_for(endpoint, log=source.name, offset=offset)
        return self._console.forms.issue(FormGrant(g.identity, path))

    def query(self) -> Query:
        """Return the search in the address of this request."""
        fields = request.args
        direction: Direction = "oldest" if fields.get("dir") == "oldest" else "newest"
        return Query(
            start=fields.get("from", ""),
            end=fields.get("to", ""),
            namespace=fields.get("ns", ""),
            key=fields.get("key", ""),
            contains=fields.get("has", ""),
            direction=direction,
        )

    def _entries_json(self, confirmed: int, found: Any) -> Answer:  # noqa: ANN401
        values = [entry_json(each, confirmed=confirmed) for each in found.entries]
        if not self.may_see_payloads():
            values = list(map(entry_without_payload, values))
        looked = {
            "first": found.looked_from,
            "last": found.looked_to,
            "bytes": found.size,
            "seconds": round(found.seconds, 3),
            "finished": found.finished,
            "lost": [list(each) for each in found.lost],
            "problem": found.problem or None,
        }
        # As the command does: the oldest first.
        return result_json(sorted(values, key=lambda each: each["offset"]), looked=looked)


def _number(name: str, default: int) -> int:
    """Return the number in the field *name* of the address, *default* if it is not there."""
    text = request.args.get(name, "").strip()
    if not text or text == "-1":  # the live tail of an empty log sends that
        return default
    try:
        return parse_offset(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
