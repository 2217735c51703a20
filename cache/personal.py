"""First-person wording: "where is my order" is a perfect paraphrase between two end users, and must not be shared.

Two degrees. STATE asks for something of the asker's own ("what is my balance", "do I owe anything"): never shared
beyond the end user. WORDING merely says "my" in a question about a procedure ("how do I reset my password"): kept to
the end user where the request names one.
"""

from __future__ import annotations

import re
from enum import Enum

from cache.canonical import both_ends


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
    r"|\b(?:can|may|could|should|must) (?:i|we)\b|\bdo i (?:need|have to)\b|怎么|如何|怎样|可以|能不能"
)
# What belongs to the asker's relation with the house, and changes by itself.
_AFFAIRS = (
    r"(?:account|order|payment|card|refund|parcel|package|shipment|delivery|subscription|invoices?|bills?|claim|balance|"
    r"application|transfer|booking|reservation|ticket|contract|credit|salary|payslip)"
)
_STATE = re.compile(
    r"\b(?:where|what|when|who|which|how \w+)(?:'s| is| are| was| were| will| has| have| did| does) (?:my|our)\b"
    r"|(?:^|[.?!,:] ?)(?:is|are|was|were|has|have|had|did|does|do|will) (?:my|our)\b"
    rf"|\bwhy (?:is|are|was|were|did|has|have|does) (?:my|our) (?:\w+ )?{_AFFAIRS}\b"
    rf"|\b(?:of|on|in|for|from) (?:my|our) (?:\w+ )?{_AFFAIRS}\b"
    r"|\b(?:show|list|check|give me|tell me|send me|read me) (?:\w+ )?(?:my|our)\b"
    r"|\bdo (?:i|we) (?:still |currently |already )?(?:owe(?! tax)|have\b(?! to))|\b(?:i|we) (?:have left|still owe)\b"
    r"|\b(?:did|have|had) (?:i|we) (?:\w+)"
    r"|我(?:的|们的).*(?:在哪|到哪|多少|几|吗|什么时候|为什么|余额|状态)|我(?:还|已经)?[有欠剩].*(?:多少|几|吗)"
    r"|\bwo (?:ist|sind|bleibt) mein|\boù (?:est|sont) m|\bdónde está mi"
)


# A first person in any of the languages: what the patterns above cannot do without.
_FIRST_PERSON = re.compile(r"\b(?:m[yieaoí]|our|unser|notre|nuestro|où|(?:i|we)\b)|我|咱们|本人")


def personal_degree(text: str) -> Personal:
    """How far the wording is the asker's own."""
    lowered = both_ends(text).lower().replace("’", "'")
    if _FIRST_PERSON.search(lowered) is None:  # most questions
        return Personal.NONE
    if _PROCEDURE.search(lowered):
        return Personal.WORDING if _says_mine(lowered) else Personal.NONE
    if _STATE.search(lowered):
        return Personal.STATE
    return Personal.WORDING if _says_mine(lowered) else Personal.NONE


def _says_mine(lowered: str) -> bool:
    return _WORDING.search(_FRAME.sub(" ", lowered)) is not None
