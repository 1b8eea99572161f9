"""The files of ``deploy``: what their linters find, and what fits together in them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from root_tools import cannot_run

from transporter.cli.service_manager import STOP_GRACE
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from transporter.pipeline.config import Pipeline

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
VOLUME = Path("/var/lib/transporter")
PLANTED = [
    ("Dockerfile", "USER 10001", "USER root", "DL3002"),
    ("Dockerfile", "WORKDIR /src", "WORKDIR src", "DL3000"),
    ("Dockerfile", "STOPSIGNAL", "STOPSIGNL", "unexpected 'S'"),
    ("compose.yaml", "stop_grace_period", "stop_grace", "stop_grace"),
    ("compose.yaml", "read_only: true", "read_only: [true]", "read_only"),
    ("transporter@.service", "WatchdogSec", "WatchdogSecs", "Unknown key"),
    ("transporter@.service", "Type=notify", "Type=notified", "Failed to parse service type"),
    ("kubernetes/statefulset.yaml", "readOnlyRootFilesystem", "readOnlyRoot", "readOnlyRoot"),
    ("kubernetes/statefulset.yaml", "replicas: 1", "replicas: one", "one"),
    ("kubernetes/networkpolicy.yaml", "policyTypes", "policyType", "policyType"),
    ("kubernetes/service.yaml", "clusterIP", "clusterIp", "clusterIp"),
    ("kubernetes/configmap.yaml", "data:", "date:", "date"),
]


@pytest.fixture
def checks(script: Callable[[str], ModuleType]) -> ModuleType:
    """Return the script of ``make check``."""
    return script("check_deploy")


def findings(checks: ModuleType, deploy: Path) -> dict[str, str | None]:
    """Return the findings in *deploy* by file."""
    return {
        str(each.file.relative_to(deploy)): each.problem for each in checks.check_folder(deploy)
    }


def need_systemd() -> None:
    """Skip visibly where units cannot be verified."""
    if shutil.which("systemd-analyze") is None:
        cannot_run("units are verified by systemd-analyze")


def test_every_file_passes_its_linter(checks: ModuleType) -> None:
    """No linter finds a problem, and each artefact has one."""
    need_systemd()
    found = findings(checks, DEPLOY)
    assert not any(found.values()), found
    assert set(found) == {
        "Dockerfile",
        "compose.yaml",
        "transporter@.service",
        *(f"kubernetes/{each.name}" for each in (DEPLOY / "kubernetes").iterdir()),
    }


@pytest.mark.parametrize(("name", "good", "bad", "found"), PLANTED)
def test_a_planted_mistake_is_found(
    checks: ModuleType, tmp_path: Path, name: str, good: str, bad: str, found: str
) -> None:
    """The linter of each file names a mistake in it."""
    if name.endswith(".service"):
        need_systemd()
    text = (DEPLOY / name).read_text()
    assert good in text
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.replace(good, bad, 1))
    assert found in checks.check_of(file)(file).problem


def test_a_missing_linter_is_shown_and_fails_in_ci(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A skipped check is visible, and no success where all of them are required."""
    shutil.copy(DEPLOY / "transporter@.service", tmp_path)
    monkeypatch.setattr(checks, "DEPLOY", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert checks.main() == 0
    assert "transporter@.service: NOT CHECKED" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    assert checks.main() == 1


def documents(name: str) -> Any:
    """Return the content of a YAML file of ``deploy``."""
    return yaml.safe_load((DEPLOY / name).read_text())


def pod() -> Any:
    """Return the specification of the pod."""
    return documents("kubernetes/statefulset.yaml")["spec"]["template"]["spec"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Create the file of a secret."""
    (tmp_path / "secret").write_text("host=db dbname=x")
    return tmp_path / "secret"


def pipeline_of(text: str, secret: Path, folder: Path) -> Pipeline:
    """Load a pipeline file of a container, with its secrets from *secret*."""
    (folder / "pipeline.yaml").write_text(re.sub(r"\$\{file:[^}]+\}", f"${{file:{secret}}}", text))
    return load(folder / "pipeline.yaml", {})


def test_the_pod_gives_its_pipeline_what_it_needs(secret: Path, tmp_path: Path) -> None:
    """The log is on the volume, the port is the probed one, and a drain has its time."""
    text = documents("kubernetes/configmap.yaml")["data"]["pipeline.yaml"]
    pipeline, spec = pipeline_of(text, secret, tmp_path), pod()
    (container,) = spec["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert VOLUME in pipeline.log.dir.parents
    assert mounts[str(VOLUME)]["name"] == "data"
    assert all(
        mounts[each]["readOnly"] for each in ("/etc/transporter", "/run/secrets/transporter")
    )
    (port,) = container["ports"]
    assert pipeline.observe.listen is not None
    assert port["containerPort"] == pipeline.observe.listen.port
    assert spec["terminationGracePeriodSeconds"] >= pipeline.shutdown_timeout + STOP_GRACE
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
    storage = documents("kubernetes/statefulset.yaml")["spec"]["volumeClaimTemplates"][0]
    gigabytes = int(storage["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert pipeline.log.max_bytes is not None
    assert pipeline.log.max_bytes < gigabytes << 30


def test_the_pod_is_not_privileged() -> None:
    """Neither root nor a writable root, nor a right that it does not use."""
    spec = pod()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not spec["automountServiceAccountToken"]


def test_compose_gives_its_pipeline_what_it_needs(secret: Path, tmp_path: Path) -> None:
    """The log is on a volume, ports are on loopback, and every mounted file is there."""
    compose = documents("compose.yaml")
    pipeline = pipeline_of((DEPLOY / "compose/pipeline.yaml").read_text(), secret, tmp_path)
    engine = compose["services"]["engine"]
    assert VOLUME in pipeline.log.dir.parents
    assert f"transporter:{VOLUME}" in engine["volumes"]
    grace = int(engine["stop_grace_period"].removesuffix("s"))
    assert grace >= pipeline.shutdown_timeout + STOP_GRACE
    for service in compose["services"].values():
        assert all(each.startswith("127.0.0.1:") for each in service.get("ports", ()))
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert (
                (DEPLOY / source).exists()
                if source.startswith(".")
                else source in compose["volumes"]
            )
    scraped = documents("compose/prometheus.yaml")["scrape_configs"][0]["static_configs"][0]
    assert pipeline.observe.listen is not None
    assert scraped["targets"] == [f"engine:{pipeline.observe.listen.port}"]


def test_a_stop_of_the_unit_has_its_time() -> None:
    """The unit's limit covers a drain of the default length, and the watchdog several looks."""
    text = (DEPLOY / "transporter@.service").read_text()
    limits = dict(re.findall(r"^(\w+Sec)=(\d+)$", text, re.MULTILINE))
    assert int(limits["TimeoutStopSec"]) >= 30 + STOP_GRACE
    assert int(limits["WatchdogSec"]) >= 30
    assert "MemoryDenyWriteExecute=" not in text
