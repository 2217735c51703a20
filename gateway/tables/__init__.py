"""What the gateway itself keeps in SQL: responses, files, batches. Money and identities are billing's."""

from gateway.tables.batches import Batch, BatchLine, BatchStatus
from gateway.tables.files import FilePiece, StoredFile
from gateway.tables.responses import ResponseStatus, StoredResponse

__all__ = ["Batch", "BatchLine", "BatchStatus", "FilePiece", "ResponseStatus", "StoredFile", "StoredResponse"]
