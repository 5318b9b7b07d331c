"""The dashboard shows metrics that exist, the compose file mounts files that exist, and wheels are built for what they are tested with."""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.server.records import make_record, status

from quire.core.stats import EngineStats
from quire.server.metrics import Metrics

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "quire.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
METRIC = re.compile(r"quire:\w+")
FUNCTIONS = {"sum", "avg", "rate", "increase", "histogram_quantile", "by"}


def shown_samples() -> dict[str, set[str]]:
    """Sample name -> the labels it has, on the page of a server that answered a request."""
    metrics = Metrics("smollm2", get_status=lambda: status(EngineStats(num_running=1)))
    metrics.observe_request(make_record())
    metrics.observe_response("/v1/chat/completions", 200)
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def test_every_metric_of_every_panel_exists_with_its_labels() -> None:
    samples = shown_samples()
    query = DASHBOARD["templating"]["list"][0]["query"]["query"]
    for expression in (*EXPRESSIONS, query):
        names = METRIC.findall(expression)
        assert names, expression
        for name in names:
            assert name in samples, f"{name} in {expression}"
            assert "model_name" in samples[name]
        for labels in re.findall(r"by \(([\w, ]+)\)", expression):
            assert set(labels.split(", ")) <= samples[names[0]], expression


def test_expressions_are_well_formed() -> None:
    """Counters are read through rate or increase, gauges never; brackets close; nothing but known functions."""
    for expression in EXPRESSIONS:
        assert expression.count("(") == expression.count(")")
        assert set(re.findall(r"\b([a-z_]+) ?\(", expression)) <= FUNCTIONS, expression
        for name in METRIC.findall(expression):
            cumulative = name.endswith(("_total", "_bucket", "_sum", "_count"))
            through_rate = re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expression)
            assert bool(through_rate) == cumulative, expression


def test_panels_have_titles_and_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        area = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not area & cells, panel["title"]
        cells |= area
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_metric_that_users_ask_for_is_on_the_dashboard() -> None:
    shown = {name for expression in EXPRESSIONS for name in METRIC.findall(expression)}
    for part in ("time_to_first", "inter_token", "e2e_request", "kv_cache_usage", "prefix_cache_hits", "preemptions"):
        assert any(part in name for name in shown), part


def test_compose_mounts_exist_and_grafana_reads_the_dashboard_there() -> None:
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    mounts = {}
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            if source.startswith("./"):
                assert (DEPLOY / source).is_file(), source
                mounts[target] = source
            else:
                assert source in compose["volumes"]
    providers = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yml").read_text())["providers"]
    assert mounts[f"{providers[0]['options']['path']}/quire.json"] == "./grafana/quire.json"
    home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounts[home] == "./grafana/quire.json"


def test_the_data_source_is_the_one_the_panels_name_and_prometheus_listens_there() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text())["datasources"]
    uids = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]}
    assert uids == {source["uid"]}
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    assert (
        f"--web.listen-address={source['url'].removeprefix('http://')}" in compose["services"]["prometheus"]["command"]
    )
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8000"]


def test_wheels_are_built_when_what_they_hold_or_are_tested_with_changes() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    paths = workflow[True]["pull_request"]["paths"]  # "on" is a truth value in YAML 1.1
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    tested = [word for word in settings["test-command"].split() if word.startswith("tests/")]
    files = [
        path for name in ("csrc", "src/quire/kernels", *tested) for path in [ROOT / name, *(ROOT / name).rglob("*")]
    ]
    assert len(tested) == 2
    for file in (path.relative_to(ROOT) for path in files if path.is_file() and path.suffix != ".pyc"):
        assert any(fnmatch(str(file), pattern) for pattern in paths), file
