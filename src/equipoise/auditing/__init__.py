"""Audits: differences between clients in size, labels and features, from summaries only.

>>> import equipoise as eq
>>> data = {"name": "digits", "partition": "dirichlet:0.3", "clients": 5}
>>> findings = eq.audit({"data": data, "workers": 0})
>>> findings.verdict.dominant
'labels'
"""

from __future__ import annotations

from equipoise.auditing.findings import ClientRow, Findings, findings
from equipoise.auditing.method import Audit
from equipoise.auditing.predictions import PredictionFindings, audit_predictions
from equipoise.auditing.running import audit
from equipoise.auditing.verdict import Verdict

__all__ = [
    "Audit",
    "ClientRow",
    "Findings",
    "PredictionFindings",
    "Verdict",
    "audit",
    "audit_predictions",
    "findings",
]
