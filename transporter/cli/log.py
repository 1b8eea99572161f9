"""``transporter log``: look into a log, beside a running engine or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.cli.groups import group
from transporter.cli.log_compact import compact
from transporter.cli.log_export import export
from transporter.cli.log_info import info
from transporter.cli.log_repair import repair, verify
from transporter.cli.log_show import show
from transporter.cli.log_tail import tail

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """Put the group together."""
    return group(
        "Look into a commit log.",
        info=info,
        show=show,
        tail=tail,
        export=export,
        compact=compact,
        verify=verify,
        repair=repair,
    )
