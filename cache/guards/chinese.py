"""A Chinese question taken apart for the guards, without word segmentation: closed classes by pattern, then characters.

Only question words, particles, modals, numerals, calendar words, measures and politeness are listed; no subject matter.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import msgspec

from cache.guards.numerals import han_value

# Asking by denying, the modal forms, and the question words, each to one sign that no question contains.
_FORMS: tuple[tuple[str, str], ...] = (
    (r"可不可以|能不能够?|能否(?!决)|是否可以|是否能够?|可否", "\ue001"),
    (r"是不是|是否", ""),
    (r"有没有|有无", "有"),
    (r"要不要|需不需要", "要"),
    (r"需要", "要"),
    (r"之后", "以后"),
    (r"之前", "以前"),
    (r"为什么|为何|为啥|怎么会|干嘛", "\ue002"),
    (r"什么时候|何时|几时|哪一?天", "\ue003"),
    (r"什么人|哪些人|哪个人|哪位|谁", "\ue004"),
    (r"什么地方|哪里|哪儿|何处", "\ue005"),
    (r"(?:应该|应当|要|该)?(?:怎么样|怎么|怎样|如何|咋样?)", "\ue006"),
    (r"多久|多长时间|多少时间", "\ue009"),
    (r"[是有]?(?:多少|几多|几(?=[\u4e00-\u9fff]))", "\ue007"),
    (r"什么|哪些|哪种|哪个|啥", "\ue008"),
    (r"^\ue008是(.+)$", "\\1是\ue008"),
    (r"(\ue005)(?:可以|能)?找到", "\\1"),
)
_ASKS = re.compile("[\ue002-\ue009]")
_MAY = re.compile(r"可以|能够|能(?![力量源耗效])")
_NEGATION = re.compile(r"不(?!锈|同)|没有?|无(?!线|锡)|未|别(?=[再要])|非(?!洲)")
_WRAPPING = re.compile(
    r"^(?:(?:您好|你好|嗨|哈喽|早上好|下午好|晚上好|请教|请问|麻烦|打扰|想问|问|我想|我|想要?|知道|了解|确认|能告诉我|告诉我|"
    r"请告诉我|一下|下|一个问题)[，,。！!、：:\s]*)+"
)
_CLOSING = re.compile(
    r"(?:[，,。！!？?\s]*(?:谢谢您?你?|多谢|感谢|麻烦了|呢|吗|(?<![什怎这那多])么|啊|呀|吧|嘛))*[，,。！!？?\s]*$"
)
# 在 like "at" says where something stands, with or without it; 被 and 给 say who does it to whom, and stay.
_PARTICLES = re.compile(r"[的了吗呢么啊呀吧嘛将把在]|一下|大概")
_CODE = re.compile(r"[A-Za-z0-9]+(?:[-_./+#]*[A-Za-z0-9+#]+)*")
_TIME = re.compile(
    r"[\d一二三四五六七八九十〇零两]+(?:年|月|日|号|点钟?|时(?!间))|(?:周|星期|礼拜)[一二三四五六日天末]|[今明][天日年早晚]|昨[天日晚]|[前后]天|去年|本[周月年季]"
    r"|[上下]个?[周月]|每[天日年月周]|以前|以后|上午|下午|早上|晚上|中午|凌晨|半夜|春天|夏天|秋天|冬天"
)
_NUMBER = re.compile(r"第?(?:\d+(?:\.\d+)*|[零一二三四五六七八九十百千万两〇]+)")
# Characters that count: what follows a number or 多少 and is one of these is a measure.
_MEASURE = re.compile(
    r"(?:[\d零一二三四五六七八九十百千万两〇]|\ue007)(毫米|厘米|分米|公里|千米|英里|英尺|英寸|海里|米|毫克|千克|公斤|克|斤|两|吨|磅|盎司|"
    r"毫升|加仑|升|摄氏度|华氏度|度|分钟|小时|秒|天|周|个?星期|个?月|个?季度|个?学期|年|元|块|角|分|美元|欧元|人|个)"
)


class HanQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """`core`: the characters that carry meaning, in order, question words as private-use signs; the rest as found."""

    core: str
    asks: frozenset[str]
    negations: int
    numbers: tuple[str, ...]
    codes: tuple[str, ...]
    times: tuple[str, ...]
    measures: tuple[str, ...]


@lru_cache(maxsize=4096)
def parse(text: str) -> HanQuestion:
    """Takes a question apart; never fails, whatever the text."""
    text = unicodedata.normalize("NFKC", text).strip()
    text = _CLOSING.sub("", _WRAPPING.sub("", text)) or text
    for pattern, sign in _FORMS:
        text = re.sub(pattern, sign, text)
    text = _MAY.sub("\ue001", text)
    codes = tuple(code.casefold() for code in _CODE.findall(text) if not code.isdigit())
    numbers = tuple(_number(match) for match in _NUMBER.findall(_TIME.sub(" ", _CODE.sub(_keep_digits, text))))
    core = _NUMBER.sub(lambda match: _number(match[0]), _PARTICLES.sub("", text))
    core = re.sub(r"[^\w\ue001-\ue009]", "", core).casefold()
    return HanQuestion(
        core=core,
        asks=frozenset(_ASKS.findall(text)),
        negations=len(_NEGATION.findall(text)),
        numbers=numbers,
        codes=codes,
        times=tuple(_NUMBER.sub(lambda match: _number(match[0]), time) for time in _TIME.findall(text)),
        measures=tuple(_MEASURE.findall(text)),
    )


def _keep_digits(match: re.Match[str]) -> str:
    return match[0] if match[0].replace(".", "").isdigit() else " "


def _number(numeral: str) -> str:
    ordinal, digits = ("第", numeral[1:]) if numeral.startswith("第") else ("", numeral)
    value = digits if digits[0].isdigit() else str(han_value(digits))
    return ordinal + value
