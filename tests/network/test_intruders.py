"""Nobody gets in: strangers, members, sites and servers that attack a real network."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

import grpc

import equipoise
from equipoise.experiment import ConfigurationError, experiment
from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.jobs import Desk, open_desk, write_job
from equipoise.transports.nvflare.kits import Kit
from equipoise.transports.nvflare.order import RunOrder
from equipoise.transports.nvflare.scientist import submit, watch_until_end
from equipoise.transports.nvflare.serving import Outcome
from tests.network import evil
from tests.network.consortium import build
from tests.network.hospitals import give_data, small_tables
from tests.network.running import SITES, RunningNetwork

pytestmark = pytest.mark.slow
SECRETS = {"cell": "patient4711", "column": "hiv_status4711", "exception": "ward4711"}
EVIL = "tests.network.evil.EvilController"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    """Three hospitals. North allows one method; south has secrets in its table."""
    folder = tmp_path_factory.mktemp("intruders")
    data = small_tables(folder / "tables", SITES)
    south = folder / "tables" / "south.csv"
    lines = south.read_text().splitlines()
    lines = [f"{lines[0]},{SECRETS['column']}", *(f"{line},x" for line in lines[1:])]
    lines[5] = f"{SECRETS['cell']},yes,x"
    south.write_text("\n".join(lines) + "\n")
    consortium = build(folder / "parties", SITES)
    give_data(consortium, folder / "tables")
    _set(consortium.sites["north"], "methods: null", "methods: [fedavg]")
    _set(consortium.sites["north"], "largest_message:", "largest_message: 1000000 #")
    # The operator of the server is the attacker: it may loosen its own kit.
    resources = consortium.server.startup / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content["class_allow_list"].append(EVIL)
    resources.write_text(json.dumps(content))
    with consortium.running() as processes, open_desk(consortium.lead) as desk:
        yield RunningNetwork(consortium, processes, desk, data)


def _set(kit: Kit, before: str, after: str) -> None:
    path = kit.folder / "local" / "equipoise.yaml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def connects(kit: Kit, root: Path, certificate: Path | None, key: Path | None) -> bool:
    """Return True if the server of a kit accepts a TLS connection with a certificate."""
    credentials = grpc.ssl_channel_credentials(
        root.read_bytes(),
        None if key is None else key.read_bytes(),
        None if certificate is None else certificate.read_bytes(),
    )
    host, port = kit.server
    with grpc.secure_channel(f"{host}:{port}", credentials) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=8)
        except grpc.FutureTimeoutError:
            return False
        return True


def keys_of(kit: Kit) -> tuple[Path, Path, Path]:
    startup = kit.startup / "startup"
    return startup / "rootCA.pem", startup / "client.crt", startup / "client.key"


def test_only_certificates_of_this_network_connect(network: RunningNetwork, tmp_path: Path) -> None:
    north = network.consortium.sites["north"]
    root, certificate, key = keys_of(north)
    assert connects(north, root, certificate, key)
    assert not connects(north, root, None, None)
    # another network of the same name, with its own root
    other = parties.init_network(
        tmp_path / "other", "hearts", f"{north.server[0]}:{north.server[1]}"
    )
    requested = parties.request(
        tmp_path / "north", "site", "north", "north", "hearts", north.server[1]
    )
    signed = parties.approve(other, requested.archive)
    foreign = parties.install(tmp_path / "north", signed, other.root)
    _, foreign_certificate, foreign_key = keys_of(foreign)
    assert not connects(north, root, foreign_certificate, foreign_key)


def test_a_member_submits_nothing(network: RunningNetwork, tmp_path: Path) -> None:
    with open_desk(network.consortium.member) as desk:
        assert desk.connected_sites() == list(SITES)
        order = RunOrder("a" * 32, evil.experiment_of({"data": network.data}), SITES)
        with pytest.raises(ConfigurationError, match="only a lead may"):
            desk.submit(order)


def test_a_site_is_no_scientist(network: RunningNetwork, tmp_path: Path) -> None:
    lead, north = network.consortium.lead, network.consortium.sites["north"]
    forged = replace(lead, folder=tmp_path / "forged")
    shutil.copytree(lead.folder, forged.folder)
    for name in ("client.crt", "client.key"):
        shutil.copy(north.startup / "startup" / name, forged.startup / "startup" / name)
    with pytest.raises(ConfigurationError), open_desk(forged) as desk:
        desk.connected_sites()


def submitted(desk: Desk, folder: Path) -> str:
    """Submit a definition of a job; return FLARE's state at its end."""
    job = str(desk.session.submit_job(str(folder)))
    desk.wait_until_end(job)
    return desk.status(job)


def job_of(network: RunningNetwork, folder: Path, run: str) -> Path:
    order = RunOrder(run, evil.experiment_of({"data": network.data, "rounds": 2}), SITES)
    write_job(folder / "job", order)
    return folder / "job"


def test_other_classes_and_shipped_code_do_not_run(network: RunningNetwork, tmp_path: Path) -> None:
    executor = job_of(network, tmp_path / "executor", "b" * 32)
    config = executor / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    content["executors"][0]["executor"]["path"] = (
        "nvflare.app_common.executors.statistics.statistics_executor.StatisticsExecutor"
    )
    config.write_text(json.dumps(content))
    assert submitted(network.desk, executor) != "FINISHED:COMPLETED"

    shipped = job_of(network, tmp_path / "shipped", "c" * 32)
    proof = tmp_path / "proof"
    custom = shipped / "app" / "custom"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text(f"open({str(proof)!r}, 'w')")
    with contextlib.suppress(Exception):  # refused at once, or when it is scheduled
        assert submitted(network.desk, shipped) != "FINISHED:COMPLETED"
    assert not proof.exists()
    assert not (network.consortium.server.folder / "runs" / ("c" * 32)).exists()


def outcome_of(
    network: RunningNetwork, folder: Path, method: Any, sites: Sequence[str] = SITES
) -> Outcome:
    config = experiment({"data": network.data, "method": method, "rounds": 1})
    run = submit(network.desk, config, folder, sites)
    return watch_until_end(network.desk, run, lambda progress: None)


def test_a_method_that_a_site_does_not_allow_is_refused(
    network: RunningNetwork, tmp_path: Path
) -> None:
    # Without the site whose data cannot be prepared, which would refuse, too.
    sites = [site for site in SITES if site != "south"]
    outcome = outcome_of(network, tmp_path / "run", "scaffold", sites)
    assert outcome.status == "refused"
    assert "'north' refused the run" in outcome.text and "method" in outcome.text


def test_secrets_of_a_site_are_in_no_file_elsewhere(
    network: RunningNetwork, tmp_path: Path
) -> None:
    outcome = outcome_of(network, tmp_path / "run", "fedavg")
    assert outcome.status == "refused" and "'south'" in outcome.text  # the cell is no number
    root = network.consortium.server.folder.parent
    elsewhere = [path for path in root.rglob("*") if path.is_file()]
    elsewhere += [path for path in tmp_path.rglob("*") if path.is_file()]
    south = network.consortium.sites["south"].folder
    logged = b"".join(path.read_bytes() for path in (south / "states").glob("*.log"))
    assert SECRETS["cell"].encode() in logged  # the site itself learns what is wrong
    for path in elsewhere:
        if south in path.parents:
            continue
        content = path.read_bytes()
        for kind, secret in SECRETS.items():
            assert secret.encode() not in content, f"{kind} in {path}"


def test_a_site_refuses_what_no_server_of_ours_sends(
    network: RunningNetwork, tmp_path: Path
) -> None:
    job = job_of(network, tmp_path, "d" * 32)
    config = job / "app" / "config" / "config_fed_server.json"
    content = json.loads(config.read_text())
    content["workflows"][0]["path"] = EVIL
    config.write_text(json.dumps(content))
    number = str(network.desk.session.submit_job(str(job)))
    network.desk.wait_until_end(number)
    network.desk.session.download_job_result(number, str(tmp_path / "result"))
    (found,) = (tmp_path / "result").rglob(evil.RESULTS)
    answers = json.loads(found.read_text())
    codes = {name: answer["code"] for name, answer in answers.items()}
    assert codes == {
        "random": "refused:message",
        "empty": "refused:message",
        "oversized": "refused:size",
        "other site": "refused:name",
        "closed": "refused:closed",
        "no ticket": "refused:opening",
        "schema": "refused:experiment",
        "foreign code": "refused:method",
        "describe": "",
        "open": "",
        "init": "refused:step",
        "private": "refused:step",
        "evaluation": "refused:message",
        "client": "refused:name",
        "path": "refused:message",
        "other ticket": "refused:opening",
        "close": "",
        "replayed": "refused:opening",
    }
    refused = [answer["size"] for name, answer in answers.items() if codes[name]]
    assert max(refused) < 256  # a code, and no text


def test_a_reply_under_the_name_of_another_site_does_not_count(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker is a site with a changed installation of Equipoise."""
    folder = tmp_path_factory.mktemp("liar")
    data = small_tables(folder / "tables", SITES)
    consortium = build(folder / "parties", SITES)
    give_data(consortium, folder / "tables")
    changed = folder / "changed"
    package = Path(equipoise.__file__).parent
    shutil.copytree(package, changed / "equipoise", ignore=shutil.ignore_patterns("*.pyc"))
    runtime = changed / "equipoise" / "site" / "runtime.py"
    text = runtime.read_text()
    true = '{"reply": wire.to_wire(reply), "up": reply.up}'
    assert true in text
    lie = '{"reply": {**wire.to_wire(reply), "client": "north"}, "up": reply.up}'
    runtime.write_text(text.replace(true, lie))
    others = {**consortium.sites}
    liar = others.pop("west")
    with replace(consortium, sites=others).running():
        monkeypatch.setattr(sys, "path", [str(changed), *sys.path])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        with replace(consortium, sites={"west": liar}).running_sites():
            monkeypatch.undo()
            with open_desk(consortium.lead) as desk:
                wanted = experiment({"data": data, "method": "fedavg", "rounds": 1})
                run = submit(desk, wanted, folder / "run")
                outcome = watch_until_end(desk, run, lambda progress: None)
    assert outcome.status == "finished"
    rejected = equipoise.runs.Run(folder / "run").rejected()
    assert {entry["client"] for entry in rejected} == {"west"}
    assert "came from 'north'" in rejected[0]["reason"]
