"""Medical codes and postal codes: which systems are known, which codes make a label, which state a postal code is of."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from equipoise.validation.names import quoted
from equipoise.validation.regular_files import check_regular

# Malignant neoplasm of the pancreas: FedAKD, Appendix H.
PANCREAS = {
    "ICD-10": ("C25", "C25.0", "C25.1", "C25.2", "C25.3", "C25.4", "C25.7", "C25.8", "C25.9"),
    "ICD-9": ("157", "157.0", "157.1", "157.2", "157.3", "157.4", "157.8", "157.9"),
}
SYSTEMS = {  # as files spell them, in capitals and without signs -> as we do
    **dict.fromkeys(("ICD9", "ICD9CM", "ICD9PCS", "ICD9PROC"), "ICD-9"),
    **dict.fromkeys(("ICD10", "ICD10CM", "ICD10PCS"), "ICD-10"),
    **dict.fromkeys(("SNOMED", "SNOMEDCT"), "SNOMED CT"),
    "CPT": "CPT", "CPT4": "CPT", "HCPCS": "HCPCS", "RXNORM": "RxNorm", "NDC": "NDC", "LOINC": "LOINC", "ATC": "ATC", "CVX": "CVX", "VITAL": "vital",
    "VITALS": "vital", "LOCAL": "local",
}  # fmt: skip
STATES = (
    "AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN", "KS", "KY", "LA", "MA", "MD", "ME", "MI", "MN", "MO",
    "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM", "NV", "NY", "OH", "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI",
    "WV", "WY",
)  # fmt: skip
# The first three digits of US postal codes, by state. Other ranges are of no state: the capital, islands, armed forces.
_PREFIXES = [
    "AK",
    "995-999",
    "AL",
    "350-369",
    "AR",
    "716-729",
    "AZ",
    "850-865",
    "CA",
    "900-961",
    "CO",
    "800-816",
    "CT",
    "060-069",
    "DE",
    "197-199",
    "FL",
    "320-339,341-349",
    "GA",
    "300-319,398-399",
    "HI",
    "967-968",
    "IA",
    "500-528",
    "ID",
    "832-838",
    "IL",
    "600-629",
    "IN",
    "460-479",
    "KS",
    "660-679",
    "KY",
    "400-427",
    "LA",
    "700-714",
    "MA",
    "010-027,055",
    "MD",
    "206-219",
    "ME",
    "039-049",
    "MI",
    "480-499",
    "MN",
    "550-567",
    "MO",
    "630-658",
    "MS",
    "386-397",
    "MT",
    "590-599",
    "NC",
    "270-289",
    "ND",
    "580-588",
    "NE",
    "680-693",
    "NH",
    "030-038",
    "NJ",
    "070-089",
    "NM",
    "870-884",
    "NV",
    "889-898",
    "NY",
    "005,100-149",
    "OH",
    "430-459",
    "OK",
    "730-732,734-749",
    "OR",
    "970-979",
    "PA",
    "150-196",
    "RI",
    "028-029",
    "SC",
    "290-299",
    "SD",
    "570-577",
    "TN",
    "370-385",
    "TX",
    "733,750-799,885",
    "UT",
    "840-847",
    "VA",
    "201,220-246",
    "VT",
    "050-054,056-059",
    "WA",
    "980-994",
    "WI",
    "530-549",
    "WV",
    "247-268",
    "WY",
    "820-831",
]
_STATE_OF = {
    f"{prefix:03}": state
    for state, ranges in zip(_PREFIXES[::2], _PREFIXES[1::2], strict=True)
    for one in ranges.split(",")
    for prefix in range(int(one[:3]), int(one[-3:]) + 1)
}


def state_of(postal_code: str) -> str | None:
    """The state that a US postal code lies in; None: in no state, or no postal code.

    >>> state_of("94103"), state_of("02139-4307"), state_of("20500"), state_of("2139")
    ('CA', 'MA', None, 'MA')
    """
    digits = postal_code.strip().partition("-")[0]
    # a table program took it for a number and dropped its first 0
    digits = digits.zfill(5) if len(digits) == 4 else digits
    return (
        _STATE_OF.get(digits[:3])
        if digits.isascii() and digits.isdigit() and len(digits) in (3, 5)
        else None
    )


def system_of(name: str) -> str | None:
    """A code system as we spell it; "" stays "": not told. None: unknown.

    >>> system_of("icd10cm"), system_of("ICD-9-CM"), system_of(""), system_of("OPS")
    ('ICD-10', 'ICD-9', '', None)
    """
    plain = "".join(sign for sign in name.upper() if sign.isalnum())
    return SYSTEMS.get(plain) if plain else ""


def bare(code: str) -> str:
    """A code without what differs between files: C25.0 and c250 are one."""
    return code.strip().upper().replace(".", "")


@dataclass(frozen=True)
class LabelRule:
    """A patient whose history holds one of these codes is a positive; events from the first of them on are removed."""

    codes: tuple[tuple[str, str], ...]  # (system or "", code)

    @cached_property
    def _known(self) -> frozenset[tuple[str, str]]:
        both = {(system, bare(code)) for system, code in self.codes}
        # an event that tells no system is judged by its code alone
        return frozenset(both | {("", code) for _, code in both})

    def matches(self, system: str, code: str) -> bool:
        return (system, bare(code)) in self._known or (
            bool(system) and ("", bare(code)) in self._any
        )

    @cached_property
    def _any(self) -> frozenset[tuple[str, str]]:
        return frozenset(("", bare(code)) for system, code in self.codes if not system)


PANCREATIC_CANCER = LabelRule(
    tuple((system, code) for system, codes in PANCREAS.items() for code in codes)
)


def read_rule(file: Path | str) -> LabelRule:
    """A file of codes: one on a line, or a CSV file with the columns code and system."""
    check_regular(file)
    with open(file, encoding="utf-8-sig", newline="") as opened:
        lines = [row for row in csv.reader(opened) if any(cell.strip() for cell in row)]
    if not lines:
        raise ValueError(f"{file}: expected codes, one on a line, got an empty file")
    header = [cell.strip().lower() for cell in lines[0]]
    if "code" not in header:
        return LabelRule(tuple(("", row[0].strip()) for row in lines))
    return LabelRule(tuple(_pairs(file, header, lines[1:])))


def _pairs(
    file: Path | str, header: list[str], rows: Iterable[list[str]]
) -> Iterable[tuple[str, str]]:
    for number, row in enumerate(rows, 2):
        cells = dict(zip(header, row, strict=False))
        system = system_of(cells.get("system", ""))
        if system is None:
            raise ValueError(
                f"{file}, row {number}: unknown code system {quoted(cells['system'])}; known: {', '.join(sorted(set(SYSTEMS.values())))}"
            )
        yield system, cells.get("code", "").strip()
