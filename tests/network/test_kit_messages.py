"""The exact wording of messages about kits, requests, certificates and data of a network."""

from __future__ import annotations

import json
import socket
import sys
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare import connection, kits, parties
from equipoise.transports.nvflare.certificates import read_request
from equipoise.transports.nvflare.kits import Kit
from tests.helpers.terminal import Terminal
from tests.network.consortium import Consortium, replace_certificate, signed_by

pytestmark = pytest.mark.thorough

FOREIGN = "SHA256:" + ":".join(["AB"] * 32)


def sentence(action: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as error:
        action()
    return str(error.value)


def repacked(archive: Path, member: str, **changes: Any) -> Path:
    """Change entries of a JSON file in an archive."""
    with zipfile.ZipFile(archive) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    facts = {**json.loads(members[member]), **changes}
    members[member] = json.dumps(facts).encode()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return archive


def request_of(kit: Kit) -> Path:
    (archive,) = (kit.folder / "request").glob("*.request.zip")
    return archive


def in_minutes(minutes: int) -> str:
    return f"{datetime.now(UTC) + timedelta(minutes=minutes, seconds=5):%Y-%m-%dT%H:%M:%SZ}"


# Kits


def test_the_kit_of_another_kind_is_refused(enrolled: Consortium, equipoise: Terminal) -> None:
    folder = enrolled.lead.folder
    answer = equipoise("site", "start", folder, "--data", "x.csv")
    assert answer.code == 2
    assert answer.err == (
        f"error: {folder}: expected the kit of a site, got that of a lead; name the folder of the "
        "site\n"
    )


def test_a_folder_without_a_kit_is_refused(tmp_path: Path) -> None:
    assert sentence(lambda: kits.open_kit(tmp_path, "site")) == (
        f"{tmp_path}: expected the folder of a party of a network, which has a kit.yaml; "
        "`equipoise site request` makes one"
    )


def test_a_kit_that_is_not_installed_yet_is_refused(tmp_path: Path) -> None:
    values = {"kind": "lead", "name": "a@b.org", "network": "hearts", "organisation": "uni"}
    kits.write_description(tmp_path, values)
    assert sentence(lambda: kits.open_kit(tmp_path, "lead")) == (
        f"{tmp_path}: the certificate has been requested, but is not installed yet; "
        "`equipoise member install SIGNED.zip --fingerprint F`"
    )


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kit.yaml"
    path.write_text("kind: king\n")
    assert sentence(lambda: kits.open_kit(tmp_path, "site")) == (
        f"{path}: expected kind, name, network and organisation of a party, got "
        "{'kind': 'king'}; restore the file from a copy"
    )


@pytest.mark.parametrize(
    ("name", "mode", "word"), [(".", 0o750, "entered"), ("request/north.key", 0o640, "read")]
)
def test_a_kit_that_others_can_read_is_refused(
    name: str, mode: int, word: str, copied: Consortium
) -> None:
    folder = copied.sites["north"].folder
    path = folder / name
    path.chmod(mode)
    assert sentence(lambda: kits.open_kit(folder, "site")) == (
        f"{path}: expected a kit that only its owner can read, got one that others have rights on "
        f"(mode {mode:o}), so its key may have been {word}; `chmod -R go-rwx {folder}`, and ask "
        "for a new certificate if others use this machine"
    )


RENEWAL = (
    "to renew it, send the request to the consortium again, which runs `equipoise network "
    "approve`, and install the answer"
)


def with_certificate(network: Consortium, begins: timedelta, ends: timedelta) -> Kit:
    kit = network.sites["north"]
    replace_certificate(kit, signed_by(network.network, kit, begins, ends))
    return kit


def test_a_certificate_that_has_ended_is_refused(copied: Consortium) -> None:
    kit = with_certificate(copied, timedelta(days=-9), timedelta(hours=-1))
    day = datetime.now(UTC) - timedelta(hours=1)
    assert sentence(lambda: kits.open_kit(kit.folder, "site")) == (
        f"{kit.folder}: the certificate of north ended on {day:%Y-%m-%d}; {RENEWAL}"
    )


def test_a_certificate_that_begins_later_shows_a_wrong_clock(copied: Consortium) -> None:
    kit = with_certificate(copied, timedelta(minutes=9, seconds=9), timedelta(days=9))
    assert sentence(lambda: kits.open_kit(kit.folder, "site")) == (
        f"{kit.folder}: the certificate of north begins in 9 minutes, so the clock of this "
        "machine or of the consortium is wrong; set both clocks, for example with NTP"
    )


@pytest.mark.parametrize(
    ("days", "left"), [(15, None), (13, "13 days"), (1, "1 day"), (0, "0 days")]
)
def test_the_last_two_weeks_of_a_certificate_bring_a_warning(
    days: int, left: str | None, copied: Consortium
) -> None:
    kit = with_certificate(copied, timedelta(days=-9), timedelta(days=days, hours=1))
    day = datetime.now(UTC) + timedelta(days=days, hours=1)
    expected = f"the certificate of north ends in {left}, on {day:%Y-%m-%d}; {RENEWAL}"
    assert kits.kit_warnings(kit) == ([] if left is None else [expected])


def test_the_certificate_of_another_party_is_refused(copied: Consortium) -> None:
    kit = copied.sites["north"]
    kit.certificate.write_bytes(copied.lead.certificate.read_bytes())
    assert sentence(lambda: kits.open_kit(kit.folder, "site")) == (
        f"{kit.folder}: expected the certificate of the site north, got that of the lead "
        "lead@example.org; install the kit again"
    )


def test_flare_that_is_missing_is_named(
    enrolled: Consortium, equipoise: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvflare", None)
    answer = equipoise("site", "start", enrolled.sites["north"].folder)
    assert answer.code == 2
    assert answer.err == (
        "error: a network needs NVIDIA FLARE, which is not installed; "
        "`pip install 'equipoise[network]'`\n"
    )


# Requests and their approval

NAMES = "expected 1 to 64 letters, digits, - and _"
INVALID: list[tuple[tuple[str, ...], str]] = [
    (("site", "request", "north 1"), f"NAME: {NAMES}, got 'north 1'"),
    (("site", "request", "../north"), f"NAME: {NAMES}, got '../north'"),
    (("site", "request", "n" * 65), f"NAME: {NAMES}, got '{'n' * 65}'"),
    (
        ("site", "request", "north", "--org", "north-hospital"),
        "--organisation: expected 1 to 64 letters, digits and _, no hyphen, got 'north-hospital'",
    ),
    (("site", "request", "north", "--network", "a b"), f"--network: {NAMES}, got 'a b'"),
    (
        ("member", "request", "ann"),
        "NAME: expected an e-mail address of at most 64 characters, got 'ann'",
    ),
    (
        ("server", "request", "fl.example.org"),
        "HOST:PORT: expected HOST:PORT with a port of 1 to 65535, got 'fl.example.org'",
    ),
    (
        ("server", "request", "a_b:8002"),
        "HOST:PORT: expected the name of a host, such as fl.example.org, got 'a_b'",
    ),
]


@pytest.mark.parametrize(("words", "expected"), INVALID)
def test_invalid_names_are_refused_and_leave_no_folder(
    words: tuple[str, ...],
    expected: str,
    equipoise: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = {"--network": "hearts", "--org": "uni"}
    more = [word for key, value in defaults.items() if key not in words for word in (key, value)]
    answer = equipoise(*words, *more)
    assert (answer.code, answer.err) == (2, f"error: {expected}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert sentence(lambda: parties.request(tmp_path, "site", "north", "uni", "hearts")) == (
        f"{tmp_path}: expected a new or empty folder, got one with files; choose another one"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_path_that_flare_would_split_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "my hospital"
    assert sentence(lambda: parties.request(folder, "site", "north", "uni", "hearts")) == (
        f"'{folder}': expected a path of letters, digits and ._-/@, since FLARE puts it into "
        "commands; choose another folder"
    )


def test_a_request_of_another_network_is_refused(copied: Consortium) -> None:
    archive = repacked(request_of(copied.sites["north"]), "request.json", project="lungs")
    assert sentence(lambda: parties.approve(copied.network, archive)) == (
        f"{archive}: expected a request for the network 'hearts', got one for 'lungs'; ask for a "
        "request with --network hearts"
    )


def test_two_sites_of_one_name_are_refused(copied: Consortium, tmp_path: Path) -> None:
    impostor = parties.request(tmp_path / "impostor", "site", "North", "elsewhere", "hearts")
    day = next(party.approved for party in copied.network.parties if party.name == "north")[:10]
    assert sentence(lambda: parties.approve(copied.network, impostor.archive)) == (
        f"the name 'North' belongs to a site of north that was approved on {day}; ask for another "
        "name, or add --replace if that party lost its key"
    )
    parties.approve(copied.network, impostor.archive, replace=True)
    assert "North" in [party.name for party in copied.network.parties]


def test_a_server_of_another_host_is_refused(copied: Consortium, tmp_path: Path) -> None:
    other = parties.request(tmp_path / "s", "server", "elsewhere", "uni", "hearts", 8002)
    host, port = copied.network.server
    assert sentence(lambda: parties.approve(copied.network, other.archive)) == (
        f"expected the server {host}, got a request of 'elsewhere'; ask for `equipoise server "
        f"request {host}:{port}`"
    )


def with_role(archive: Path, role: str, name: str = "eve@example.org") -> Path:
    """Write a request for a role or a name that our commands never ask for."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = {"2.5.4.3": name, "2.5.4.10": "uni", "1.2.840.113549.1.9.2": role}
    attributes = [
        x509.NameAttribute(x509.ObjectIdentifier(oid), text) for oid, text in names.items()
    ]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    signed = builder.sign(key, hashes.SHA256())
    facts = {"project": "hearts", "name": name, "org": "uni", "cert_type": role}
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("request.json", json.dumps(facts))
        opened.writestr("eve.csr", signed.public_bytes(serialization.Encoding.PEM))
    return archive


def test_no_administrator_is_approved(enrolled: Consortium, tmp_path: Path) -> None:
    archive = with_role(tmp_path / "eve.request.zip", "project_admin")
    assert sentence(lambda: parties.approve(enrolled.network, archive)) == (
        f"{archive}: expected a server, supervisor, site, lead or member, got 'project_admin'; no "
        "other role exists in a network"
    )


def test_no_other_supervisor_than_that_of_the_server_is_approved(
    enrolled: Consortium, tmp_path: Path
) -> None:
    archive = with_role(tmp_path / "eve.request.zip", "org_admin")
    assert sentence(lambda: parties.approve(enrolled.network, archive)) == (
        "expected the supervisor supervisor@hearts.internal of the server, got a request of "
        "'eve@example.org'; `equipoise server request` makes the right one"
    )


def test_a_name_that_leads_to_another_folder_is_not_approved(
    enrolled: Consortium, tmp_path: Path
) -> None:
    archive = with_role(tmp_path / "eve.request.zip", "client", "../../evil")
    assert sentence(lambda: parties.approve(enrolled.network, archive)) == (
        f"{archive}: its name: {NAMES}, got '../../evil'"
    )


def test_a_damaged_archive_is_refused_wherever_it_is_damaged(
    enrolled: Consortium, tmp_path: Path
) -> None:
    content = request_of(enrolled.sites["north"]).read_bytes()
    archive = tmp_path / "north.request.zip"
    refused = 0
    for position in range(0, len(content), 13):
        archive.write_bytes(
            content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :]
        )
        try:
            read_request(archive)
        except ConfigurationError:
            refused += 1
    assert refused > 50


def test_a_request_that_announces_another_role_is_refused(tmp_path: Path) -> None:
    archive = repacked(
        with_role(tmp_path / "eve.request.zip", "lead"), "request.json", cert_type="member"
    )
    assert sentence(lambda: read_request(archive)) == (
        f"{archive}: expected a request for a certificate, as `equipoise site request` writes it; "
        "this file is damaged (it announces the kind 'member' and has 'lead'); ask the party for "
        "another copy"
    )


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_no_request_is_refused(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "x.request.zip"
    archive.write_bytes(content)
    assert sentence(lambda: read_request(archive)).startswith(f"{archive}: expected a request")


def test_a_clock_that_is_ahead_is_noticed_at_the_approval(copied: Consortium) -> None:
    archive = request_of(copied.sites["north"])
    repacked(archive, "request.json", created_at=in_minutes(4))
    parties.check_request(copied.network, read_request(archive))
    repacked(archive, "request.json", created_at=in_minutes(12))
    assert sentence(lambda: parties.approve(copied.network, archive)) == (
        f"{archive}: the clock of the party is 12 minutes ahead of the clock of this machine; set "
        "both clocks, for example with NTP"
    )


# Installation


def signed_for(network: Consortium) -> Path:
    return network.network.folder / "signed" / "north.signed.zip"


def test_another_fingerprint_is_refused(copied: Consortium) -> None:
    folder = copied.sites["north"].folder
    signed = signed_for(copied)
    assert sentence(lambda: parties.install(folder, signed, FOREIGN)) == (
        f"{signed}: expected a root certificate with the fingerprint {FOREIGN}, got "
        f"{copied.network.root}; ask the consortium by telephone which one is right, and install "
        "nothing before"
    )


def test_a_text_that_is_no_fingerprint_is_refused(copied: Consortium) -> None:
    folder = copied.sites["north"].folder
    assert sentence(lambda: parties.install(folder, signed_for(copied), "SHA256:12")) == (
        "--fingerprint: expected SHA256: and 32 pairs of hexadecimal digits, as `network init` "
        "and `network status` print them, got 'SHA256:12'"
    )


def test_the_answer_to_another_request_is_refused(copied: Consortium) -> None:
    signed = signed_for(copied)
    folder = copied.sites["south"].folder
    assert sentence(lambda: parties.install(folder, signed, copied.network.root)) == (
        f"{signed}: expected the name 'south', which was requested, got 'north'; ask the "
        "consortium for the answer to this request"
    )


def test_the_certificate_of_another_kind_is_refused(
    copied: Consortium, equipoise: Terminal
) -> None:
    signed = signed_for(copied)
    answer = equipoise("member", "install", signed, "--fingerprint", copied.network.root)
    assert (answer.code, answer.err) == (
        2,
        f"error: {signed}: expected the certificate of a lead or member, got that of a site; "
        "`equipoise site install` installs it\n",
    )


def test_a_clock_that_is_behind_is_noticed_at_the_installation(copied: Consortium) -> None:
    signed = repacked(signed_for(copied), "signed.json", approved_at=in_minutes(7))
    folder = copied.sites["north"].folder
    assert sentence(lambda: parties.install(folder, signed, copied.network.root)) == (
        f"{signed}: the clock of the consortium is 7 minutes ahead of the clock of this machine; "
        "set both clocks, for example with NTP"
    )


# Connections


def test_a_port_in_use_is_named(enrolled: Consortium, equipoise: Terminal) -> None:
    host, port = enrolled.server.server
    with socket.create_server((host, port)):
        answer = equipoise("server", "start", enrolled.server.folder)
    assert (answer.code, answer.err) == (
        2,
        f"error: port {port} of {host} is in use by another process; end it, or make a network "
        "with another port\n",
    )


def test_a_server_that_does_not_run_is_named(enrolled: Consortium) -> None:
    kit = enrolled.sites["north"]
    host, port = kit.server
    assert sentence(lambda: connection.check_server(kit)) == (
        f"the server of hearts at {host}:{port} cannot be reached (Connection refused); start it "
        "with `equipoise server start`, or open the port to it in the firewall"
    )


def test_a_server_that_does_not_answer_is_named(enrolled: Consortium) -> None:
    kit = enrolled.sites["north"]
    host, port = kit.server
    with socket.create_server((host, port)):
        assert sentence(lambda: connection.check_server(kit, 0.2)) == (
            f"the server of hearts at {host}:{port} cannot be reached (no answer within 0.2 s); "
            "start it with `equipoise server start`, or open the port to it in the firewall"
        )


# Data


def test_data_that_break_the_schema_are_refused_before_anything_starts(
    enrolled: Consortium, equipoise: Terminal, tmp_path: Path
) -> None:
    data = tmp_path / "north.csv"
    data.write_text("age,sick\n" + "41,maybe\n" * 30)
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "{label: sick, classes: ['no', 'yes'], columns: [{name: age, kind: number, gaps: false}]}"
    )
    folder = enrolled.sites["north"].folder
    answer = equipoise("site", "start", folder, "--data", data, "--schema", schema)
    assert answer.code == 2 and "maybe" in answer.err and "sick" in answer.err
    assert not (folder / "running.json").exists()


def test_data_that_are_not_there_are_named(enrolled: Consortium) -> None:
    kit = enrolled.sites["north"]
    assert sentence(lambda: parties.check_data(kit, "nowhere.csv")) == (
        "nowhere.csv: expected the data of the site; there is no such file or folder"
    )
