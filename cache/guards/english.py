"""An English question taken apart for the guards: what is asked, and the words that carry its subject."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from cache.guards.english_words import (
    ARTICLES,
    BE,
    DO,
    HAVE,
    IGNORABLE,
    LIGHT_PREPOSITIONS,
    MODALS,
    NEGATIONS,
    PAST,
    PERSONS,
    PRESENT,
    PRONOUNS,
    PUNCTUATION,
    QUESTION_WORDS,
    SUBORDINATORS,
)
from cache.guards.lists import words
from cache.guards.numerals import ordinal_value, read_number
from cache.guards.wrapping import tokenize, unwrap

_SENTENCE_ENDS = frozenset(".?!:")
# Question words of several words.
_IDIOMS = (
    (re.compile(r"^(?:what|which) (?:is the )?(?:number|amount|quantity) of "), "how many "),
    (re.compile(r"^how much time "), "how long "),
    (re.compile(r"^how frequently "), "how often "),
    (re.compile(r"^(?:how come |for (?:what|which) reason |what is the reason (?:why |that ))"), "why "),
    (re.compile(r"^(?:at )?what time "), "when "),
    (re.compile(r"^(?:is|would) it (?:be )?(?:possible|permitted|allowed) for (?=.* to )"), "can "),
)
# Ways to ask "how" and "may I" that need several words.
_HOW = re.compile(
    r"^(?:(?:what (?:(?:is|are|would be) )?)?(?:the |a )?(?:best |right |proper |correct |usual )?"
    r"(?:way|ways|step|steps|procedure|process|method) (?:to|of|for)|how (?:do|does|can|could|would|should|may) "
    r"(?:i|we|you|one) (?:go about )?|how to) ?"
)
_WISH_HOW = re.compile(
    r"^i (?:want|need|wish|would like|am trying) to (.+?) [.,;] (?:and )?(?:so )?how "
    r"(?:do|can|would|should|could) (?:i|one|we) (?:do|go about|achieve) (?:that|this|it)$"
)
_MAY = re.compile(
    r"^(?:(?:is|would) it (?:be )?(?:possible|allowed|permitted|okay|ok|fine|all right)(?: for (?:me|us|one))? to|"
    r"(?:am|are) (?:i|we|you|one) (?:able|allowed|permitted) to|(?:can|could|may|might) (?:i|we|you|one)) "
)


class Token(msgspec.Struct, frozen=True):
    """A content word: `stem` for comparing, `text` as written, `governor` the light preposition before it or ""."""

    stem: str
    text: str
    governor: str = ""
    number: bool = False
    code: bool = False
    capital: bool = False


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: how, many, what, who, when, where, why, may, polar, or any (no question form).

    `content`: the words that carry the subject, in order; `negations` how often something is denied; `past` and
    `present` whether such an auxiliary stands; `modals` as used; `persons` (first, second, he, she, they) in the order
    of their first mention; `links`: "and", "or".
    """

    kind: str
    content: tuple[Token, ...]
    negations: int
    past: bool
    present: bool
    modals: frozenset[str]
    persons: tuple[str, ...]
    links: frozenset[str]


@lru_cache(maxsize=4096)
def parse(text: str) -> Question:
    """Takes a question apart; never fails, whatever the text."""
    whole = unwrap(tokenize(text))
    if whole and whole[0].lower() in IGNORABLE:
        whole = [whole[0].lower(), *whole[1:]]  # its capital is the sentence's, wherever the word is moved
    kind, tokens = _kind(whole)
    tokens = _active(tokens)
    lowered = [token.lower() for token in tokens]
    persons = [PERSONS[word.lower()] for word in whole if word.lower() in PERSONS]
    return Question(
        kind=kind,
        content=tuple(token for token in _content(tokens) if token.stem not in _IMPLIED.get(kind, ())),
        negations=sum(word in NEGATIONS for word in lowered),
        past=any(word in PAST for word in lowered),
        present=any(word in PRESENT for word in lowered),
        modals=frozenset(word for word in lowered if word in MODALS),
        persons=tuple(dict.fromkeys(persons)),
        links=frozenset(word for word in lowered if word in ("and", "or")),
    )


# What a question word already says: "where can I find X" is "where is X", "which people" is "who".
_IMPLIED = {"where": words("find"), "who": words("peopl person")}


def _kind(tokens: list[str]) -> tuple[str, list[str]]:
    """What form of question it is, and its tokens without the words that only make that form."""
    line = " ".join(token.lower() for token in tokens)
    for pattern, plain in _IDIOMS:
        match = pattern.match(line + " ")
        if match is not None:
            tokens = [*plain.split(), *tokens[match[0].count(" ") :]]
            line = " ".join(token.lower() for token in tokens)
    wish = _WISH_HOW.match(line)
    if wish is not None:
        start = line[: wish.start(1)].count(" ")
        return "how", tokens[start : start + wish[1].count(" ") + 1]
    for pattern, kind in ((_HOW, "how"), (_MAY, "may")):
        match = pattern.match(line + " ")
        if match is not None:
            return kind, tokens[match[0].strip().count(" ") + 1 :]
    lowered = [token.lower() for token in _main_clause(tokens)]
    if lowered and lowered[0] in BE | DO | HAVE | MODALS:
        return "polar", tokens
    asked = next((position for position, word in enumerate(lowered) if word in QUESTION_WORDS), None)
    if asked is not None:
        return _question_word(lowered, asked), tokens
    return "any", tokens


def _main_clause(tokens: list[str]) -> list[str]:
    """What follows a clause or phrase that stands in front, up to a comma: "if it rains, who ..."."""
    if not tokens or tokens[0].lower() not in SUBORDINATORS | LIGHT_PREPOSITIONS or "," not in tokens:
        return tokens
    return tokens[tokens.index(",") + 1 :]


_PEOPLE = words("people person persons")


def _active(tokens: list[str]) -> list[str]:
    """The passive turned round, so that who does what stands in one order.

    "Is X covered by Y" as "is Y covered X"; "how can X be configured" as "how can configure X": there nobody is named
    who does it, so X is not its agent.
    """
    lowered = [token.lower() for token in tokens]
    if "by" in lowered[2:]:
        return _with_agent(tokens, lowered)
    if "be" not in lowered[1:-1]:
        return tokens
    spot = lowered.index("be", 1)
    start = next((position + 1 for position, word in enumerate(lowered[:spot]) if word in MODALS), 0)
    return [*tokens[:start], _verb(tokens[spot + 1]), *tokens[start:spot], *tokens[spot + 2 :]]


def _with_agent(tokens: list[str], lowered: list[str]) -> list[str]:
    by = lowered.index("by", 2)
    auxiliary = next((position for position in range(by - 1) if lowered[position] in BE), None)
    if auxiliary is None:
        return tokens
    ends = (LIGHT_PREPOSITIONS - {"of"}) | PUNCTUATION
    end = next((position for position in range(by + 1, len(tokens)) if lowered[position] in ends), len(tokens))
    # What suffers the action stands behind "is" in a question, before "be" after a modal, or first in a statement.
    start = next((position + 1 for position, word in enumerate(lowered[:auxiliary]) if word in MODALS), 0)
    if lowered[0] in QUESTION_WORDS and start == 0:
        start = auxiliary
    patient = [*tokens[start:auxiliary], *tokens[auxiliary + 1 : by - 1]]
    return [*tokens[:start], tokens[auxiliary], *tokens[by + 1 : end], _verb(tokens[by - 1]), *patient, *tokens[end:]]


def _verb(participle: str) -> str:
    """What is known to be a participle, without its strong ending: written, taken, known."""
    if participle.endswith("en") and len(participle) > 4:
        return _DOUBLED.sub(r"\1", participle[:-2])
    return participle[:-1] if participle.endswith("wn") else participle


def _question_word(lowered: list[str], position: int) -> str:
    word = lowered[position]
    following = lowered[position + 1] if position + 1 < len(lowered) else ""
    if word == "how":
        return "many" if following in ("many", "much", "few") else "how"
    if word in ("who", "whom", "whose") or following in _PEOPLE:
        return "who"
    return "what" if word == "which" else word


def _content(tokens: list[str]) -> list[Token]:
    content: list[Token] = []
    governor, start = "", True
    position = 0
    while position < len(tokens):
        token, word = tokens[position], tokens[position].lower()
        number, length = read_number(tokens, position)
        if word == "i" and content and content[-1].capital and tokens[position - 1] == content[-1].text:
            number = "#1"  # World War I
        if number is not None:
            content.append(Token(number, token, governor, number=True))
        elif word in LIGHT_PREPOSITIONS or word in SUBORDINATORS:
            governor = word
        elif token in PUNCTUATION:
            governor, start = "", start or token in _SENTENCE_ENDS
            position += 1
            continue
        elif (word not in IGNORABLE and word not in NEGATIONS) or _is_meant(tokens, position, start=start):
            content.append(_word(token, governor, start=start))
        if number is not None or word not in LIGHT_PREPOSITIONS | SUBORDINATORS | ARTICLES | PRONOUNS:
            governor = ""
        start = False
        position += length
    if governor in LIGHT_PREPOSITIONS:  # "what is France the capital of" is not "what is the capital of France"
        content.append(Token(f"~{governor}", governor))
    return content


def _is_meant(tokens: list[str], position: int, *, start: bool) -> bool:
    """Whether a function word is none here: a name ("in May", "vitamin A"), or "do" and "have" as the main verb."""
    token, word = tokens[position], tokens[position].lower()
    if token[:1].isupper() and word != "i" and not start and not tokens[position - 1][:1].isupper():
        return True
    if word not in ("do", "have", "done"):
        return False
    before = [earlier.lower() for earlier in tokens[:position]]
    if word == "have":  # "which code does Peru have" asks for "the code of Peru"; "what does a cat have" names nothing
        return len(before) > 1 and before[0] in QUESTION_WORDS and before[1] in DO | MODALS
    return any(earlier in DO | MODALS | {"to"} for earlier in before)


def _word(token: str, governor: str, *, start: bool) -> Token:
    letters = [char for char in token if char.isalpha()]
    has_digit = any(char.isdigit() for char in token)
    code = (has_digit and bool(letters)) or (len(letters) > 1 and all(char.isupper() for char in letters))
    bare = re.sub(r"[-_./:']", "", token).lower()
    capital = token[:1].isupper() and not start
    return Token(bare if code else stem(bare), token, governor, code=code, capital=capital)


_DOUBLED = re.compile(r"([bdfgklmnprtvz])\1$")


def stem(word: str) -> str:
    """A word without its inflection: plural, -ed, -ing, -ly and a final -e. Prefixes stay: they turn meanings round."""
    if ordinal_value(word) is not None or len(word) <= 3 or not word.isalpha():
        return word
    for ending, rest in (("ies", "y"), ("sses", "ss"), ("ied", "y"), ("ying", "y")):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: -len(ending)] + rest
    if len(word) == 4 and word.endswith("ed") and word[1] != "e":  # owed, used; not feed, need
        return word[:-1]
    for ending in ("ing", "ed", "es", "s", "ly"):
        base = word[: -len(ending)]
        if not word.endswith(ending) or len(base) < 3 or (ending == "s" and word.endswith(("ss", "us", "is"))):
            continue
        if not re.search(r"[aeiouy]", base):
            continue
        word = base if ending in ("s", "ly") else _DOUBLED.sub(r"\1", base)
        break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word
