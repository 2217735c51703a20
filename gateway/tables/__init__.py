"""What the gateway itself keeps in SQL: responses, files, batches. Money and identities are billing's."""

from gateway.tables.responses import ResponseStatus, StoredResponse

__all__ = ["ResponseStatus", "StoredResponse"]
