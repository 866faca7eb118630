"""The audit: how different are the clients, in size, labels and features? From summaries only, over any transport.

>>> import equipoise as eq
>>> found = eq.audit({"data": {"name": "digits", "partition": "dirichlet:0.3", "clients": 5}, "workers": 0})
>>> found.verdict.dominant
'labels'
"""

from __future__ import annotations

from equipoise.auditing.findings import ClientRow, Findings, findings
from equipoise.auditing.method import Audit
from equipoise.auditing.running import audit
from equipoise.auditing.verdict import Verdict

__all__ = ["Audit", "ClientRow", "Findings", "Verdict", "audit", "findings"]
