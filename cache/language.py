"""Which language a question is in, as far as the cache must know: by script, then by function words.

Structure, not a model: the answer is only used to refuse. An unsure text is treated as another language and gets an
exact hit at most.
"""

from __future__ import annotations

import re
import unicodedata

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_WORD = re.compile(r"[^\W\d_]+")

# The commonest closed-class words; ones that are also common in English ("die", "was", "a", "me", "no") are left out.
_TABLE = """
en the a an of to in is are was were do does did how what when where who why which can could should would i my you your
en it this that for on with from and or not be have has will there if by at as
de der das und ist nicht ich wie ein eine einen mit für auf von zu zum zur dem den wo wann warum kann mein meine im bei
de aus wird sind haben ihr sie wir auch oder
fr le la les et est je un une des du de que qui dans pour pas sur avec mon ma mes vous nous quel quelle où comment
fr pourquoi puis il elle au aux ce cette
es el los las y es un una de que en por para con mi mis cómo dónde cuándo qué cuál cuánto puedo está del al lo se su
it il lo gli e è un una di che per con mio mia come dove quando perché posso del della nel sono si
pt o os as e é um uma de que em por para com meu minha como onde quando não do da na
nl de het een en is van ik hoe wat waar wanneer kan mijn niet met voor op te zijn dat
sv och är en ett jag hur vad var när kan min mitt inte med för på till av som det
pl i w na z jest nie jak co gdzie kiedy czy mogę mój moja się do to po za
tr ve bir bu nasıl ne nerede için mi mı ile ben benim da de
id yang dan di ke dari ini itu apa bagaimana saya untuk dengan adalah bisa
"""


def _function_words() -> dict[str, frozenset[str]]:
    words: dict[str, set[str]] = {}
    for line in _TABLE.split("\n"):
        code, *listed = line.split() or [""]
        words.setdefault(code, set()).update(listed)
    words.pop("")
    return {code: frozenset(listed) for code, listed in words.items()}


_FUNCTION_WORDS = _function_words()


def language_of(text: str) -> str | None:
    """ISO 639-1 code: "zh" where Han letters stand, "en" for English and bare Latin keywords, another or None else."""
    if _KANA.search(text):
        return "ja"
    if _HAN.search(text):
        return "zh"
    letters = [char for char in text if char.isalpha()]
    latin = [char for char in letters if unicodedata.name(char, "").startswith("LATIN")]
    if not letters or len(latin) < len(letters):
        return None
    words = _WORD.findall(text.lower())
    votes = {name: sum(word in known for word in words) for name, known in _FUNCTION_WORDS.items()}
    best = max(votes, key=lambda name: (votes[name], name == "en"))
    if best != "en" and votes[best] > votes["en"]:
        return best
    accented = sum(not char.isascii() for char in letters)
    return "en" if accented <= 1 + len(letters) // 20 else None
