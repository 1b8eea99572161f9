"""Errors of the operating system after which the same call may succeed, without an operator."""

from __future__ import annotations

import errno
from typing import Final

PASSING: Final = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.EIO,
        errno.EAGAIN,
        errno.ENOMEM,
        errno.ENOBUFS,
        # File systems on a network, or of a process, whose other end is away.
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
    }
)
"""No descriptor or memory is left (Invariant 14), or the file system does not answer."""
