"""/v1/files over HTTP: kept whole, listed, whose they are, how large they may be, for how long."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.files import store
from tests.gateway.conftest import Gateway, StartGateway, Tenant


async def upload(
    gateway: Gateway, content: bytes = b'{"a": 1}\n', *, tenant: Tenant | None = None, **fields: Any
) -> httpx.Response:
    data = {"purpose": "batch", **fields}
    return await gateway.client.post(
        "/v1/files",
        files={"file": ("input.jsonl", content, "application/jsonl")},
        data={name: value for name, value in data.items() if value is not None},
        headers=(tenant or gateway.tenant).headers,
    )


async def get(gateway: Gateway, path: str, tenant: Tenant | None = None) -> httpx.Response:
    return await gateway.client.get(f"/v1/files{path}", headers=(tenant or gateway.tenant).headers)


async def test_a_file_comes_back_byte_for_byte(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PIECE_BYTES", 1000)
    content = bytes(range(256)) * 17

    made = (await upload(gateway, content)).json()

    assert made["id"].startswith("file-")
    assert (made["object"], made["bytes"], made["filename"]) == ("file", len(content), "input.jsonl")
    assert (made["purpose"], made["status"]) == ("batch", "processed")
    assert (await get(gateway, f"/{made['id']}")).json() == made
    download = await get(gateway, f"/{made['id']}/content")
    assert download.content == content
    assert download.headers["content-length"] == str(len(content))


async def test_files_are_listed_page_by_page(gateway: Gateway) -> None:
    made = [(await upload(gateway)).json()["id"] for _ in range(3)]
    other = (await upload(gateway, purpose="user_data")).json()["id"]

    first = (await get(gateway, "?purpose=batch&limit=2&order=asc")).json()
    rest = (await get(gateway, f"?purpose=batch&limit=2&order=asc&after={first['last_id']}")).json()

    assert [file["id"] for file in first["data"] + rest["data"]] == sorted(made)
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert other in {file["id"] for file in (await get(gateway, "")).json()["data"]}


async def test_a_deleted_file_is_gone_with_its_content(gateway: Gateway) -> None:
    made = (await upload(gateway)).json()

    deleted = await gateway.client.delete(f"/v1/files/{made['id']}", headers=gateway.tenant.headers)

    assert deleted.json() == {"id": made["id"], "object": "file", "deleted": True}
    assert (await get(gateway, f"/{made['id']}")).status_code == 404
    assert (await get(gateway, f"/{made['id']}/content")).status_code == 404


@pytest.mark.parametrize("path", ["", "/content"])
async def test_another_tenants_file_does_not_exist(gateway: Gateway, path: str) -> None:
    made = (await upload(gateway)).json()
    other = await gateway.add_tenant("other")

    assert (await get(gateway, f"/{made['id']}{path}", other)).status_code == 404
    assert (await get(gateway, "", other)).json()["data"] == []
    response = await gateway.client.delete(f"/v1/files/{made['id']}", headers=other.headers)
    assert response.status_code == 404
    assert (await get(gateway, f"/{made['id']}{path}")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": None}, "purpose"),
        ({"purpose": "world domination"}, "purpose"),
        ({"expires_after[seconds]": "12"}, "expires_after"),
    ],
)
async def test_a_bad_upload_is_refused_by_name(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    response = await upload(gateway, **fields)

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_only_multipart_is_an_upload(gateway: Gateway) -> None:
    assert (await gateway.post("/v1/files", {"purpose": "batch"})).status_code == 415
    response = await gateway.client.post(
        "/v1/files", files={"nothing": ("a", b"b")}, data={"purpose": "batch"}, headers=gateway.tenant.headers
    )
    assert response.json()["error"]["param"] == "file"


async def test_a_tenant_keeps_no_more_than_its_share(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(files_max_tenant_bytes=100)

    assert (await upload(gateway, b"x" * 60)).status_code == 200
    refused = await upload(gateway, b"x" * 60)

    assert refused.status_code == 413
    assert "40 bytes" in refused.json()["error"]["message"]
    assert len((await get(gateway, "")).json()["data"]) == 1
    assert (await upload(gateway, b"x" * 60, tenant=await gateway.add_tenant("other"))).status_code == 200


async def test_files_past_their_retention_are_swept_away(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(files_retention_s=0.001)
    made = (await upload(gateway)).json()

    assert (await get(gateway, f"/{made['id']}")).status_code == 404
    assert await gateway.parts.files.sweep() == 1
    assert [piece async for piece in gateway.parts.files.content(made["id"])] == []


async def test_lines_are_found_across_pieces(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PIECE_BYTES", 3)
    made = (await upload(gateway, b"one\n\ntwo two\r\nthree")).json()

    assert [line async for line in gateway.parts.files.lines(made["id"])] == [b"one", b"two two\r", b"three"]
