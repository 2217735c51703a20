"""The error tree of billing. The gateway translates it to HTTP at one place.

BillingError
├── Unavailable                 our own fault: 503, never 401 or 429
│   ├── AuthUnavailable         the key cannot be looked up now
│   ├── LimitsUnavailable       Redis is away and a hard budget has no grace left
│   ├── PolicyUnavailable       limits or prices could not be read even once
│   └── LedgerUnavailable       neither SQL nor the journal took the row
├── AuthError                   401
│   ├── InvalidKey              malformed, unknown, revoked or wrong
│   └── KeyExpired
├── Forbidden                   403: the actor's role does not allow it
├── NotFound                    404: absent, or another tenant's
├── Conflict                    409: the name is taken, or the row was booked with another amount
│   └── LedgerConflict
├── Invalid                     400: a value outside its bounds; names the field, the value, the limit
├── UnknownPrice                no price is in force for the model: refused, never free
├── QuotaDenied                 429: names scope, limit and when to retry
├── HoldLost                    the hold was reaped while its stream still ran: cut the stream
└── ScriptsFlushed              Redis forgot our scripts; nothing was done: run the stage once more
"""

from __future__ import annotations


class BillingError(Exception):
    """Base of everything billing raises on purpose."""


class Unavailable(BillingError):
    """Something of ours is away. `retry_after_s` is a whole number of seconds for Retry-After."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AuthUnavailable(Unavailable):
    """The key cannot be checked now: SQL is away and the key is not in the cache."""


class LimitsUnavailable(Unavailable):
    """Redis is away and a hard budget may not be spent unseen."""


class PolicyUnavailable(Unavailable):
    """Limits or prices could not be read from SQL, and no earlier reading is at hand."""


class LedgerUnavailable(Unavailable):
    """Neither SQL nor the local journal made the row durable: the answer's end must not go out."""


class AuthError(BillingError):
    """The caller's key does not open anything."""


class InvalidKey(AuthError):
    """Malformed, unknown, revoked or wrong. The message never holds the key."""


class KeyExpired(AuthError):
    """The key was right once; its expiry or its rotation's grace has passed."""


class Forbidden(BillingError):
    """The actor's role or scopes do not allow this act."""


class NotFound(BillingError):
    """Absent, or another tenant's: the two read the same on purpose."""


class Conflict(BillingError):
    """The name is taken, or the state does not allow the act."""


class LedgerConflict(Conflict):
    """A row of the same (request_id, attempt, kind, seq) is booked with another content: an alarm."""


class Invalid(BillingError):
    """A value outside its bounds. `param` names the field."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownPrice(BillingError):
    """No price is in force for the model. Zero must be written down to be free."""


class QuotaDenied(BillingError):
    """A limit refused the request; nothing was used up.

    `scope` is tenant, project or key; `limit` the quota's name (rpm, tpm, budget_month ...); `model` is set when the
    limit is one for a model. `retry_after_s` counts seconds until it can pass, None when waiting does not help
    (`too_large`: the request alone passes the limit). `money` tells budgets from rates. Amounts are left out on
    purpose: they are for admins, not for end users.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: str,
        limit: str,
        model: str | None = None,
        retry_after_s: float | None,
        money: bool = False,
        too_large: bool = False,
        degraded: bool = False,
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.limit = limit
        self.model = model
        self.retry_after_s = retry_after_s
        self.money = money
        self.too_large = too_large
        self.degraded = degraded


class HoldLost(BillingError):
    """The hold's lease ran out and the reaper booked the request as interrupted: cut the stream."""


class ScriptsFlushed(BillingError):
    """Redis answered NOSCRIPT: the stage did nothing. Run it once more with `Stage.run`, which loads the scripts."""
