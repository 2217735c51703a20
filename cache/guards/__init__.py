"""Guards: reasons why the nearest question is nevertheless another question. One subject a file.

Cosines do not tell "from London to Paris" from "from Paris to London" (0.998), so every winner must pass all of these.
They are structural: closed classes of the language (numerals, calendar, units, function words) and comparisons of
form; no table holds subject matter. They err towards refusing: a refusal costs one generation, a wrong answer trust.
"""
