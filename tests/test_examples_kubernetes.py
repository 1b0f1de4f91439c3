"""The manifests are objects of the kinds they say, and name each other as they mean to.

Their shape only: no cluster runs them here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="reads the manifests; comes with transformers")

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"
REQUIRED = {
    "Secret": {"type", "stringData"},
    "StatefulSet": {"spec"},
    "Service": {"spec"},
}


def manifests() -> list[dict[str, Any]]:
    return [
        one
        for path in sorted(FOLDER.glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def of(kind: str) -> dict[str, Any]:
    (found,) = [one for one in manifests() if one["kind"] == kind]
    return found


def test_each_object_has_what_its_kind_needs() -> None:
    assert {one["kind"] for one in manifests()} == set(REQUIRED)
    for one in manifests():
        assert one["apiVersion"] in ("v1", "apps/v1")
        assert one["metadata"]["name"]
        assert REQUIRED[one["kind"]] <= set(one)


def test_selectors_volumes_and_probes_meet() -> None:
    spec = of("StatefulSet")["spec"]
    pod = spec["template"]
    labels = pod["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == of("Service")["spec"]["selector"]
    assert spec["serviceName"] == of("Service")["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    volumes = {one["name"] for one in pod["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    assert {one["name"] for one in container["volumeMounts"]} == volumes
    ports = {one["name"] for one in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    secrets = {v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v}
    assert secrets == {of("Secret")["metadata"]["name"]}


def test_the_command_is_one_that_the_command_line_takes() -> None:
    from typer.main import get_command

    from hypic_sdk.cli.app import app

    (container,) = of("StatefulSet")["spec"]["template"]["spec"]["containers"]
    program, name, *words = container["args"]
    assert program == "hypic"
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, list(words))
    assert context.params["workers"] == 4
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(gpus) == context.params["workers"]
