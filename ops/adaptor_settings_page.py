# ruff: noqa: INP001 - a script beside the page that it writes
"""Generator of ``docs/reference/adaptor-settings.md`` from the adaptors' classes (``make docs``).

Usage: ``python ops/adaptor_settings_page.py docs/reference/adaptor-settings.md``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.pipeline.adaptor_description import installed_adaptors

if TYPE_CHECKING:
    from transporter.pipeline.adaptor_description import AdaptorInfo, Setting

_OURS: Final = "transporter_adaptors."
_INTRODUCTION: Final = """\
# Settings of adaptors

<!-- Written by `make docs` from the classes of the adaptors. Do not edit. -->

Every setting of every adaptor that is shipped. `transporter adaptors show NAME` prints the same,
also for an adaptor of your own. [The pipeline file](../configuration.md#keys) has the keys of
readers and routes that do not depend on the adaptor.
"""


def page() -> str:
    """Return the text of the page."""
    ours = [each for each in installed_adaptors() if each.reference.startswith(_OURS)]
    return _INTRODUCTION + "".join(_section(each) for each in ours)


def _section(adaptor: AdaptorInfo) -> str:
    folder = adaptor.reference.removeprefix(_OURS).partition(".")[0]
    link = f"../../adaptors/transporter_adaptors/{folder}/README.md"
    rows = "".join(_row(each) for each in adaptor.settings)
    table = f"\n| setting | type | default | |\n|---|---|---|---|\n{rows}" if rows else ""
    return (
        f"\n## Settings of the {adaptor.kind} `{adaptor.name}`\n\n"
        f"{adaptor.doc.partition(chr(10))[0]} [Its page]({link}) explains them.\n{table}"
    )


def _row(setting: Setting) -> str:
    default = "required" if setting.required else _default(setting.default or "")
    cells = (f"`{setting.name}`", setting.type, default, setting.doc)
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |\n"


def _default(text: str) -> str:
    return text if text == "unset" or text.startswith("(") else f"`{text}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
