"""Medical codes and postal codes: code systems, codes that make a label, states."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

# Malignant neoplasm of the pancreas: FedAKD, Appendix H.
PANCREAS = {
    "ICD-10": ("C25", "C25.0", "C25.1", "C25.2", "C25.3", "C25.4", "C25.7", "C25.8", "C25.9"),
    "ICD-9": ("157", "157.0", "157.1", "157.2", "157.3", "157.4", "157.8", "157.9"),
}
# Spelling in files, in capitals and without signs -> our spelling.
SYSTEMS = {
    **dict.fromkeys(("ICD9", "ICD9CM", "ICD9PCS", "ICD9PROC"), "ICD-9"),
    **dict.fromkeys(("ICD10", "ICD10CM", "ICD10PCS"), "ICD-10"),
    **dict.fromkeys(("SNOMED", "SNOMEDCT"), "SNOMED CT"),
    **dict.fromkeys(("CPT", "CPT4"), "CPT"),
    **dict.fromkeys(("VITAL", "VITALS"), "vital"),
    "HCPCS": "HCPCS",
    "RXNORM": "RxNorm",
    "NDC": "NDC",
    "LOINC": "LOINC",
    "ATC": "ATC",
    "CVX": "CVX",
    "LOCAL": "local",
}
STATES = (
    "AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN",
    "KS", "KY", "LA", "MA", "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH",
    "NJ", "NM", "NV", "NY", "OH", "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA",
    "VT", "WA", "WI", "WV", "WY",
)  # fmt: skip
# The first three digits of US postal codes, by state. Other ranges belong to no state: the
# capital, islands, armed forces.
_PREFIXES = {
    "AK": "995-999", "AL": "350-369", "AR": "716-729", "AZ": "850-865", "CA": "900-961",
    "CO": "800-816", "CT": "060-069", "DE": "197-199", "FL": "320-339,341-349",
    "GA": "300-319,398-399", "HI": "967-968", "IA": "500-528", "ID": "832-838", "IL": "600-629",
    "IN": "460-479", "KS": "660-679", "KY": "400-427", "LA": "700-714", "MA": "010-027,055",
    "MD": "206-219", "ME": "039-049", "MI": "480-499", "MN": "550-567", "MO": "630-658",
    "MS": "386-397", "MT": "590-599", "NC": "270-289", "ND": "580-588", "NE": "680-693",
    "NH": "030-038", "NJ": "070-089", "NM": "870-884", "NV": "889-898", "NY": "005,100-149",
    "OH": "430-459", "OK": "730-732,734-749", "OR": "970-979", "PA": "150-196", "RI": "028-029",
    "SC": "290-299", "SD": "570-577", "TN": "370-385", "TX": "733,750-799,885", "UT": "840-847",
    "VA": "201,220-246", "VT": "050-054,056-059", "WA": "980-994", "WI": "530-549",
    "WV": "247-268", "WY": "820-831",
}  # fmt: skip


def _states_by_prefix() -> dict[str, str]:
    states = {}
    for state, ranges in _PREFIXES.items():
        for bounds in ranges.split(","):
            first, last = int(bounds[:3]), int(bounds[-3:])
            for prefix in range(first, last + 1):
                states[f"{prefix:03}"] = state
    return states


_STATE_OF_PREFIX = _states_by_prefix()


def state_of(postal_code: str) -> str | None:
    """Return the state of a US postal code; None if it is of no state, or no postal code.

    >>> state_of("94103"), state_of("02139-4307"), state_of("20500"), state_of("2139")
    ('CA', 'MA', None, 'MA')
    """
    digits = postal_code.strip().partition("-")[0]
    if len(digits) == 4:  # a spreadsheet took it for a number and dropped its first 0
        digits = digits.zfill(5)
    is_postal_code = digits.isascii() and digits.isdigit() and len(digits) in (3, 5)
    return _STATE_OF_PREFIX.get(digits[:3]) if is_postal_code else None


@lru_cache(maxsize=1024)
def system_of(name: str) -> str | None:
    """Return a code system in our spelling; "" if the name is empty, None if it is unknown.

    >>> system_of("icd10cm"), system_of("ICD-9-CM"), system_of(""), system_of("OPS")
    ('ICD-10', 'ICD-9', '', None)
    """
    plain = "".join(sign for sign in name.upper() if sign.isalnum())
    return SYSTEMS.get(plain) if plain else ""


def bare(code: str) -> str:
    """Return a code without differences of spelling: C25.0 and c250 are the same."""
    return code.strip().upper().replace(".", "")


@dataclass(frozen=True)
class LabelRule:
    """The codes that make a patient positive; events from the first of them on are removed.

    Attributes:
        codes: Pairs of a code system, or "" for any, and a code.
    """

    codes: tuple[tuple[str, str], ...]

    @cached_property
    def _pairs(self) -> frozenset[tuple[str, str]]:
        return frozenset((system, bare(code)) for system, code in self.codes)

    @cached_property
    def _codes_of_any_system(self) -> frozenset[str]:
        return frozenset(bare(code) for system, code in self.codes if not system)

    @cached_property
    def _all_codes(self) -> frozenset[str]:
        return frozenset(bare(code) for _, code in self.codes)

    def matches(self, system: str, code: str) -> bool:
        """Return True if an event makes its patient positive.

        Args:
            system: The code system of the event; "" if the file does not say, in which case the
                code alone decides.
            code: The code.
        """
        code = bare(code)
        if not system:
            return code in self._all_codes
        return (system, code) in self._pairs or code in self._codes_of_any_system


PANCREATIC_CANCER = LabelRule(
    tuple((system, code) for system, codes in PANCREAS.items() for code in codes)
)


def read_rule(file: Path | str) -> LabelRule:
    """Read a file of codes: one per line, or a CSV file with the columns code and system.

    Raises:
        ValueError: If the file is empty, or names an unknown code system.
    """
    check_regular(file)
    with open(file, encoding="utf-8-sig", newline="") as opened:
        lines = [row for row in csv.reader(opened) if any(cell.strip() for cell in row)]
    if not lines:
        raise ValueError(f"{file}: expected codes, one per line, got an empty file")
    header = [cell.strip().lower() for cell in lines[0]]
    if "code" not in header:
        return LabelRule(tuple(("", row[0].strip()) for row in lines))
    return LabelRule(tuple(_codes_with_system(file, header, lines[1:])))


def _codes_with_system(
    file: Path | str, header: list[str], rows: Iterable[list[str]]
) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(rows, 2):
        cells = dict(zip(header, row, strict=False))
        system = system_of(cells.get("system", ""))
        if system is None:
            known = ", ".join(sorted(set(SYSTEMS.values())))
            raise ValueError(
                f"{file}, row {number}: unknown code system {quoted(cells['system'])}; "
                f"known: {known}"
            )
        yield system, cells.get("code", "").strip()
