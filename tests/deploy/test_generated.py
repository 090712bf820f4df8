"""The generated objects carry their sources whole, and what is committed is what is generated."""

import json
from pathlib import Path

import pytest
import yaml
from tests.deploy.files import REPOSITORY, documents

from deploy import generate

# Kubernetes' limit for all of a ConfigMap.
MOST_BYTES = 1024 * 1024
RULES = """---
# Thresholds: see below.
groups:
  - name: kvheadroom
    rules:
      - record: job:kvheadroom_headroom_bytes:sum
        expr: |
          sum without (engine) (
            kvheadroom_headroom_bytes
          )

      # Why: "quoted: text" and
      #  deeper comments stay.
      - alert: KvHeadroomDown
        expr: up{job="kvheadroom"} == 0
        annotations:
          summary: >-
            A node's exporter
            does not answer.
"""
BOARD = '{\n  "title": "{{engine}}: 50 % \\u2013 \'x\'",\n\n  "uid": "kvheadroom-fleet"\n}\n'


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A repository with one file of rules, one that has none, and one dashboard."""
    for folder in (generate.RULES, generate.DASHBOARDS, generate.OPERATOR, generate.CONFIG_MAPS):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / generate.RULES / "kvheadroom.rules.yml").write_text(RULES)
    (tmp_path / generate.RULES / "scrape-example.yml").write_text("scrape_configs: []\n")
    (tmp_path / generate.DASHBOARDS / "fleet.json").write_text(BOARD)
    return tmp_path


def test_what_is_committed_is_what_is_generated() -> None:
    """`python -m deploy.generate` changes nothing, byte for byte, and leaves no old copy."""
    files = generate.generated()
    old = {path.relative_to(REPOSITORY) for path in (REPOSITORY / generate.CONFIG_MAPS).iterdir()}

    assert {path: (REPOSITORY / path).read_text() for path in files} == files
    assert old <= files.keys()


def test_every_rule_and_dashboard_is_carried() -> None:
    """Parsed, a cluster's copy equals its source."""
    files = generate.generated()
    sources = [
        documents(path.read_text())[0] for path in sorted((REPOSITORY / generate.RULES).iterdir())
    ]
    rules = documents(files[generate.OPERATOR / "prometheusrule.yaml"])

    assert [rule["spec"] for rule in rules] == [one for one in sources if "groups" in one]
    for board in (REPOSITORY / generate.DASHBOARDS).glob("*.json"):
        (config_map,) = documents(files[generate.CONFIG_MAPS / f"{board.stem}.yaml"])
        assert list(config_map["data"].values()) == [board.read_text()]
        assert len(board.read_bytes()) < MOST_BYTES


def test_rules_keep_their_meaning_and_their_comments(made: Path) -> None:
    """Block text, folded text and comments survive; a file without groups is no rules."""
    text = generate.generated(made)[generate.OPERATOR / "prometheusrule.yaml"]
    (rule,) = documents(text)

    assert rule["metadata"]["name"] == "kvheadroom-rules"
    assert rule["spec"] == yaml.safe_load(RULES)
    assert "#  deeper comments stay." in text


def test_a_dashboard_arrives_byte_for_byte(made: Path) -> None:
    """Under a name of its own and with the label that Grafana's sidecar looks for."""
    text = generate.generated(made)[generate.CONFIG_MAPS / "fleet.yaml"]
    (config_map,) = documents(text)

    assert config_map["data"] == {"kvheadroom-fleet.json": BOARD}
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config_map["metadata"]["name"] == "kvheadroom-dashboard-fleet"
    assert json.loads(config_map["data"]["kvheadroom-fleet.json"])["uid"] == "kvheadroom-fleet"


def test_a_dashboard_that_is_gone_takes_its_copy_along(made: Path) -> None:
    """Writing again removes what no source stands behind any more."""
    generate.write(made)
    copy = made / generate.CONFIG_MAPS / "fleet.yaml"
    assert copy.exists()

    (made / generate.DASHBOARDS / "fleet.json").unlink()
    generate.write(made)

    assert not copy.exists()
    assert "fleet" not in (copy.parent / "kustomization.yaml").read_text()
