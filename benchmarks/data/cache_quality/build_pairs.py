"""Builds pairs_en.jsonl and pairs_zh.jsonl from the hand-written cards and templates beside it; deterministic.

Run once, before any guard existed; the pair files are never edited to please a guard. Each line: `a`, `b` (two
questions), `label` (paraphrase or negative), `cls` (how the two differ), `split` (dev or final by a hash of the
intent's group, so that one intent never stands in both halves), `group`, `lang`.

Paraphrase classes, in equal parts for the cards: surface (contraction, case, punctuation, politeness, a typo), light
(another question frame), lexical (a synonym), restructured (another sentence).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
Pair = dict[str, str]


def build(lang: str) -> list[Pair]:
    pairs: list[Pair] = []
    for path in sorted(HERE.glob(f"{lang}_cards*.txt")):
        for number, card in enumerate(read_cards(path)):
            pairs += card_pairs(card, f"{path.stem}-{number}", lang)
    for number, template in enumerate(read_templates(HERE / f"{lang}_templates.txt")):
        pairs += template_pairs(template, f"{lang}_templates-{number}", lang)
    seen: set[tuple[str, str]] = set()
    unique = []
    for pair in pairs:
        key = (pair["a"], pair["b"])
        if pair["a"] != pair["b"] and key not in seen:
            seen.add(key)
            unique.append(pair)
    return unique


def split_of(group: str) -> str:
    return "final" if hashlib.sha256(group.encode()).digest()[0] % 2 else "dev"


def pair(a: str, b: str, label: str, cls: str, group: str, lang: str) -> Pair:
    return {"a": a, "b": b, "label": label, "cls": cls, "split": split_of(group), "group": group, "lang": lang}


def read_cards(path: Path) -> Iterator[list[tuple[str, str]]]:
    card: list[tuple[str, str]] = []
    for line in path.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head, _, text = line.partition(": ")
        if head == "B" and card:
            yield card
            card = []
        card.append((head, text.strip()))
    yield card


def card_pairs(card: list[tuple[str, str]], group: str, lang: str) -> Iterator[Pair]:
    rng = random.Random(f"weir {group}")
    base = card[0][1]
    yield pair(base, SURFACE[lang](base, rng), "paraphrase", "surface", group, lang)
    light = LIGHT[lang](base, rng)
    if light is not None:
        yield pair(base, light, "paraphrase", "light", group, lang)
    for head, text in card[1:]:
        if head in ("L", "R"):
            yield pair(base, text, "paraphrase", {"L": "lexical", "R": "restructured"}[head], group, lang)
        else:
            yield pair(base, text, "negative", head.removeprefix("N "), group, lang)


def surface_en(text: str, rng: random.Random) -> str:
    contracted = re.sub(r"\b(What|Where|Who|How) is\b", r"\1's", text)
    words = [i for i, word in enumerate(text.split()) if len(word) > 6 and word.isalpha()]
    kinds = ["lower", "thanks", "hello", "please", "marks"]
    kinds += ["contract"] * 2 if contracted != text else []
    kinds += ["typo"] if words else []
    kind = rng.choice(kinds)
    if kind == "contract":
        return contracted
    if kind == "lower":
        return text.lower().rstrip("?")
    if kind == "thanks":
        return text + rng.choice([" Thanks!", " Thank you.", " Thanks in advance!"])
    if kind == "hello":
        return rng.choice(["Hi, ", "Hello! ", "Hey, "]) + text
    if kind == "please":
        return rng.choice(["Please tell me: ", "Quick question: ", "Could you help me? "]) + text
    if kind == "marks":
        return text.rstrip("?") + rng.choice([" ?", "??", "?!", "."])
    parts = text.split()
    spot = rng.choice(words)
    word = parts[spot]
    at = rng.randrange(2, len(word) - 2)
    parts[spot] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(parts)


FRAMES_EN = [
    (
        r"How do I (.+)\?",
        [
            "How can I {0}?",
            "How would I {0}?",
            "What is the best way to {0}?",
            "How to {0}?",
            "What are the steps to {0}?",
            "Can you tell me how to {0}?",
            "I want to {0}. How do I do that?",
        ],
    ),
    (
        r"What is (.+)\?",
        ["Tell me what {0} is.", "Can you tell me {0}?", "I would like to know {0}.", "What exactly is {0}?"],
    ),
    (r"Can I (.+)\?", ["Am I able to {0}?", "Is it possible to {0}?", "May I {0}?", "Could I {0}?"]),
    (r"How many (.+)\?", ["Do you know how many {0}?", "Tell me how many {0}.", "Exactly how many {0}?"]),
    (
        r"(Why|Where|When|Who|Which|What) (.+)\?",
        ["Do you happen to know: {0} {1}?", "My question is: {0} {1}?", "So {0} {1}?"],
    ),
    (r"(.+)\?", ["I was wondering: {0}?", "One question, {0}?", "I need to know: {0}?"]),
]


def light_en(text: str, rng: random.Random) -> str | None:
    for pattern, frames in FRAMES_EN:
        match = re.fullmatch(pattern, text)
        if match:
            parts = [part if part[:1] == "I" else part[:1].lower() + part[1:] for part in match.groups()]
            return rng.choice(frames).format(*parts)
    return None


def surface_zh(text: str, rng: random.Random) -> str:
    bare = text.rstrip("？")
    return rng.choice(
        [
            bare,
            bare + "?",
            bare + "??",
            "请问" + text,
            "你好，" + text,
            bare + "呢？",
            text + "谢谢！",
            "请问一下，" + text,
            "麻烦问一下，" + text,
            "您好！" + text,
        ]
    )


FRAMES_ZH = [
    (
        r"(.*)怎么(.+)？",
        ["{0}如何{1}？", "{0}要怎么{1}？", "{0}该怎样{1}？", "我想知道{0}怎么{1}。", "{0}应该怎么{1}？"],
    ),
    (r"(.*)可以(.+)吗？", ["{0}能{1}吗？", "{0}是否可以{1}？", "{0}可不可以{1}？", "{0}能不能{1}？"]),
    (r"(.*)是什么？", ["{0}是啥？", "{0}指的是什么？", "什么是{0}？"]),
    (r"(.*)多少(.+)？", ["{0}几多{1}？", "我想了解{0}多少{1}。", "{0}大概多少{1}？"]),
    (r"(.*)吗？", ["{0}么？", "想问下{0}吗？", "我想确认一下，{0}吗？"]),
    (r"(.*)？", ["我想知道{0}。", "想了解一下{0}？", "能告诉我{0}吗？"]),
]


def light_zh(text: str, rng: random.Random) -> str | None:
    for pattern, frames in FRAMES_ZH:
        match = re.fullmatch(pattern, text)
        if match:
            return rng.choice(frames).format(*match.groups())
    return None


SURFACE = {"en": surface_en, "zh": surface_zh}
LIGHT = {"en": light_en, "zh": light_zh}


def read_templates(path: Path) -> Iterator[dict[str, list[str] | str]]:
    template: dict[str, list[str] | str] = {}
    forms: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        head, _, text = line.partition(" ")
        if head == "T":
            forms = []
            template = {"cls": text.split()[0], "forms": forms}
        elif head == "F:":
            forms.append(text)
        elif head == "S:":
            values = text.strip("|").split("|") if text.startswith("|") else text.split()
            yield template | {"values": values, "slots": re.findall(r"\{(\w)\}", forms[0])}


def template_pairs(template: dict[str, list[str] | str], group: str, lang: str) -> Iterator[Pair]:
    rng = random.Random(f"weir {group}")
    cls, forms, values, slots = (template[name] for name in ("cls", "forms", "values", "slots"))
    assert isinstance(cls, str)
    rows = [dict(zip(slots, value.split(":"), strict=True)) for value in values]
    for index in sorted(rng.sample(range(len(rows)), min(4, len(rows)))):
        first, second = (form.format(**rows[index]) for form in forms[:2])
        yield pair(first, second, "paraphrase", "template", group, lang)
    if cls == "direction":
        for index, row in enumerate(rows):
            a, b = slots
            form = forms[index % len(forms)]
            yield pair(form.format(**row), form.format(**{a: row[b], b: row[a]}), "negative", cls, group, lang)
        return
    combos = [(i, j) for i in range(len(rows)) for j in range(i + 1, len(rows))]
    for i, j in sorted(rng.sample(combos, min(5, len(combos)))):
        form = rng.choice(forms)
        if cls == "negation" and i > 0:
            continue  # "are not" and "are never" ask the same: only the positive row differs from the others
        yield pair(form.format(**rows[i]), form.format(**rows[j]), "negative", cls, group, lang)
    # and once with another phrasing as well as another value
    i, j = combos[0]
    other = {"cls": cls if len(forms) < 2 else f"{cls}+reworded"}
    yield pair(forms[0].format(**rows[i]), forms[-1].format(**rows[j]), "negative", other["cls"], group, lang)


if __name__ == "__main__":
    for language in ("en", "zh"):
        lines = [json.dumps(item, ensure_ascii=False) for item in build(language)]
        (HERE / f"pairs_{language}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
