"""The closed word classes of English that the guards know: nothing here names a subject matter."""

from __future__ import annotations

from cache.guards.lists import words

PRONOUNS = words(
    "i me my mine myself we us our ours you your yours it its this that these those one ones someone anyone somebody "
    "anybody there"
)
THIRD_PERSON = words("he him his she her hers they them their theirs")
BE = words("am is are was were be been being")
DO = words("do does did done doing")
HAVE = words("have has had having")
MODALS = words("can could may might must shall should will would ought need able possible allowed permitted")
PAST = words("was were did had")
PRESENT = words("am is are do does has have")
ARTICLES = words("a an the")
NEGATIONS = words("not no never none nothing nobody nowhere neither nor without cannot hardly")
SOURCE = words("from by")
GOAL = words("to into onto towards toward for")
# Prepositions that say which argument a word is, or nothing much; place and time ones (before, off, under) are content.
LIGHT_PREPOSITIONS = SOURCE | GOAL | words("of in on at with as about via")
CONJUNCTIONS = words("and or if whether so then than but")
# They colour a question without changing what it asks.
ADVERBS = words(
    "exactly actually really just simply please kindly possibly also ever even still quite very any some properly "
    "correctly"
)
QUESTION_WORDS = words("what which who whom whose when where why how")
IGNORABLE = (
    PRONOUNS | BE | DO | HAVE | MODALS | ARTICLES | LIGHT_PREPOSITIONS | CONJUNCTIONS | ADVERBS | QUESTION_WORDS
)  # fmt: skip
# They open a clause that may stand before or after what it qualifies.
SUBORDINATORS = words("if when while because once unless")
PERSONS = {
    **dict.fromkeys(words("i me my mine myself we us our ours"), "first"),
    **dict.fromkeys(words("you your yours"), "second"),
    **dict.fromkeys(words("he him his"), "he"),
    **dict.fromkeys(words("she her hers"), "she"),
    **dict.fromkeys(words("they them their theirs"), "they"),
}

PUNCTUATION = frozenset(".?!;:,")
