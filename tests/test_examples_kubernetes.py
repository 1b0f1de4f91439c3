"""The manifests are what Kubernetes' own schema takes, and name each other as they mean to.

Their shape only: no cluster runs them here.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

yaml = pytest.importorskip("yaml", reason="reads the manifests; comes with transformers")

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"
# strict: a field that Kubernetes does not know is an error; the file says where it is from
SCHEMA = json.loads(Path(__file__).with_name("kubernetes_1_37.json").read_text(encoding="utf-8"))
KINDS = tuple(SCHEMA["kinds"])


def manifests() -> list[dict[str, Any]]:
    return [
        one
        for path in sorted(FOLDER.glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def of(kind: str) -> dict[str, Any]:
    (found,) = [one for one in manifests() if one["kind"] == kind]
    return found


def complaints(one: dict[str, Any]) -> list[str]:
    """What the official schema finds wrong with an object."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": SCHEMA["$defs"],
        "$ref": f"#/$defs/{SCHEMA['kinds'][one['kind']]}",
    }
    found = jsonschema_rs.validator_for(schema).iter_errors(one)
    return [f"{list(error.instance_path)}: {error.message}" for error in found]


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_own_schema_takes_each_object(kind: str) -> None:
    one = of(kind)
    assert one["apiVersion"] in ("v1", "apps/v1")
    assert one["metadata"]["name"]
    assert complaints(one) == []


def test_all_kinds_are_tried() -> None:
    assert sorted(one["kind"] for one in manifests()) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["unknown field", "wrong type", "no name of a port"])
def test_the_schema_sees_what_is_wrong(kind: str, change: str) -> None:
    one = deepcopy(of(kind))
    if change == "unknown field":
        one["speck"] = {}
    elif change == "wrong type":
        one["metadata"]["name"] = 7
    elif kind == "Service":
        del one["spec"]["ports"][0]["port"]
    elif kind == "StatefulSet":
        del one["spec"]["template"]["spec"]["containers"][0]["name"]
    else:
        one["stringData"]["keys"] = ["a list"]
    assert complaints(one)


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
