"""A Kafka broker with TLS, passwords and rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from services.kafka import Broker
from services.postgres import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

CERTIFICATES = Path(__file__).parents[2] / "unit" / "adaptors" / "http"
CA = CERTIFICATES / "localhost.cert.pem"
_SAFE = """
listeners={listeners},SAFE://127.0.0.1:{safe}
advertised.listeners=PLAINTEXT://{plain},SAFE://localhost:{safe}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SAFE:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.safe.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_ada="word-of-ada" user_eve="word-of-eve" user_ron="word-of-ron";
listener.name.safe.ssl.keystore.type=PEM
listener.name.safe.ssl.keystore.location={keys}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class SafeBroker(Broker):
    """A broker with a second listener, for TLS and passwords. The first one may do anything."""

    def __init__(self, java: Path, jars: list[Path], folder: Path) -> None:
        super().__init__(java, jars, folder)
        self.safe = f"localhost:{(port := free_port())}"
        keys = folder / "keys.pem"
        key, certificate = CERTIFICATES / "localhost.key.pem", CA
        keys.write_text(key.read_text() + certificate.read_text())
        path = folder / "server.properties"
        text = path.read_text()
        (listeners,) = re.findall(r"^listeners=(.*)$", text, re.MULTILINE)
        plain = self.bootstrap_servers
        path.write_text(text + _SAFE.format(listeners=listeners, safe=port, plain=plain, keys=keys))

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Grant *user* the right to do *operations* with a topic or group."""
        rights = [_right(AclBinding, user, kind, name, each) for each in operations]
        admin = self.admin()
        for future in admin.create_acls(rights).values():
            future.result()

    def disallow(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Take a right away that *user* has got before."""
        admin = self.admin()
        right = _right(AclBindingFilter, user, kind, name, operation)
        for future in admin.delete_acls([right]).values():
            assert future.result()


def _right(
    of: Callable[..., Any], user: str, kind: ResourceType, name: str, operation: AclOperation
) -> Any:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return of(kind, name, literal, f"User:{user}", "*", operation, allow)


def secured(broker: SafeBroker, user: str, **changed: Any) -> dict[str, Any]:
    """Return the connection settings of *user*."""
    return {
        "bootstrap_servers": broker.safe,
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "PLAIN",
        "username": user,
        "password": f"word-of-{user}",
        "ssl_ca": CA,
        **changed,
    }
