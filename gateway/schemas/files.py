"""/v1/files: what OpenAI's file object has."""

from __future__ import annotations

from typing import Literal

import msgspec

PURPOSES = ("batch", "user_data", "assistants", "fine-tune", "vision", "evals")


class FileObject(msgspec.Struct, kw_only=True):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    status_details: None = None
    expires_at: int | None = None


class FileList(msgspec.Struct, kw_only=True):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
