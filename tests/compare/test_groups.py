"""Groups of clients, such as domains, as columns of comparisons and reports."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison import formats
from equipoise.comparison.table import Comparison, opened
from equipoise.report.page import page_of
from equipoise.runs import Run
from equipoise.storage.outdated import outdated


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    rng = np.random.default_rng(0)
    sites = {}
    for name in ("mnist", "usps"):
        y = np.arange(80) % 2
        sites[name] = (rng.normal(y[:, None], 1.0, (80, 3)).astype("float32"), y)
    base = {
        "data": {"partition": "domains", "clients": 4},
        "rounds": 1,
        "training": {"steps": 2},
        "model": {"name": "mlp", "hidden": [4]},
        "dataset": eq.from_sites(sites),
    }
    folder = tmp_path_factory.mktemp("groups")
    return eq.compare(base, ["fedavg"], measures=["change[usps]"], out=folder)


def test_clients_are_named_by_their_domain(result: Comparison) -> None:
    clients = ["mnist-0", "mnist-1", "usps-0", "usps-1"]
    assert sorted(result.entries[1].run.main.values) == clients


def test_each_domain_has_a_column_with_the_mean_of_its_clients(result: Comparison) -> None:
    values = result.entries[1].run.main.values
    row = result.row("domains", "fedavg", "average[usps]")
    assert row is not None
    assert row["value"] == pytest.approx((values["usps-0"] + values["usps-1"]) / 2)
    table = formats.markdown(result)
    assert "average, mnist" in table
    assert "change, usps" in table
    assert "change, mnist" not in table


def test_saved_comparisons_and_reports_have_these_columns(result: Comparison) -> None:
    again = opened([result.folder], details=True)
    assert formats.markdown(again) == formats.markdown(result)
    assert "mnist" in page_of(again)


def test_a_group_that_does_not_exist_is_refused(result: Comparison) -> None:
    base = {"data": {"name": "digits", "clients": 2, "samples": 100}, "rounds": 1}
    with pytest.raises(ValueError, match=r"change\[svhn\]"):
        eq.compare(base, ["fedavg"], measures=["change[svhn]"], out=result.folder / "other", jobs=1)
    saved = opened([result.folder / "other"])
    assert saved.optional == ()
    assert saved.row(saved.partitions[0], "fedavg", "average") is not None


def test_runs_of_domains_with_numbered_clients_are_told_apart(result: Comparison) -> None:
    run = Run(result.entries[1].run.folder)
    assert run.outdated is None
    reason = outdated(run.config, "0.2.0", run.store.meta("task"), ["0", "1", "2", "3"])
    assert reason is not None and "domains" in reason
