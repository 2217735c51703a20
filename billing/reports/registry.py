"""Every report; a new one is a file and a line here, and gets a command, an endpoint and a dashboard page by it."""

from __future__ import annotations

from billing.errors import NotFound
from billing.reports import cache_savings, margin, requests, spend
from billing.reports.report import Report

REPORTS: dict[str, Report] = {
    report.name: report for report in (spend.REPORT, cache_savings.REPORT, margin.REPORT, requests.REPORT)
}


def report_named(name: str) -> Report:
    """Raises: NotFound for an unknown name."""
    report = REPORTS.get(name)
    if report is None:
        raise NotFound(f"no such report: {name[:40]!r}; there are {', '.join(REPORTS)}")
    return report
