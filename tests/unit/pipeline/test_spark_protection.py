"""A cluster whose connections are not protected is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline

if TYPE_CHECKING:
    from pathlib import Path

STANDALONE = "spark://10.0.0.1:7077"
SECRET = {"spark.authenticate.secret": "${SPARK_SECRET}"}


def loaded(folder: Path, **spark: Any) -> None:
    """Load a pipeline file with these settings of Spark's."""
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in"}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "out"}}],
        "spark": spark,
    }
    (folder / "p.yaml").write_text(json.dumps(document, indent=1))
    load(folder / "p.yaml", {"SPARK_SECRET": "tulip-17"})


@pytest.mark.parametrize(
    "spark",
    [
        {},
        {"master": "local[3]"},
        {"master": STANDALONE, "config": SECRET},
        {"master": STANDALONE, "insecure": True},
        {"master": STANDALONE, "insecure": True, "config": {"spark.authenticate": False}},
        {"master": "yarn"},
        {"master": "k8s://https://10.0.0.1"},
        {
            "master": STANDALONE,
            "config": {
                **SECRET,
                "spark.network.crypto.enabled": False,
                "spark.ssl.rpc.enabled": True,
            },
        },
    ],
)
def test_protected_or_declared_insecure(spark: dict[str, Any], tmp_path: Path) -> None:
    """YARN and Kubernetes give each application a secret, and other clusters share one."""
    loaded(tmp_path, **spark)


@pytest.mark.parametrize(
    ("spark", "why"),
    [
        (
            {"master": STANDALONE},
            "needs a secret that the hosts of spark://10.0.0.1:7077 and the engine share",
        ),
        ({"master": "yarnish://x"}, "set spark.authenticate.secret in spark.config"),
        ({"master": "yarn", "config": {"spark.authenticate": False}}, "has spark.authenticate off"),
        (
            {"master": STANDALONE, "config": {**SECRET, "spark.network.crypto.enabled": "no"}},
            "has spark.network.crypto.enabled off",
        ),
        (
            {"master": "yarn", "config": {"spark.network.crypto.saslFallback": True}},
            "has spark.network.crypto.saslFallback on",
        ),
        ({"master": "local", "insecure": True}, "is for a cluster"),
    ],
)
def test_what_is_not_protected_is_refused(spark: dict[str, Any], why: str, tmp_path: Path) -> None:
    """The error names the setting and the remedy."""
    with pytest.raises(InvalidPipeline, match=why) as refused:
        loaded(tmp_path, **spark)
    assert "tulip" not in str(refused.value)
