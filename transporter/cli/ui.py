"""Command ``transporter ui``: the operator console, a web page about one log or several."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.entry_output import note
from transporter.cli.log_target import log_directory
from transporter.cli.output import write
from transporter.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.console.sources import LogSource
    from transporter.console.state import Console
    from transporter.pipeline.observe_config import ConsoleAccess, ConsoleConfig, ListenAddress

Targets = Annotated[
    list[Path],
    typer.Argument(help="Pipeline files, or their log directories.", metavar="PIPELINE|DIR..."),
]


def ui(
    targets: Targets,
    *,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; by default that of observe.console in the first file.",
            metavar="HOST:PORT",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse every change, whoever asks for it.")
    ] = False,
    login: Annotated[
        bool, typer.Option("--login", help="Print a login link of the running console, and end.")
    ] = False,
) -> None:
    """Serve the operator console.

    It shows logs with and without a running engine, and makes changes for operators, each
    recorded in the audit file with the person's name. The link that it prints logs you in
    once, within 60 seconds. Only your own user can get another link.

    Examples:
        transporter ui pipeline.yaml
        transporter ui --login pipeline.yaml
    """
    from transporter.console.login_socket import request_link  # noqa: PLC0415 - heavy

    if login:
        write(request_link(log_directory(targets[0])))
    else:
        _serve(targets, listen, read_only=read_only)


def _serve(targets: list[Path], listen: str | None, *, read_only: bool) -> None:
    from transporter.audit import this_operator  # noqa: PLC0415 - heavy; `--help` does without
    from transporter.console.app import serving  # noqa: PLC0415
    from transporter.console.listening import bind  # noqa: PLC0415
    from transporter.console.sources import find_sources  # noqa: PLC0415

    sources = find_sources(targets, os.environ)
    settings = read_settings(next(iter(sources.values())), listen)
    access = settings.console_access
    if read_only:
        access = access.model_copy(update={"read_only": True})
    directories = [each.directory for each in sources.values()]
    place = _first_without_console(directories)
    listener, address = bind(settings.console)
    console = create_console(targets, sources, address, access)
    with ExitStack() as stack:
        stack.callback(listener.close)
        _open_login_socket(stack, console, directories[place])
        serve = stack.enter_context(serving(console, listener))
        write(f"console: {console.url}")
        write(f"log in within 60 s: {console.login_link(this_operator().who)}")
        write(f"another link: transporter ui --login {targets[place]}")
        # As Ctrl-C does, so that the socket is removed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        serve()


def create_console(
    targets: list[Path],
    sources: Mapping[str, LogSource],
    address: ListenAddress,
    access: ConsoleAccess,
) -> Console:
    """Return the console of *sources*, which commands call by their *targets*."""
    from transporter.console.state import Console  # noqa: PLC0415 - heavy; `--help` does without

    names = dict(zip(sources, map(str, targets), strict=True))
    return Console.of(sources, names, address, access)


def _first_without_console(directories: list[Path]) -> int:
    """Return the place of the first log that no console serves yet.

    Raises:
        EnvironmentFault: each of them has one.

    """
    from transporter.console.login_socket import refuse_second  # noqa: PLC0415 - heavy

    for place, directory in enumerate(directories):
        try:
            refuse_second(directory)
        except EnvironmentFault:
            if place + 1 == len(directories):
                raise
        else:
            return place
    return 0


def read_settings(source: LogSource, listen: str | None) -> ConsoleConfig:
    """Return the console's settings of the pipeline file of *source*, with *listen* over them.

    Where the file is missing they are unknown, so nothing is changed and no payload shown.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - heavy

    from transporter.pipeline.observe_config import (  # noqa: PLC0415
        ConsoleConfig,
        read_console_settings,
    )

    file, found = source.file, ConsoleConfig()
    if file is not None and file.exists():
        found = read_console_settings(file, os.environ)
    elif file is not None:
        note(
            f"{file} is missing, and with it who may do what: the console is read-only and shows "
            "no payloads; name the pipeline file, if it was moved"
        )
        found = locked_settings()
    if listen is None:
        return found
    try:
        return ConsoleConfig(console=listen, console_access=found.console_access)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--listen: {reason.removeprefix('console: ')}") from None


def locked_settings() -> ConsoleConfig:
    """Return the settings where those of the pipeline file are unknown: read-only, no payloads."""
    from transporter.pipeline.observe_config import ConsoleAccess, ConsoleConfig  # noqa: PLC0415

    return ConsoleConfig(console_access=ConsoleAccess(read_only=True, payloads="nobody"))


def _open_login_socket(stack: ExitStack, console: Console, directory: Path) -> None:
    from transporter.console.login_socket import LoginSocket, listening  # noqa: PLC0415 - heavy

    try:
        listener = stack.enter_context(listening(directory))
    except OSError as error:
        note(
            f"{directory}: {error.strerror}, so --login cannot print another link; "
            "restart the console for one"
        )
    else:
        stack.enter_context(LoginSocket(listener, console.login_link))
