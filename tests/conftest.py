"""Settings of the whole suite: hypothesis' profiles, campaign tests, and the account of skips.

A skip is a promise not kept, so a run ends with the list of its skips, and fails on one whose
reason is not foreseen in ``allowed_skips.txt``.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CAMPAIGN = os.environ.get("CASTORE_TEST_CAMPAIGN") == "1"
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")

# A shell that puts the suite in the background has it ignore SIGINT, and then so would every
# process that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a slow disk is not a bug, and hangs are faulthandler_timeout's business.
# "ci" draws the same examples each time, so a red run is red again; "campaign" draws new ones.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, max_examples=60, database=None, **_common)
settings.register_profile("campaign", max_examples=500, print_blob=True, **_common)
settings.load_profile("campaign" if CAMPAIGN else "ci")


@pytest.fixture(scope="session")
def campaign() -> bool:
    """True where full counts are asked for (``tools/test --campaign``)."""
    return CAMPAIGN


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if CAMPAIGN:
        return
    held_back = [item for item in items if item.get_closest_marker("campaign")]
    if held_back:
        items[:] = [item for item in items if item not in held_back]
        config.hook.pytest_deselected(items=held_back)


def _allowed_skips() -> list[str]:
    lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class SkipAccount:
    """Gathers the skips of a run; prints them at its end; fails the run on an unforeseen one."""

    def __init__(self) -> None:
        self.allowed = _allowed_skips()
        self.skips: dict[tuple[str, str], bool] = {}  # (test, reason) -> foreseen?

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        self.skips[report.nodeid, reason] = any(reason.startswith(a) for a in self.allowed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and not all(self.skips.values()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = terminalreporter.write_line
        terminalreporter.section(f"skips: {len(self.skips) or 'none'}")
        for (test, reason), foreseen in sorted(self.skips.items()):
            line(f"{test}: {reason}" + ("" if foreseen else "   <-- not in allowed_skips.txt"))
        if not all(self.skips.values()):
            line(f"the run FAILS: a skip is not foreseen in {ALLOWED_SKIPS.name}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipAccount(), "castore-skip-account")
