"""Write the Kubernetes objects that carry rules and dashboards: ``python -m deploy.generate``.

Rules live in deploy/prometheus and dashboards in dashboards/json; what a cluster gets are copies.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Final

REPOSITORY: Final = Path(__file__).parents[1]
RULES: Final = Path("deploy/prometheus")
DASHBOARDS: Final = Path("dashboards/json")
OPERATOR: Final = Path("deploy/kubernetes/operator")
CONFIG_MAPS: Final = Path("deploy/kubernetes/dashboards")

_SAYS_SO: Final = "# Made by `python -m deploy.generate` from {source}; edit that.\n"
_IS_RULES: Final = re.compile(r"^groups:", re.MULTILINE)
_DOCUMENT_START: Final = re.compile(r"\A---\n")


def generated(repository: Path = REPOSITORY) -> Mapping[Path, str]:
    """Return every generated file's text by its path in the repository.

    Args:
        repository: Where deploy/ and dashboards/ are read.
    """
    rules = [path for path in sorted((repository / RULES).glob("*.yml")) if _is_rules(path)]
    dashboards = sorted((repository / DASHBOARDS).glob("*.json"))
    config_maps = {CONFIG_MAPS / f"{path.stem}.yaml": _config_map(path) for path in dashboards}
    return {
        OPERATOR / "prometheusrule.yaml": "---\n".join(map(_prometheus_rule, rules)),
        CONFIG_MAPS / "kustomization.yaml": _kustomization([path.stem for path in dashboards]),
        **config_maps,
    }


def write(repository: Path = REPOSITORY) -> None:
    """Bring the generated files up to date; a dashboard that is gone takes its copy along."""
    files = generated(repository)
    for old in (repository / CONFIG_MAPS).glob("*.yaml"):
        if old.relative_to(repository) not in files:
            old.unlink()
    for path, text in files.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text, encoding="utf-8")


def _is_rules(path: Path) -> bool:
    return _IS_RULES.search(path.read_text(encoding="utf-8")) is not None


def _prometheus_rule(path: Path) -> str:
    # YAML nests by indentation, so that a file of rules, pushed to the right, is the spec: with its
    # comments and whatever it uses of the language.
    groups = _DOCUMENT_START.sub("", path.read_text(encoding="utf-8"))
    name = path.stem.replace(".", "-")
    return (
        f"{_SAYS_SO.format(source=RULES / path.name)}"
        "apiVersion: monitoring.coreos.com/v1\n"
        "kind: PrometheusRule\n"
        "metadata:\n"
        f"  name: {name}\n"
        "  namespace: kvheadroom\n"
        "  labels:\n"
        "    app.kubernetes.io/name: kvheadroom\n"
        "spec:\n"
        f"{indent(groups, '  ')}"
    )


def _config_map(path: Path) -> str:
    name = path.stem.removeprefix("kvheadroom-")
    return (
        f"{_SAYS_SO.format(source=DASHBOARDS / path.name)}"
        "apiVersion: v1\n"
        "kind: ConfigMap\n"
        "metadata:\n"
        f"  name: kvheadroom-dashboard-{name}\n"
        "  namespace: kvheadroom\n"
        "  labels:\n"
        "    app.kubernetes.io/name: kvheadroom\n"
        '    grafana_dashboard: "1"\n'
        "  annotations:\n"
        "    grafana_folder: kvheadroom\n"
        "data:\n"
        # Grafana's sidecar puts everybody's into one folder.
        f"  kvheadroom-{name}.json: |\n"
        f"{indent(path.read_text(encoding='utf-8'), '    ')}"
    )


def _kustomization(stems: list[str]) -> str:
    resources = "".join(f"  - {stem}.yaml\n" for stem in stems)
    return (
        f"{_SAYS_SO.format(source=DASHBOARDS)}"
        "# For a Grafana whose sidecar collects ConfigMaps by their label.\n"
        "apiVersion: kustomize.config.k8s.io/v1alpha1\n"
        "kind: Component\n"
        f"resources:{' []' if not stems else ''}\n"
        f"{resources}"
    )


if __name__ == "__main__":
    write()
