"""Keys, certificates and locks of kits that FLARE made."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from equipoise.experiment import ConfigurationError
from equipoise.site import SiteSettings
from equipoise.transports.nvflare import parties
from equipoise.transports.nvflare.certificates import read_certificate
from equipoise.transports.nvflare.kits import Kit, loosened, open_kit, point_stores
from equipoise.transports.nvflare.site_settings import FILE, site_settings
from tests.network.consortium import Consortium


def kits(network: Consortium) -> list[Kit]:
    return [network.server, network.lead, network.member, *network.sites.values()]


# Keys


def test_a_private_key_is_in_the_folder_of_its_party_and_nowhere_else(
    enrolled: Consortium,
) -> None:
    for kit in kits(enrolled):
        (key,) = kit.folder.glob("request/*.key")
        secret = key.read_bytes()
        holders = {
            path.relative_to(kit.folder.parent).parts[0]
            for path in kit.folder.parent.rglob("*")
            if path.is_file() and secret in path.read_bytes()
        }
        assert holders == {kit.folder.name}
        for archive in kit.folder.parent.rglob("*.zip"):
            with zipfile.ZipFile(archive) as opened:
                assert all(b"PRIVATE" not in opened.read(name) for name in opened.namelist())


def test_every_certificate_is_verified_by_the_root_of_the_network(enrolled: Consortium) -> None:
    path = enrolled.network.folder / "root" / "rootCA.pem"
    root = x509.load_pem_x509_certificate(path.read_bytes())
    assert root.subject == root.issuer, "no certificate could be verified otherwise"
    for kit in kits(enrolled):
        certificate = x509.load_pem_x509_certificate(kit.certificate.read_bytes())
        certificate.verify_directly_issued_by(root)
        facts = read_certificate(kit.certificate)
        assert (facts.name, facts.kind, facts.issuer) == (kit.name, kit.kind, "hearts")
        lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert lifetime.days in (400, 401)


def test_only_the_owner_reads_a_kit(enrolled: Consortium) -> None:
    for kit in kits(enrolled):
        for path in [kit.folder, *kit.folder.rglob("*")]:
            assert not path.stat().st_mode & 0o077, path


def test_approving_the_same_request_again_renews_the_certificate_and_keeps_all_else(
    copied: Consortium,
) -> None:
    kit = copied.sites["north"]
    settings = kit.folder / FILE
    settings.write_text(settings.read_text().replace("minimum_rows: 20", "minimum_rows: 50"))
    before = read_certificate(kit.certificate)
    key = (kit.startup / "startup" / "client.key").read_bytes()
    signed = parties.approve(copied.network, kit.folder / "request" / "north.request.zip", days=30)
    renewed = parties.install(kit.folder, signed, copied.network.root)
    after = read_certificate(renewed.certificate)
    assert after.fingerprint != before.fingerprint and after.ends != before.ends
    assert (kit.startup / "startup" / "client.key").read_bytes() == key
    assert "minimum_rows: 50" in settings.read_text() and loosened(renewed) == []
    assert [party.name for party in copied.network.parties].count("north") == 1


# Locks


def test_a_kit_is_locked_when_it_is_installed(enrolled: Consortium) -> None:
    assert [loosened(kit) for kit in kits(enrolled)] == [[]] * 6


def test_flare_brings_no_scripts_or_defaults_into_a_locked_kit(enrolled: Consortium) -> None:
    for kit in (enrolled.server, *enrolled.sites.values()):
        names = {path.name for path in kit.startup.rglob("*")}
        assert not {name for name in names if name.endswith((".sh", ".default", ".sample"))}


def test_nobody_may_ship_code_or_use_a_shell_and_a_lead_manages_its_own_runs_only(
    enrolled: Consortium,
) -> None:
    for kit in (enrolled.server, *enrolled.sites.values()):
        text = (kit.startup / "local" / "authorization.json").read_text()
        roles = json.loads(text)["permissions"]
        assert set(roles) == {"project_admin", "org_admin", "lead", "member"}
        for role, rights in roles.items():
            allowed = {name: value for name, value in rights.items() if value != "none"}
            expected = {"lead": ["submit_job", "manage_job", "download_job", "view"]}
            expected["member"] = ["view"]
            expected["org_admin"] = ["submit_job", "manage_job", "view"]  # the supervisor
            assert list(allowed) == expected.get(role, [])
        assert roles["lead"]["manage_job"] == roles["lead"]["download_job"] == "n:submitter"


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Kit], None]:
    """Return a function that changes one of FLARE's files of settings."""

    def write(kit: Kit) -> None:
        path = kit.startup / name
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return write


def removed(name: str) -> Callable[[Kit], None]:
    return lambda kit: (kit.startup / name).unlink()


def written(name: str) -> Callable[[Kit], None]:
    return lambda kit: (kit.startup / name).write_text("{}") and None


RESOURCES = "local/resources.json"
RIGHTS = "local/authorization.json"
STREAMER = {"id": "site_log_streamer", "path": "nvflare.app_common.logging.SiteLogStreamer"}
LOOSENED: dict[str, tuple[Callable[[Kit], None], str]] = {
    "a class": (
        changed(RESOURCES, lambda v: v["class_allow_list"].append("nvflare.app_common.x.Y")),
        "nvflare.app_common.x.Y",
    ),
    "all classes": (changed(RESOURCES, lambda v: v.update(class_allow_list=["*"])), "*"),
    "default classes": (changed(RESOURCES, lambda v: v.pop("class_allow_list")), "missing"),
    "classes not enforced": (
        changed(RESOURCES, lambda v: v.update(class_list_enforcement_mode="warn")),
        "class_list_enforcement_mode",
    ),
    "streamed logs": (
        changed(RESOURCES, lambda v: v.update(allow_log_streaming=True)),
        "allow_log_streaming",
    ),
    "a component": (
        changed(RESOURCES, lambda v: v["components"].append(STREAMER)),
        "site_log_streamer",
    ),
    "another launcher": (
        changed(RESOURCES, lambda v: v["components"][-1].update(path="other.Launcher")),
        "process_launcher.path",
    ),
    "shipped code": (
        changed(RIGHTS, lambda v: v["permissions"]["lead"].update(byoc="any")),
        "lead.byoc",
    ),
    "shell": (
        changed(RIGHTS, lambda v: v["permissions"]["lead"].update(shell_commands="o:site")),
        "lead.shell_commands",
    ),
    "clone": (
        changed(RIGHTS, lambda v: v["permissions"]["lead"].update(clone_job="n:submitter")),
        "lead.clone_job",
    ),
    "an administrator": (
        changed(RIGHTS, lambda v: v["permissions"].update(project_admin="any")),
        "project_admin",
    ),
    "no file of resources": (removed(RESOURCES), "missing"),
    "no file of rights": (removed(RIGHTS), "missing"),
    "no JSON": (written("local/resources.conf"), "resources.conf"),
    "code of the site": (lambda kit: (kit.startup / "local" / "custom").mkdir(), "custom"),
    "no mutual TLS": (
        changed("startup/fed_client.json", lambda v: v["client"].update(connection_security="tls")),
        "connection_security",
    ),
    "another server": (
        changed(
            "startup/fed_client.json",
            lambda v: v["servers"][0]["service"].update(target="evil.example.org:1"),
        ),
        "the server is not",
    ),
}


@pytest.mark.parametrize("case", LOOSENED)
def test_what_was_loosened_is_named(case: str, copied: Consortium) -> None:
    change, named = LOOSENED[case]
    kit = copied.sites["north"]
    change(kit)
    lines = loosened(kit)
    assert lines and any(named in line for line in lines), lines


def test_another_root_certificate_is_noticed(copied: Consortium, tmp_path: Path) -> None:
    other = parties.init_network(tmp_path / "other", "hearts", "localhost:9999")
    kit = copied.sites["north"]
    root = (other.folder / "root" / "rootCA.pem").read_bytes()
    (kit.startup / "startup" / "rootCA.pem").write_bytes(root)
    assert any(other.root in line for line in loosened(kit))


def test_settings_that_concern_the_party_alone_may_be_changed(copied: Consortium) -> None:
    kit = copied.sites["north"]
    change = changed(RESOURCES, lambda v: v["components"][0]["args"].update(num_of_gpus=2))
    change(kit)
    removed("local/log_config.json")(kit)
    assert loosened(kit) == []


def test_the_stores_of_a_server_are_in_its_folder_also_after_it_was_moved(
    copied: Consortium,
) -> None:
    moved = copied.server.folder.rename(copied.server.folder.with_name("moved"))
    server = open_kit(moved, "server")
    assert any("uri_root" in line for line in loosened(server))
    point_stores(server)
    assert loosened(server) == []


# Settings of a site


def test_the_settings_of_a_new_site_ask_for_twenty_rows_and_name_no_data(
    copied: Consortium,
) -> None:
    kit = copied.sites["north"]
    with pytest.raises(ConfigurationError, match="--data"):
        site_settings(kit, {})
    settings = site_settings(kit, {"EQUIPOISE_SITE_DATA": "/data/north.csv"})
    expected = SiteSettings(Path("/data/north.csv"), kit.folder / "states", minimum_rows=20)
    assert settings == expected


def test_every_setting_of_the_file_is_read(copied: Consortium) -> None:
    kit = copied.sites["north"]
    (kit.folder / "own.csv").touch()
    (kit.folder / FILE).write_text(
        "{data: own.csv, schema: /s.yaml, codes: c.yaml, states: own, methods: [fedavg], "
        "minimum_rows: 7, histograms: false, device: 'cuda:1', largest_message: 9, "
        "longest_step: 1.5}"
    )
    assert site_settings(kit, {}) == SiteSettings(
        data=kit.folder / "own.csv",
        folder=kit.folder / "own",
        schema=Path("/s.yaml"),
        methods=("fedavg",),
        device="cuda:1",
        codes=kit.folder / "c.yaml",
        limit=9,
        deadline=1.5,
        minimum_rows=7,
        histograms=False,
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("minimum_row: 5", "minimum_rows"),
        ("minimum_rows: 0", "minimum_rows"),
        ("minimum_rows: true", "minimum_rows"),
        ("histograms: perhaps", "histograms"),
        ("methods: fedavg", "methods"),
        ("device: tpu", "device"),
        ("longest_step: -1", "longest_step"),
        ("- a list", "keys"),
        ("data: {a: b}", "data"),
    ],
)
def test_wrong_settings_are_refused_by_name(text: str, named: str, copied: Consortium) -> None:
    kit = copied.sites["north"]
    path = kit.folder / FILE
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=named) as error:
        site_settings(kit, {"EQUIPOISE_SITE_DATA": "x"})
    assert str(path) in str(error.value)


def test_a_kit_is_opened_by_each_of_its_kinds(enrolled: Consortium) -> None:
    assert open_kit(enrolled.lead.folder, ("lead", "member")) == enrolled.lead
    assert open_kit(enrolled.member.folder, ("lead", "member")) == enrolled.member
