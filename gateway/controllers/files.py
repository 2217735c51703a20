"""/v1/files: upload, list, get, delete, content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from litestar import Controller, Request, Response, delete, get, post
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from gateway.auth import principal_of, requires_key
from gateway.controllers.responses_spec import answers
from gateway.decoding import check_encoding
from gateway.errors import InvalidRequest, UnsupportedMedia
from gateway.files.store import MAX_FILE_BYTES, FileStore, check_purpose
from gateway.schemas.files import PURPOSES, DeletedFile, FileList, FileObject
from gateway.tables.files import StoredFile

MAX_PAGE = 10_000
READ_BYTES = 1 << 20
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 86_400  # OpenAI's bounds of expires_after


class FileController(Controller):
    """Files for batches."""

    path = "/v1/files"
    tags = ("Files",)
    guards = (requires_key,)

    @post(
        operation_id="CreateFile",
        summary="Upload a file",
        status_code=200,
        request_max_body_size=MAX_FILE_BYTES + (1 << 20),
        responses=answers(FileObject, "The file."),
    )
    async def create_file(self, request: Request[Any, Any, Any], files: NamedDependency[FileStore]) -> Response[Any]:
        """The body is multipart/form-data with `file` and `purpose`.

        Raises: InvalidRequest (400), BodyTooLarge (413).
        """
        check_encoding(request.headers.get("content-encoding"))
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise UnsupportedMedia(kind, expected="multipart/form-data")
        form = await request.form()
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise InvalidRequest("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
        principal = principal_of(request)
        file = await files.write(
            principal.tenant_id,
            principal.project_id,
            filename=upload.filename,
            purpose=check_purpose(form.get("purpose"), PURPOSES),
            content=_read(upload),
            expires_after_s=_expiry(form.get("expires_after[seconds]")),
        )
        return Response(file_object(file))

    @get(operation_id="ListFiles", summary="List files")
    async def list_files(  # noqa: PLR0917 - a handler's arguments are passed by name
        self,
        request: Request[Any, Any, Any],
        files: NamedDependency[FileStore],
        purpose: FromQuery[str | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = MAX_PAGE,
        order: FromQuery[Literal["asc", "desc"]] = "desc",
        after: FromQuery[str | None] = None,
    ) -> Response[FileList]:
        principal = principal_of(request)
        rows, has_more = await files.page(
            principal.tenant_id,
            principal.project_id,
            purpose=purpose,
            limit=limit,
            after=after,
            newest_first=order == "desc",
        )
        data = [file_object(row) for row in rows]
        return Response(
            FileList(
                data=data,
                has_more=has_more,
                first_id=data[0].id if data else None,
                last_id=data[-1].id if data else None,
            )
        )

    @get("/{file_id:str}", operation_id="RetrieveFile", summary="Get a file's description")
    async def get_file(
        self, request: Request[Any, Any, Any], file_id: FromPath[str], files: NamedDependency[FileStore]
    ) -> Response[FileObject]:
        """Raises: NotFound (404)."""
        principal = principal_of(request)
        return Response(file_object(await files.get(principal.tenant_id, principal.project_id, file_id)))

    @get(
        "/{file_id:str}/content",
        operation_id="DownloadFile",
        summary="Get a file's content",
        media_type="application/octet-stream",
    )
    async def get_content(
        self, request: Request[Any, Any, Any], file_id: FromPath[str], files: NamedDependency[FileStore]
    ) -> Stream:
        """Raises: NotFound (404)."""
        principal = principal_of(request)
        file = await files.get(principal.tenant_id, principal.project_id, file_id)
        return Stream(
            files.content(file.id),
            media_type="application/octet-stream",
            headers={"content-length": str(file.size_bytes)},
        )

    @delete("/{file_id:str}", operation_id="DeleteFile", summary="Delete a file", status_code=200)
    async def delete_file(
        self, request: Request[Any, Any, Any], file_id: FromPath[str], files: NamedDependency[FileStore]
    ) -> Response[DeletedFile]:
        """Raises: NotFound (404)."""
        principal = principal_of(request)
        await files.delete(principal.tenant_id, principal.project_id, file_id)
        return Response(DeletedFile(id=file_id))


def file_object(file: StoredFile) -> FileObject:
    """OpenAI's object for a kept file."""
    return FileObject(
        id=file.id,
        bytes=file.size_bytes,
        created_at=int(file.created_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
        expires_at=int(file.expires_at.timestamp()),
    )


async def _read(upload: UploadFile) -> AsyncIterator[bytes]:
    while part := await upload.read(READ_BYTES):
        yield part


def _expiry(value: Any) -> float | None:
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit() and MIN_EXPIRY_S <= int(text) <= MAX_EXPIRY_S):
        raise InvalidRequest(
            f"Invalid 'expires_after.seconds': expected an integer from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.",
            param="expires_after",
            code="invalid_value",
        )
    return float(text)
