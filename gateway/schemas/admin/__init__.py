"""Bodies of `/admin/v1`: one file a subject, as the controllers. Unknown fields are refused.

Money is text in USD with every digit ("0.0375"); where a whole number of nano-USD stands, its name ends in
`_nano_usd`. Moments are ISO 8601 with a time zone.
"""

from __future__ import annotations
