"""Unix sockets in the data folder, whose paths the system bounds at 107 bytes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 100  # sun_path holds 107 and a zero; a few are left for a draft's suffix


def short_socket_path(data_dir: Path, name: str) -> Path:
    """`name` inside the folder, or inside a private folder of this user when that path is too long."""
    path = (data_dir / name).absolute()
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"weir-{os.getuid()}-{digest}" / name
