"""`weir upstreams`, `weir routes`, `weir cache` over real books."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.gateway.cli.conftest import Weir

ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"pong"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'


class _Stub(BaseHTTPRequestHandler):
    """An upstream that answers one token to whoever has the key."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        right = self.headers["authorization"] == "Bearer s3cret"
        body = ANSWER if right else b'{"error":{"message":"no","type":"x","param":null,"code":null}}'
        self.send_response(200 if right else 401)
        self.send_header("content-type", "text/event-stream" if right else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Stub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_route_is_set_listed_tried_and_removed(weir: Weir, upstream: str) -> None:
    # given an upstream whose key is stored encrypted
    done = weir.run("upstreams", "set", "east", upstream, "--model", "m=theirs", "--api-key-stdin", stdin="s3cret\n")
    assert done.exit_code == 0, done.output
    listed = weir.ok("upstreams", "list", "--json")
    assert '"has_api_key": true' in listed
    assert "s3cret" not in listed + weir.ok("audit", "--json")
    # when a name is routed to it and to this server's own engine
    weir.ok("routes", "set", "chat", "--target", "east/m=3", "--target", "local/m", "--strategy", "weighted")
    [route] = weir.json("routes", "list")
    assert [(t["upstream"], t["model"], t["weight"]) for t in route["targets"]] == [("east", "m", 3), ("local", "m", 1)]
    assert "east/m=3" in weir.ok("routes", "list")
    # then it can be tried from here
    [trial] = weir.json("routes", "test", "chat")
    assert (trial["target"], trial["ok"], trial["error"]) == ("east/m", True, None)
    weir.ok("routes", "remove", "chat")
    weir.ok("upstreams", "remove", "east")
    assert (weir.json("routes", "list"), weir.json("upstreams", "list")) == ([], [])


def test_wrong_key_of_an_upstream_is_seen_by_the_trial(weir: Weir, upstream: str) -> None:
    weir.run("upstreams", "set", "east", upstream, "--model", "m", "--api-key-stdin", stdin="wrong\n")
    weir.ok("routes", "set", "chat", "--target", "east/m")
    tried = weir.run("routes", "test", "chat", "--json")
    assert tried.exit_code == 1
    assert "wrong" not in tried.output


def test_stored_key_stays_when_an_upstream_is_changed_without_one(weir: Weir, upstream: str) -> None:
    weir.run("upstreams", "set", "east", upstream, "--model", "m", "--api-key-stdin", stdin="s3cret\n")
    weir.ok("upstreams", "set", "east", upstream, "--model", "m", "--model", "n")
    weir.ok("routes", "set", "chat", "--target", "east/n")
    assert weir.json("routes", "test", "chat")[0]["ok"] is True


def test_target_that_nothing_serves_is_refused(weir: Weir) -> None:
    assert weir.run("routes", "set", "chat", "--target", "west/m").exit_code != 0
    assert weir.run("routes", "set", "chat", "--target", "nonsense").exit_code != 0
    assert weir.run("upstreams", "set", "local", "http://x/v1", "--model", "m").exit_code != 0
    assert weir.json("routes", "list") == []


def test_apply_checks_routes_before_it_writes(weir: Weir, tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text('[[config.route.chat.targets]]\nupstream = "west"\nmodel = "m"\n')
    assert weir.run("apply", str(file), "--yes").exit_code != 0
    file.write_text('[[config.route.chat.targets]]\nupstream = "local"\nmodel = "m"\n')
    weir.ok("apply", str(file), "--yes")
    assert weir.json("routes", "list")[0]["name"] == "chat"


def test_cache_commands_count_and_remove_by_tenant(weir: Weir) -> None:
    assert weir.json("cache", "usage", "acme") == {"entries": 0, "size_bytes": 0}
    assert weir.json("cache", "invalidate", "acme", "--model", "m", "--dry-run")["dry_run"] is True
    assert weir.json("cache", "invalidate", "acme", "--project", "web")["entries"] == 0
    assert weir.json("audit")[0]["action"] == "cache.invalidated"
    assert weir.run("cache", "invalidate", "nobody").exit_code != 0
    estimate = weir.json("cache", "shadow", "acme", "--reset")
    assert estimate == {"checked": 0, "wrong": 0, "rate": 0.0, "low": 0.0, "high": 1.0}
    assert "0 wrong of 0 checked" in weir.ok("cache", "shadow", "acme")


def test_a_route_narrows_the_cache_and_a_field_that_cannot_be_is_refused(weir: Weir) -> None:
    weir.ok("routes", "set", "chat", "--target", "local/m", "--cache", "ttl_s=60", "--cache", "semantic=false")
    [route] = weir.json("routes", "list")
    assert (route["cache"]["ttl_s"], route["cache"]["semantic"], route["cache"]["enabled"]) == (60, False, True)
    for word in ("ttl_s=0", "hit_price=free", "live_data=allow"):
        assert weir.run("routes", "set", "chat", "--target", "local/m", "--cache", word).exit_code != 0
    assert weir.json("routes", "list")[0]["cache"]["ttl_s"] == 60
