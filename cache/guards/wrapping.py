"""What people wrap an English question in: greeting, thanks, and the clause that only says that a question is asked.

Also the tokens that all English guards work on: contractions written out, hyphenated words apart, codes whole.
"""

from __future__ import annotations

import re

from cache.guards.english_words import ADVERBS, ARTICLES, BE, DO, HAVE, MODALS, PRONOUNS, PUNCTUATION, QUESTION_WORDS
from cache.guards.lists import words

# Speech acts and politeness: what is done with the question, not what it is about.
SPEECH_ACTS = words(
    "tell know ask explain wonder wondering wondered question questions help show say advise inform understand curious "
    "hi hello hey greetings thanks thank thx sorry excuse"
)
# These need somebody to whom, or what follows is their own object: "show me the way", but "show dogs".
_ADDRESSED = words("tell show help inform advise ask say")
FRAME_FILLERS = (
    PRONOUNS | MODALS | BE | DO | HAVE | ARTICLES | ADVERBS
    | words("like want need happen love try trying quick short dear there all team everyone so ok okay well if whether "
            "to about with let out find am another good morning afternoon evening day")
)  # fmt: skip
CLOSINGS = words("thanks thank thx cheers please you advance in much so very lot a many regards kind best")

_OPENERS = words("so and but then well ok okay exactly actually really just simply")  # "so what exactly is"
_AFTER_SPEECH = words("me us you if whether about there know please out that")

_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "`": "'", "´": "'"})
_TOKEN = re.compile(r"[A-Za-zÀ-ɏ0-9]+(?:[.,:/'_+#-][A-Za-zÀ-ɏ0-9]+)*[+#]*|[%€$£°]|[.?!;:,]")
_CLITICS = (
    (re.compile(r"\bcan't\b|\bcannot\b|\bcant\b", re.I), "can not"),
    (re.compile(r"\bwon't\b|\bwont\b", re.I), "will not"),
    (re.compile(r"\b(do|does|did|is|are|was|were|have|has|had|would|could|should|must|need)n'?t\b", re.I), r"\1 not"),
    (re.compile(r"\b(what|where|who|how|when|why|that|there|it|here|he|she)'s\b", re.I), r"\1 is"),
    (re.compile(r"\b(what|where|who|how|when)s\b(?=\s)", re.I), r"\1 is"),
    (re.compile(r"\b(\w+)'re\b", re.I), r"\1 are"),
    (re.compile(r"\b(\w+)'ve\b", re.I), r"\1 have"),
    (re.compile(r"\b(\w+)'ll\b", re.I), r"\1 will"),
    (re.compile(r"\bi'm\b", re.I), "i am"),
    (re.compile(r"\b(\w+)'d\b", re.I), r"\1 would"),
    (re.compile(r"\b(?:have|has|had|got) to\b", re.I), "must"),
    (re.compile(r"'s\b", re.I), ""),
)


def core_text(text: str) -> str:
    """The question without greeting, thanks and wrapping: what is embedded, so that politeness costs no similarity."""
    return " ".join(unwrap(tokenize(text))) or text


def tokenize(text: str) -> list[str]:
    text = text.translate(_APOSTROPHES)
    for pattern, full in _CLITICS:
        text = pattern.sub(full, text)
    tokens: list[str] = []
    for token in _TOKEN.findall(text):
        if "-" in token and not re.search(r"\d[A-Za-z]|[A-Za-z]-?\d", token):
            tokens += token.split("-")
        else:
            tokens.append(token)
    return tokens


def unwrap(tokens: list[str]) -> list[str]:
    """Without greeting, thanks, and the clause that only says that a question is asked."""
    length = len(tokens) + 1
    while len(tokens) < length:  # as long as there is another thanks to take off
        length = len(tokens)
        while tokens and tokens[-1] in PUNCTUATION:
            tokens = tokens[:-1]
        tokens = _without_closing(tokens)
    end, spoke = 0, False
    for position, token in enumerate(tokens):
        word = token.lower()
        if word in SPEECH_ACTS and _is_speech(tokens, position):
            end, spoke = position + 1, True
        elif spoke and position == end and _leads_on(tokens, position):
            end = position + 1
        elif word not in FRAME_FILLERS and token not in PUNCTUATION:
            break
    rest = tokens[end:] if spoke and end < len(tokens) else tokens
    opening = [token for token in rest[:3] if token.lower() not in _OPENERS]
    return [*opening, *rest[3:]] if opening else rest


def _leads_on(tokens: list[str], position: int) -> bool:
    """Whether a word behind a speech act still belongs to it. An "if" behind a comma opens the question instead."""
    word = tokens[position].lower()
    if word in ("if", "whether") and tokens[position - 1] in PUNCTUATION:
        return False
    return word in _AFTER_SPEECH | PUNCTUATION or _announces(tokens, position)


def _announces(tokens: list[str], position: int) -> bool:
    """ "My question is: ...", "what I ask is how ..."; not the "is" of the question itself."""
    following = tokens[position + 1].lower() if position + 1 < len(tokens) else ""
    return tokens[position].lower() == "is" and following in PUNCTUATION | QUESTION_WORDS


def _is_speech(tokens: list[str], position: int) -> bool:
    if tokens[position].lower() not in _ADDRESSED:
        return True
    following = tokens[position + 1].lower() if position + 1 < len(tokens) else ""
    return following in _AFTER_SPEECH | PUNCTUATION | QUESTION_WORDS


def _without_closing(tokens: list[str]) -> list[str]:
    """A last sentence of thanks goes, and a final "please"."""
    for position in range(len(tokens) - 1, 0, -1):
        token, tail = tokens[position], [token.lower() for token in tokens[position + 1 :]]
        if token in ("Thanks", "Thank", "Thx", "Cheers") and set(tail) <= CLOSINGS | PUNCTUATION:
            return tokens[:position]  # its capital shows that a sentence ended before it
        if token in PUNCTUATION:
            return tokens[:position] if tail and set(tail) <= CLOSINGS | PUNCTUATION else tokens
    return tokens[:-1] if len(tokens) > 1 and tokens[-1].lower() == "please" else tokens
