"""First-person wording: "where is my order" is a perfect paraphrase between two end users, and must not be shared.

Two degrees. STATE asks for something of the asker's own ("what is my balance", "do I owe anything"): never shared
beyond the end user. WORDING merely says "my" in a question about a procedure ("how do I reset my password"): kept to
the end user where the request names one.
"""

from __future__ import annotations

import re
from enum import Enum


class Personal(Enum):
    NONE = 0
    WORDING = 1
    STATE = 2


_WORDING = re.compile(
    r"\b(?:my|mine|our|ours|myself|me)\b|我的|我们的|我家|咱们|本人|我(?:还|已经)?[有欠剩买订付交]"
    r"|\b(?:mein\w*|unser\w*|mon|ma|mes|notre|mi|mis|mío|mia|nuestro|meu|minha)\b"
)
_FRAME = re.compile(r"\b(?:tell|show|give|help|let|remind|explain to|teach|for) me\b(?! (?:my|our))")
_PROCEDURE = re.compile(
    r"\bhow (?:do|can|could|should|would|might) (?:i|we|you|one)\b|\bhow to\b|\b(?:way|steps?|possible|able) to\b"
    r"|\b(?:can|may|could|should|must) (?:i|we)\b|\bdo i (?:need|have) to\b|怎么|如何|怎样|可以|能不能"
)
_STATE = re.compile(
    r"\b(?:do|did|have|had|am|was|will) i\b(?! (?:need|have to|want|get started))"
    r"|\b(?:i|we) (?:have left|owe|owed|ordered|bought|paid)\b"
    r"|\b(?:is|are|was|were|has|have|had|did|does|do|will|where|what|when|why|who|which|show|list|check|see)\b.*\b(?:my|our)\b"
    r"|\b(?:my|our)\b.*\b(?:status|balance|account number|invoice|order|subscription)\b"
    r"|我(?:的|们的)?.*(?:在哪|到哪|多少|几|吗|什么时候|为什么|余额|状态)"
    r"|\bwo (?:ist|sind|bleibt) mein|\boù (?:est|sont) m|\bdónde está mi"
)


def personal_degree(text: str) -> Personal:
    """How far the wording is the asker's own."""
    lowered = text.lower().replace("’", "'")
    if _PROCEDURE.search(lowered):
        return Personal.WORDING if _says_mine(lowered) else Personal.NONE
    if _STATE.search(lowered):
        return Personal.STATE
    return Personal.WORDING if _says_mine(lowered) else Personal.NONE


def _says_mine(lowered: str) -> bool:
    return _WORDING.search(_FRAME.sub(" ", lowered)) is not None
