"""Tools for authors of adaptors: doubles, hostile messages and contracts.

The contracts are in ``transporter.testing.contracts``. Only they need pytest.
"""

import sys

if "pytest" in sys.modules:
    # Otherwise a failed assertion of a contract shows no values.
    sys.modules["pytest"].register_assert_rewrite("transporter.testing.contracts")

from transporter.testing.acks import RecordingAck
from transporter.testing.doubles import FixedResume, ListReader, ListWriter
from transporter.testing.hostile import entries, hostile_messages
from transporter.testing.proxy import FaultyProxy

__all__ = [
    "FaultyProxy",
    "FixedResume",
    "ListReader",
    "ListWriter",
    "RecordingAck",
    "entries",
    "hostile_messages",
]
