"""Keys and certificates of a network, made by FLARE's own commands, and read here.

Every party makes its private key itself. The consortium signs requests with the key of its root
certificate and never sees another private key.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.experiment import ConfigurationError
from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

if TYPE_CHECKING:
    from cryptography import x509

FLARE_VERSION = "2.9"  # minor versions of FLARE do not understand each other
DEADLINE = 60.0  # seconds of one of FLARE's commands, which take about two
ROOT_DAYS = 3650
DAYS = 400
_LARGEST_ARCHIVE = 2**20  # bytes; a request and a signed certificate have a few thousand
# Words of our kinds in FLARE's certificates.
CERTIFICATE_TYPES = {"server": "server", "site": "client", "lead": "lead", "member": "member"}
_KINDS = {word: kind for kind, word in CERTIFICATE_TYPES.items()}


def check_installed() -> None:
    """Check that FLARE is installed, in the version that all parties have.

    Raises:
        ConfigurationError: If it is not.
    """
    if find_spec("nvflare") is None:
        raise ConfigurationError(
            "a network needs NVIDIA FLARE, which is not installed; "
            "`pip install 'equipoise[network]'`"
        )
    installed = version("nvflare")
    if not installed.startswith(f"{FLARE_VERSION}."):
        raise ConfigurationError(
            f"a network needs NVIDIA FLARE {FLARE_VERSION}, and {installed} is installed; "
            "`pip install 'equipoise[network]'`"
        )


@dataclass(frozen=True)
class Certificate:
    """A certificate, or a request for one.

    Attributes:
        name: The name of the party.
        organisation: Its organisation.
        kind: "server", "site", "lead" or "member"; another word as it is in the certificate.
        fingerprint: SHA-256 of the certificate, or of the public key in a request.
        issuer: The name of the network that signed it; empty for a request.
        begins: The time from which it is valid; None for a request.
        ends: The time until which it is valid; None for a request.
    """

    name: str
    organisation: str
    kind: str
    fingerprint: str
    issuer: str = ""
    begins: datetime | None = None
    ends: datetime | None = None

    def days_left(self, now: datetime) -> float:
        """Return the days until the certificate ends; negative if it has."""
        assert self.ends is not None
        return (self.ends - now).total_seconds() / 86400


def read_certificate(path: Path) -> Certificate:
    """Return the certificate in a PEM file.

    Args:
        path: The path of the file.

    Raises:
        ConfigurationError: If there is none.
    """
    from cryptography import x509

    try:
        return _certificate(x509.load_pem_x509_certificate(_small_file(path)))
    except ValueError:
        raise ConfigurationError(
            f"{path}: expected a certificate in PEM format; install the kit again"
        ) from None


def _certificate(certificate: x509.Certificate) -> Certificate:
    return replace(
        _subject(certificate.subject, certificate_fingerprint(certificate)),
        issuer=_attribute(certificate.issuer, "2.5.4.3"),
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """Return SHA-256 of a certificate as FLARE and OpenSSL write it."""
    from cryptography.hazmat.primitives import hashes

    return written_fingerprint(certificate.fingerprint(hashes.SHA256()).hex())


def written_fingerprint(digest: str) -> str:
    """Return a digest in the form SHA256:AB:CD:...

    Args:
        digest: 64 hexadecimal digits, perhaps with colons and the word SHA256 before them.

    Raises:
        ConfigurationError: If it has another form.

    Example:
        >>> written_fingerprint("ab" * 32)[:18]
        'SHA256:AB:AB:AB:AB'
    """
    digits = re.sub(r"\Asha256( fingerprint)?[:=]", "", digest.strip(), flags=re.IGNORECASE)
    digits = digits.replace(":", "").upper()
    if not re.fullmatch("[0-9A-F]{64}", digits):
        raise ConfigurationError(
            "--fingerprint: expected SHA256: and 32 pairs of hexadecimal digits, as "
            f"`network init` and `network status` print them, got {quoted(digest)}"
        )
    pairs = [digits[start : start + 2] for start in range(0, len(digits), 2)]
    return "SHA256:" + ":".join(pairs)


def _subject(name: x509.Name, fingerprint: str) -> Certificate:
    """Return name, organisation and kind in the subject of a certificate or a request."""
    kind = _attribute(name, "1.2.840.113549.1.9.2")
    return Certificate(
        name=_attribute(name, "2.5.4.3"),
        organisation=_attribute(name, "2.5.4.10"),
        kind=_KINDS.get(kind, kind),
        fingerprint=fingerprint,
    )


def _attribute(name: x509.Name, dotted: str) -> str:
    from cryptography import x509

    attributes = name.get_attributes_for_oid(x509.ObjectIdentifier(dotted))
    return str(attributes[0].value) if attributes else ""


def _small_file(path: Path) -> bytes:
    check_regular(path)
    with path.open("rb") as opened:
        return opened.read(_LARGEST_ARCHIVE)


@dataclass(frozen=True)
class Request:
    """A request for a certificate, as the consortium receives it.

    Attributes:
        path: The archive.
        network: The name of the network that it is for.
        certificate: Name, organisation, kind and fingerprint of the public key.
        created: The time at which it was made, on the clock of the party.
    """

    path: Path
    network: str
    certificate: Certificate
    created: datetime | None


def read_request(path: Path) -> Request:
    """Return the request in an archive, which may come from a stranger.

    Args:
        path: The path of the archive.

    Raises:
        ConfigurationError: If it is no request, or not signed with the key that it names.
    """
    from cryptography import x509

    members = _archive(path, "a request for a certificate, NAME.request.zip")
    try:
        facts = json.loads(members["request.json"])
        network = str(facts["project"])
        (signed,) = [name for name in members if name.endswith(".csr")]
        request = x509.load_pem_x509_csr(members[signed])
        if not request.is_signature_valid:
            raise ValueError("its signature is not valid")
        certificate = _subject(request.subject, key_fingerprint(request))
        _check_announced(facts, certificate)
    except Exception as error:  # a file of a stranger may fail in many ways
        raise _not_a_request(path, str(error)) from None
    return Request(path, network, certificate, _time(facts.get("created_at")))


def _check_announced(facts: Mapping[str, Any], certificate: Certificate) -> None:
    """Refuse a request whose description differs from the names that would be signed."""
    for word, announced, own in (
        ("name", facts["name"], certificate.name),
        ("organisation", facts["org"], certificate.organisation),
        ("kind", _KINDS.get(facts["cert_type"], facts["cert_type"]), certificate.kind),
    ):
        if announced != own:
            raise ValueError(f"it announces the {word} {announced!r:.80} and has {own!r:.80}")


def key_fingerprint(request: x509.CertificateSigningRequest | x509.Certificate) -> str:
    """Return SHA-256 of the public key in a request or a certificate."""
    import hashlib

    from cryptography.hazmat.primitives import serialization

    key = request.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return written_fingerprint(hashlib.sha256(key).hexdigest())


@dataclass(frozen=True)
class Signed:
    """A signed certificate, as a party receives it from the consortium.

    Attributes:
        path: The archive.
        certificate: The certificate of the party.
        network: The name of the network.
        server: Host and port of the server.
        root: The fingerprint of the root certificate in the archive.
        approved: The time at which it was signed, on the clock of the consortium.
    """

    path: Path
    certificate: Certificate
    network: str
    server: tuple[str, int]
    root: str
    approved: datetime | None


def read_signed(path: Path) -> Signed:
    """Return the description of a signed certificate.

    Nothing of it is trusted before FLARE's `package` has compared the root's fingerprint.

    Args:
        path: The path of the archive.

    Raises:
        ConfigurationError: If it is none.
    """
    from cryptography import x509

    members = _archive(path, "a signed certificate, NAME.signed.zip")
    try:
        facts = json.loads(members["signed.json"])
        root = x509.load_pem_x509_certificate(members["rootCA.pem"])
        own = x509.load_pem_x509_certificate(members[facts["cert_file"]])
        return Signed(
            path=path,
            certificate=_certificate(own),
            network=str(facts["project"]),
            server=(str(facts["server"]["host"]), int(facts["server"]["fed_learn_port"])),
            root=certificate_fingerprint(root),
            approved=_time(facts.get("approved_at")),
        )
    except Exception as error:  # a file of a stranger may fail in many ways
        raise ConfigurationError(
            f"{path}: expected a signed certificate, as `equipoise network approve` writes it; "
            f"this file is damaged ({error}); ask the consortium for another copy"
        ) from None


def _archive(path: Path, expected: str) -> dict[str, bytes]:
    """Return the files of a small archive."""
    check_regular(path)
    if not path.is_file():
        raise ConfigurationError(f"{path}: expected {expected}; there is no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            size = sum(info.file_size for info in infos)
            if size > _LARGEST_ARCHIVE:
                raise ValueError(f"{size} bytes")
            return {info.filename: archive.read(info) for info in infos}
    except Exception:  # a file of a stranger may fail in many ways
        raise ConfigurationError(f"{path}: expected {expected}; this file is none") from None


def _not_a_request(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: expected a request for a certificate, as `equipoise site request` writes it; "
        f"this file is damaged ({reason}); ask the party for another copy"
    )


def _time(text: object) -> datetime | None:
    """Return a time that FLARE wrote; None if it is none."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


# FLARE's commands. Each also writes a record to the home folder, which therefore is one of ours.


def make_root(profile: Path, folder: Path, home: Path) -> str:
    """Make the root certificate of a network; return its fingerprint.

    The option --org is never used: FLARE would write an issuer that differs from the subject, and
    no certificate of the network could be verified.

    Args:
        profile: The file that describes the network.
        folder: The folder for the certificate and its key.
        home: FLARE's home folder.
    """
    words = ["cert", "init", "--profile", str(profile), "-o", str(folder)]
    facts = _flare([*words, "--valid-days", str(ROOT_DAYS)], home)
    return str(facts["rootca_fingerprint_sha256"])


def request(participant: Path, folder: Path, home: Path) -> Path:
    """Make a private key and a request for a certificate; return the archive to send.

    Args:
        participant: The file that describes the party.
        folder: The folder for key and request.
        home: FLARE's home folder.
    """
    facts = _flare(["cert", "request", "-p", str(participant), "--out", str(folder)], home)
    return Path(facts["request_zip"])


def approve(
    archive: Path, root: Path, profile: Path, days: int, signed: Path, home: Path
) -> dict[str, Any]:
    """Sign a request.

    Args:
        archive: The request.
        root: The folder of the root certificate.
        profile: The file that describes the network.
        days: The lifetime of the certificate.
        signed: The archive to write.
        home: FLARE's home folder.

    Returns:
        FLARE's description of the result.
    """
    words = ["cert", "approve", str(archive), "-c", str(root), "--profile", str(profile)]
    words += ["--valid-days", str(days), "--out", str(signed), "--force"]
    return _flare(words, home)


def package(signed: Path, request: Path, workspace: Path, fingerprint: str, home: Path) -> Path:
    """Make FLARE's kit of a signed certificate; return its folder.

    Args:
        signed: The signed certificate.
        request: The folder with the private key.
        workspace: A new folder for the kit.
        fingerprint: The fingerprint of the root certificate that is expected.
        home: FLARE's home folder.
    """
    words = ["package", str(signed), "--request-dir", str(request), "-w", str(workspace)]
    facts = _flare([*words, "--fingerprint", fingerprint], home)
    return Path(facts["output_dir"])


def _flare(words: list[str], home: Path) -> dict[str, Any]:
    """Run one of FLARE's commands and return the description of its result.

    Raises:
        ConfigurationError: If it fails, or takes too long.
    """
    check_installed()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "nvflare.cli", *words, "--format", "json"]
    environment = os.environ | {"HOME": str(home.absolute())}
    name = f"nvflare {' '.join(words[:2])}" if words[0] == "cert" else "nvflare package"
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"`{name}` did not end within {DEADLINE:.0f} s; try again when the machine is less busy"
        ) from None
    answer = _last_answer(done.stdout)
    if answer.get("status") == "ok":
        return dict(answer["data"])
    reason = answer.get("message") or _last_line(done.stderr) or f"it ended with {done.returncode}"
    hint = answer.get("hint") or ""
    raise ConfigurationError(" ".join(f"`{name}` failed: {reason} {hint}".split()))


def _last_answer(output: str) -> dict[str, Any]:
    """Return the last line of a command that is a JSON object; empty if none is."""
    for line in reversed(output.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return {}


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
