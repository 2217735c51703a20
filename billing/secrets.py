"""The server secret: versioned, shared by every gateway, the root of pepper, salts and the encryption key.

The file (mode 0600) holds one line per version, `<version>:<64 hex digits>`, newest last; so does the environment
variable, with commas for newlines. New keys are peppered with the newest version, old ones checked with theirs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets as random
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from billing.errors import Invalid

_LINE = re.compile(r"(\d{1,9}):([0-9a-f]{64})")


class ServerSecret:
    """Derives what each use needs by HMAC-SHA-256 with its own label, so that no use can stand in for another."""

    def __init__(self, versions: dict[int, bytes]) -> None:
        if not versions:
            raise Invalid("server secret: there is no version in it", param="server_secret")
        self._versions = dict(versions)
        self.current = max(versions)
        self._peppers = {v: _derive(raw, b"key-pepper") for v, raw in versions.items()}
        # Salts and tags must not change when a version is added (caches would empty, keys would fail): oldest version.
        first = versions[min(versions)]
        self._salt_key = _derive(first, b"prefix-salt")
        self._tag_mac = hmac.new(_derive(first, b"public-id-tag"), digestmod="sha256")
        self._fernets = {
            v: Fernet(base64.urlsafe_b64encode(_derive(raw, b"encryption"))) for v, raw in versions.items()
        }

    def __repr__(self) -> str:
        return f"ServerSecret(versions={sorted(self._versions)})"

    @classmethod
    def parse(cls, text: str) -> ServerSecret:
        """Raises: Invalid, without echoing the text."""
        versions: dict[int, bytes] = {}
        for part in re.split(r"[\n,]", text):
            line = part.strip()
            if not line or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line)
            if not match:
                raise Invalid("server secret: a line is not <version>:<64 hex digits>", param="server_secret")
            versions[int(match[1])] = bytes.fromhex(match[2])
        return cls(versions)

    @classmethod
    def load(cls, path: Path, *, env: str | None = None) -> ServerSecret:
        """From `env`'s text where given, else from the file, made on first use with mode 0600.

        Raises: Invalid when others than the owner may read the file or its content is malformed.
        """
        if env:
            return cls.parse(env)
        with contextlib.suppress(FileExistsError):
            _create(path)
        if path.stat().st_mode & 0o077:
            raise Invalid(f"server secret: {path} may be read by others; set its mode to 0600", param="server_secret")
        return cls.parse(path.read_text())

    def pepper(self, version: int) -> bytes:
        """The 32 bytes that API keys' HMACs take. Raises: KeyError for a version this server has not got."""
        return self._peppers[version]

    def tag(self, public_id: str) -> bytes:
        """A MAC over a key's public id: a made-up id is refused without asking SQL."""
        mac = self._tag_mac.copy()  # half the cost of one made anew: every request's key is checked by it
        mac.update(public_id.encode())
        return mac.digest()

    def cache_salt(self, tenant_id: str, project_id: str) -> bytes:
        """The prefix cache's salt: HMAC over both names, each behind its length, so that no two pairs run together."""
        tenant, project = tenant_id.encode(), project_id.encode()
        framed = len(tenant).to_bytes(8, "big") + tenant + len(project).to_bytes(8, "big") + project
        return hmac.digest(self._salt_key, framed, "sha256")

    def encrypt(self, text: str) -> bytes:
        """An upstream's key or a webhook's secret, authenticated and encrypted under the newest version."""
        return f"{self.current}:".encode() + self._fernets[self.current].encrypt(text.encode())

    def decrypt(self, blob: bytes) -> str:
        """Raises: Invalid when the version is gone or the blob was tampered with."""
        version, _, token = blob.partition(b":")
        fernet = self._fernets.get(int(version)) if version.isdigit() else None
        if fernet is None:
            raise Invalid("an encrypted value names a server secret version that is not here", param="server_secret")
        try:
            return fernet.decrypt(token).decode()
        except InvalidToken as exc:
            raise Invalid("an encrypted value does not open under its server secret", param="server_secret") from exc


def _derive(raw: bytes, label: bytes) -> bytes:
    return hmac.digest(raw, b"weir/" + label, hashlib.sha256)


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{random.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"1:{random.token_hex(32)}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)  # atomic: of two first starts one wins, and neither reads half a file
    finally:
        fresh.unlink()
