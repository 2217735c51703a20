"""Does a question ask for something that changes by itself? Then no stored answer may serve it, and none is stored.

No embedding shows it, so it is read off the wording, in two ways: by words for now and for what is volatile by nature
(price, stock, weather, score, status, delivery, balance, availability, opening), here, in five languages; and by the
question's structure, in English (`cache.live_english`) and Chinese (`cache.live_chinese`), since a lexicon finds only
what it knows. Neither counts where the question is timeless by its form ("what is a stock option", "how do I track a
parcel", a translation, something quoted) or speaks of a past year. docs/cache.md prints the figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, timedelta

from cache import live_chinese, live_english
from cache.canonical import both_ends
from cache.guards.dates import MONTHS
from cache.language import language_of

QUESTION_CHARS = 200  # at either end: what is read by structure, whose patterns' time grows with the square
NEAR_DAYS = 31  # a date this near is an appointment, a departure or a deadline, not history

_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|`[^`]*`|「[^」]*」|\w+\(\)")
_QUOTE_MARKS = ('"', "“", "`", "「", "()")

_START = r"(?:^|[.,:;!?] *)(?:so |please |can you |could you )*"  # of a sentence or a clause

# Forms that ask for knowledge, a procedure or a text, in which "price" or "today" is the subject and not a wish.
_TIMELESS = re.compile(
    _START + r"(?:(?:translate|write|compose|draft|rewrite|define)\b"
    r"|what(?:'s| is| are) (?:an?|(?:the )?(?:meaning|difference|definition|purpose|recipe))\b"
    r"|what (?:do|does|did) .* (?:mean|do)\b|what happens\b|why do(?:es)? \w+s?\b|how do(?:es)? (?:an? |\w+ rates)"
    r"|how do(?:es)? [^.?!]* work\b|how (?:is|are) [^.?!]*\w(?:ed|en|made)\W*$|who was the first\b"
    r"|how (?:do|can|could|should|would) (?:i|we|you|one)\b|how to\b)"
    r"|\bdifference between\b|\bwhat (?:should|can|do) (?:i|we) do\b"
    r"|什么是|是什么(?!价|时)|什么意思|区别|怎么(?:用|做|写|申请|产生)|如何(?!.*(?:现在|目前))|完成时|原理|一般|通常"
    r"|^wie (?:kann|ändere|funktioniert)|^comment |^cómo "
)

_UNIT_OF_TIME = r"(?:morning|afternoon|evening|night|week|weekend|month|quarter|year|season|\w+day)"
_NOW = (
    r"\b(?:today|tonight|tomorrow|yesterday|currently|nowadays|latest|newest|up[- ]to[- ]date|so far|just now|now)\b",
    r"\bat (?:the|this) (?:moment|time|present)\b|\bmost recent\b",
    rf"\b(?:this|last|past|next|coming) {_UNIT_OF_TIME}\b",
    # the adjective, not what flows through a wire
    r"(?<!electric )(?<!alternating )(?<!direct )\bcurrent (?!in\b|with\b|flow|through\b|is\b|account\b)[a-z]",
    r"今[天日晚早年]|明[天日晚早]|昨[天日晚]|现在|目前|当前|此刻|最新|最近|本[周月季]|这[周月几]|上周|下周|刚才|正在",
    r"\b(?:heute|jetzt|aktuell\w*|gerade|morgen|gestern|derzeit)\b",
    r"aujourd'hui|\b(?:maintenant|actuel\w*|demain|hier|en ce moment)\b",
    r"\b(?:hoy|ahora|actual|actualmente|mañana|ayer|oggi|adesso|hoje|agora)\b",
)

_GOODS = r"(?:order|parcel|package|shipment|delivery|driver|courier|refund|bus|train|flight|technician)"
_DONE = (
    r"(?:arrived?|shipped|delivered|paid|processed|through|succeed(?:ed)?|fail(?:ed)?|sent|received|merged|deployed|"
    r"approved)"
)
# What can be asked of a thing in its present state: whether it is done or going on, still, yet, already.
_POLAR = r"^(?:\W*\w+,)? *(?:is|are|has|have|do|does|did|will|can)\b"
_STATE = r"(?:open|closed|free|busy|crowded|full|delayed|on time|down|up|offline|online|green|red|valid)"
_VOLATILE = (
    # prices and rates
    r"\bhow much (?:is|are|does|do|for)\b|\b(?:price|cost) of\b(?!.*\bliving\b)|\w prices?\W*$|\btrading at\b",
    r"\b(?:exchange|interest|mortgage|inflation|unemployment) rates?\b|\bcheapest\b",
    # weather and traffic
    r"\b(?:weather|forecast|humidity|uv index|pollen|air quality|traffic|sunrise|sunset|storm)\b",
    r"\bwill it (?:rain|snow)\b",
    # results, rankings, news
    r"\bthe score\b|\bwho(?:'s| is| are) (?:leading|winning|ahead|on call)\b|\bhow did .* (?:close|play|do)\b",
    r"\b(?:news|headlines?|trending)\b|\bwho (?:won|is|was)\b.*\b(?:game|match|race|election|ceo|president|champion)\b",
    # orders, deliveries, payments
    r"\bstatus of\b|\b(?:delivery|order|shipping|flight|payment|ticket) status\b|\bmy next\b",
    rf"\bwhere(?:'s| is| are) (?:my|our|the|your) (?:\w+ )?{_GOODS}\b",
    r"\bwhen (?:will|does|is|are) (?:my|our|the)\b.*\b(?:arrive|come|leave|depart|due|ready|delivered)\b",
    rf"\b(?:has|have|did|was|were) (?:my|our|the)\b.*\b{_DONE}\b",
    r"\b(?:my|our) (?:\w+ )?(?:balance|order|parcel|package|shipment|refund)\b",
    # availability, opening, load
    r"\bin stock\b|\bavailable\b|\bavailability of\b|\bdelayed\b|\bstill open\b|\bcan (?:i|we) still\b",
    r"\b(?:are|is) there (?:an?|any)\b.*\b(?:left|free|deals?|outages?|seats?|tables?|tickets?|warning|strike)\b",
    r"\bhow many\b.*\b(?:left|remaining|queue|ahead of)\b|\b(?:i|we) have left\b",
    rf"{_POLAR}[^.?!]*\b(?:still|yet|already|anymore|no longer|back (?:up|in)|sold out)\b",
    r"(?<!why )\b(?:is|are) (?:the|my|our|your) [^.?!]{1,40}\w(?:ed|ing)(?: yet| already| again)?\W*$|\bis it \w+ing\b",
    r"\b(?:which|what|are|is) [^.?!]*\b(?:cancell?ed|postponed|disrupted|suspended|blocked|sold out)\b",
    r"\b(?:left|remaining) (?:on|in|for|at)\b|\bhow long is the (?:queue|line|wait)\b|\bwater level\b|\boutside\W*$",
    # a thing of the asker's or the shop's own, by its number
    r"\b(?:flight|order|ticket|parcel|shipment|invoice|booking|train|bus)(?: number| no\.?)? #?[a-z]{0,3}\d{2,}\b",
    r"\b(?:my|our) (?:last|latest|next) (?:payment|order|invoice|bill|appointment|delivery|statement|login|meeting)\b",
    # counts and fill levels of the moment
    r"\bhow many [^.?!]*\b(?:are|is) (?:\w+ing|there now|online|open|free|unread|pending)\b",
    r"\bhow many (?:unread|open|pending|new|active|available|free|unpaid|outstanding)\b",
    r"\bhow (?:full|busy|crowded|far has)\b",
    r"\b(?:battery|fuel|stock|water|noise) levels?\b|\b(?:occupancy|overdue|unread|vacant|on duty|on call|on sale)\b",
    # offers of the day, what a shop has
    r"\bdo you (?:still |currently )?(?:have|stock|carry|sell) (?:the|this|that|any|it|these|those)\b",
    r"\b(?:daily|weekly|today's) (?:specials?|menu|deals?|offers?)\b",
    r"\b(?:promotion|discount|coupon)\b[^.?!]*\b(?:running|valid|on)\b",
    r"\b(?:free|vacant|empty) (?:tables?|seats?|rooms?|slots?|spots?|spaces?|places?|desks?)\b",
    # weather and sky
    r"\b(?:wind speed|wind chill|snow depth|tides?|moon phase|(?:full|new) moon|rainfall|temperature (?:in|at|on))\b",
    rf"\b(?:is|are) (?!an?\b)[^.?!]*\b{_STATE}(?:\W*$| (?:on|at|from|between|until)\b)",
    r"\b(?:outages?|waiting time|wait time|how long is the wait|cpu load|on tv|calendar)\b",
    # the clock and the timetable
    r"\bwhat (?:time|day|date|day of the week|year) is it\b|\bhow (?:many days|long) (?:are left )?until\b",
    r"\bnext (?:bus|train|flight|tram|ferry|meeting|payment|game|match)\b",
    # Chinese, German, French, Spanish
    r"天气(?!和|与)|下雨吗|股价|汇率|多少钱|价格(?!弹性)|余额|有货|库存|空位|到哪|发货|到账|延误|在线吗|堵车|比分|谁赢|新闻",
    r"了吗|了没|签收|停运|还有.*吗|有没有空|空[车座房]|批下来|晚点|准点|几点了|[下近]一[班趟]|还有(?:货|票|位|空)|排队|(?:快递|包裹|订单).*(?:到|发|状态|哪)|优惠活动|什么时候(?:到|发|开门)",
    r"\b(?:wetter|bestellung|lieferung|kontostand|wechselkurs|verfügbar|geöffnet|pünktlich|ausverkauft|verspätet)\b",
    r"\bwie viel kostet\b",
    r"\b(?:météo|commande|solde|disponible|ouvert|pedido|saldo|abierto)\b|\btemps fait\b|\bcombien coûte\b",
    r"\bcuánto (?:cuesta|vale)\b|\btiempo hace\b|\bhay [^.?!]*\blibres?\b",
)


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern's top level."""
    branches, depth, start = [], 0, 0
    for token in re.finditer(r"\\.|\[(?:\\.|[^\]\\])*\]|[()|]", pattern):
        if token[0] == "|" and depth == 0:
            branches.append(pattern[start : token.start()])
            start = token.end()
        depth += {"(": 1, ")": -1}.get(token[0], 0)
    return [*branches, pattern[start:]]


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """All patterns as one, which asks once whether a word starts here, and then for its first letter: most of them
    begin with a word, and tried letter by letter a hundred of them took a tenth of a request's time."""
    branches = [branch for pattern in patterns for branch in _branches(pattern)]
    of_words = [branch.removeprefix(r"\b") for branch in branches if branch.startswith(r"\b")]
    others = [branch for branch in branches if not branch.startswith(r"\b")]
    by_letter: dict[str, list[str]] = {}
    for branch in (each for word in of_words for each in _opened(word)):
        known = re.match(r"[a-z](?![?*{])", branch)
        by_letter.setdefault(known[0] if known else "", []).append(branch[1:] if known else branch)
    unknown = by_letter.pop("", [])
    words = [f"{letter}(?:{'|'.join(rest)})" for letter, rest in sorted(by_letter.items())]
    return re.compile("|".join([rf"\b(?=\w)(?:{'|'.join([*words, *unknown])})", *others]))


def _ascii_only(patterns: Iterable[str]) -> list[str]:
    """Without the branches that begin with a letter of another script, for text that has none."""
    return [branch for pattern in patterns for branch in _branches(pattern) if branch[0].isascii()]


def _opened(branch: str) -> list[str]:
    """A branch that begins with a choice of words, as one branch a word."""
    choice = re.match(r"\(\?:([^()?*+{\[\\]*)\)(?![?*+{])(.*)", branch, re.DOTALL)
    return [word + choice[2] for word in choice[1].split("|")] if choice else [branch]


_LIVE = _any_of((*_NOW, *_VOLATILE))
_LIVE_ASCII = _any_of(_ascii_only((*_NOW, *_VOLATILE)))

_MAYBE_DATE = re.compile(rf"\b(?:{'|'.join(MONTHS)})|\d-\d|月")
_YEAR = re.compile(r"\b(1[0-9]{3}|20[0-9]{2})\b")
_DATES = (
    re.compile(r"\b(?P<year>20\d\d)-(?P<month>\d\d?)-(?P<day>\d\d?)\b"),
    re.compile(rf"\b(?P<name>{'|'.join(MONTHS)}) (?P<day>\d\d?)(?:st|nd|rd|th)?(?:,? (?P<year>20\d\d))?\b"),
    re.compile(rf"\b(?P<day>\d\d?)(?:st|nd|rd|th)? (?:of )?(?P<name>{'|'.join(MONTHS)})(?:,? (?P<year>20\d\d))?\b"),
    re.compile(r"(?:(?P<year>20\d\d)年)?(?P<month>\d\d?)月(?P<day>\d\d?)[日号]"),
)


def is_live(text: str, *, today: date) -> bool:
    """Whether `text` asks for something volatile. `today` is the caller's date, for dates near it."""
    asked = both_ends(text).replace("’", "'").strip()
    if any(mark in asked for mark in _QUOTE_MARKS):
        asked = _QUOTED.sub(" ", asked).strip()
    lowered = asked.lower()
    if any(abs(day - today) <= timedelta(days=NEAR_DAYS) for day in _dates_in(lowered, today)):
        return True
    if any(int(year) < today.year for year in _YEAR.findall(lowered)):
        return False
    question = asked if len(asked) <= 2 * QUESTION_CHARS else f"{asked[:QUESTION_CHARS]}\n{asked[-QUESTION_CHARS:]}"
    if not question.isascii() and language_of(question) == "zh" and live_chinese.why_live(question) is not None:
        return True
    if _TIMELESS.search(lowered):
        return False
    live = _LIVE_ASCII if lowered.isascii() else _LIVE
    return live.search(lowered) is not None or live_english.why_live(question) is not None


def _dates_in(text: str, today: date) -> list[date]:
    found: list[date] = []
    if _MAYBE_DATE.search(text) is None:
        return found
    for pattern in _DATES:
        for match in pattern.finditer(text):
            parts = match.groupdict()
            month = MONTHS.index(parts["name"]) + 1 if parts.get("name") else int(parts["month"])
            try:
                found.append(date(int(parts["year"] or today.year), month, int(parts["day"])))
            except ValueError:  # 31 February, month 13: no date
                continue
    return found
