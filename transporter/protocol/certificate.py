"""The certificate of the engine's listener: created at each start, verified by its digest.

No authority signs it, and none is needed: each job carries the digest.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_NAME: Final = "transporter"
_VALID: Final = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC))
"""The dates are not verified: a certificate lives as long as its engine, and clocks differ."""


def server_context() -> tuple[ssl.SSLContext, str]:
    """Return a server context with a new certificate, and the certificate's digest."""
    # Heavy, and needed on clusters only.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID[0])
        .not_valid_after(_VALID[1])
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # each connection is a new one
    # The module reads only files. This one is private to the user, and removed at once.
    with tempfile.NamedTemporaryFile(prefix="transporter-") as file:
        file.write(secret + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(Path(file.name))
    return context, digest(certificate.public_bytes(serialization.Encoding.DER))


def client_context() -> ssl.SSLContext:
    """Return a client context. The client compares the digest."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def digest(certificate: bytes) -> str:
    """Return the digest of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()
