"""`weir erase`."""

from __future__ import annotations

from tests.gateway.cli.conftest import Weir


def test_erasing_asks_first_is_audited_and_counts(weir: Weir) -> None:
    assert weir.run("erase", "acme", stdin="n\n").exit_code != 0
    counts = weir.json("erase", "acme", "--yes")

    assert counts == {"responses": 0, "cached_answers": 0, "files": 0, "batches": 0}
    actions = [event["action"] for event in weir.json("audit")]
    assert actions.count("tenant.erased") == 1


def test_an_unknown_tenant_is_named(weir: Weir) -> None:
    done = weir.run("erase", "nobody", "--yes")

    assert done.exit_code != 0
    assert "nobody" in done.output + str(done.exception)
