"""The quality plot as an SVG written by hand: no plotting library for one figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP = 460, 300, 56, 34
COLOURS = {"served": "#1f77b4", "wrong": "#d62728"}


def draw(recorded: Sequence[dict[str, str]]) -> str:
    """One panel a language: shares over the threshold on the final half, guards on (solid) and off (dashed).

    Of several measurements the last one counts.
    """
    languages = sorted({row["language"] for row in recorded})
    panels = [_panel(recorded, language, index) for index, language in enumerate(languages)]
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT + 60}"'
    style = "text{font:12px sans-serif}.axis{stroke:#888;fill:none}.grid{stroke:#e5e5e5}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{"".join(panels)}</svg>\n'


def _panel(recorded: Sequence[dict[str, str]], language: str, index: int) -> str:
    rows = [row for row in recorded if row["language"] == language and row["split"] == "final"]
    latest = {(row["guards"], float(row["threshold"])): row for row in rows}
    thresholds = sorted({threshold for _, threshold in latest})
    low, high = thresholds[0], thresholds[-1]

    def x(threshold: float) -> float:
        return LEFT + (threshold - low) / (high - low) * (WIDTH - LEFT - 20)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - 30)

    parts = [f'<g transform="translate({index * WIDTH} 0)">']
    title = f"{language}: share served over cosine threshold (final half)"
    parts.append(f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>')
    for tenth in range(0, 11, 2):
        line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(tenth / 10):.1f}" y2="{y(tenth / 10):.1f}"/>'
        parts.append(line + f'<text x="{LEFT - 40}" y="{y(tenth / 10) + 4:.1f}">{tenth * 10} %</text>')
    for threshold in thresholds:
        parts.append(f'<text x="{x(threshold) - 12:.1f}" y="{HEIGHT - 10}">{threshold:.2f}</text>')
    for column, name in (("served_paraphrases", "served"), ("wrong_hits", "wrong")):
        for guards, dash in (("on", ""), ("off", ' stroke-dasharray="5 4"')):
            known = [(t, float(latest[guards, t][column])) for t in thresholds if (guards, t) in latest]
            points = " ".join(f"{x(t):.1f},{y(share):.1f}" for t, share in known)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dash}/>')
    legend = "blue: paraphrases served, red: near misses served; solid: guards on, dashed: off"
    parts.append(f'<text x="{LEFT}" y="{HEIGHT + 20}">{escape(legend)}</text></g>')
    return "".join(parts)
