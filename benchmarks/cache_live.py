"""Recall and precision of the live-data detector on its labelled lists.

    python -m benchmarks.cache_live [--split held-out] [--details]

`live.tsv` (200) was written before the detector. `live_fresh`, `live_final` and `live_dev` were written after it, one
after the other, and each was used to widen it once measured; their first figures stand in docs/cache.md.
`live_unseen.tsv` is only measured: nobody looked at its mistakes.
"""

from __future__ import annotations

import argparse
from datetime import date

from benchmarks.cache_quality import DATA
from cache.live_data import is_live

TODAY = date(2026, 11, 29)
FILES = {
    "known": ("live.tsv", "live_fresh.tsv", "live_final.tsv", "live_dev.tsv", "live_unseen.tsv"),
    "held-out": ("held_out_live.tsv",),
}


def load(name: str) -> list[tuple[str, str]]:
    """The (label, question) rows of one file; label is "live" or "stable"."""
    rows = (line.split("\t") for line in (DATA / name).read_text("utf-8").splitlines())
    return [(label, question) for label, question in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=list(FILES), default="known")
    parser.add_argument("--details", action="store_true", help="name the mistakes")
    arguments = parser.parse_args()
    for name in FILES[arguments.split]:
        rows = load(name)
        found = [(label, question, is_live(question, today=TODAY)) for label, question in rows]
        hit = sum(label == "live" and live for label, _, live in found)
        recall = hit / sum(label == "live" for label, _, _ in found)
        precision = hit / sum(live for _, _, live in found)
        print(f"{name}: {len(rows)} questions, recall {recall:.1%}, precision {precision:.1%}")
        if arguments.details:
            for label, question, live in found:
                if live != (label == "live"):
                    print(f"  {'missed' if label == 'live' else 'bypassed'}: {question}")


if __name__ == "__main__":
    main()
