"""Money and limits: tenants, keys, quotas, holds, the ledger, prices, reports. No HTTP.

The surface, by what a caller wants:

- migrate a database: `await billing.db.upgrade(url)`
- put everything together: `billing.service.Billing(BillingSettings(...), redis, secret)`, `start()`, `stop()`; its
  parts `auth`, `prices`, `admission`, `ledger`, `db`, `bus` are what the lines below call
- the server secret, salts, encryption: `billing.secrets.ServerSecret.load(path)`, `.cache_salt(tenant, project)`
- turn a key into a Principal: `await auth.authenticate(presented)`
- the price of a model: `rates = await prices.rates(tenant_id, model, service_tier=...)`
- admit: `ticket = await admission.open(principal, model, request_id)`, `await admission.admit(ticket)`; in one trip
  with the cache: `stage = admission.admit_stage(ticket)`, `await trips.execute([*stage.commands, ...], deadline_s=)`,
  `stage.parse(replies[:1])`, and on a Redis error `admission.note_away(exc)`, `admission.admit_locally(ticket)`
- hold tokens and money: `await admission.hold(ticket, HoldTerms(prompt_tokens=, max_output_tokens=, rates=))`
- while it streams: `ticket.note(prompt_tokens=, cached_tokens=, output_tokens=)`; when `ticket.needs_extension`, `await
  admission.extend(ticket)`; cut at `ticket.granted_output_tokens` when `ticket.at_end`, at once when `ticket.lost`
- book, before the last frame: `await ledger.book(Entry.priced(...))` or `Entry.cache_hit(...)`
- settle, after it: `await admission.settle(ticket, amount_nano=entry.amount_nano_usd, tokens=entry.total_tokens)`; in
  one trip with the cache's store `settle_stage`, and on a Redis error `settle_later`
- end without a hold (cache hit, early error): `await admission.release(ticket)`, or `release_stage`
- administer: functions of `tenants`, `keys`, `prices`, `limits.rules`, `audit`, with a session of `db.begin()` and an
  `Actor`: role checks and the audit log are built in
- what is left and when it resets: `await limits.status.limit_status(redis, session, actor, tenant=...)`
- change in bulk from a file: `apply.parse`, `apply.plan` (the difference), `apply.apply`
- routes, aliases, upstreams: `config.set_item`, `list_items`; changes arrive on `bus` as kind `config`
- compare and repair: `await billing.reconciler.check()`, `.repair(ledger, reaper)`
- webhooks: `alerts.create_endpoint`; the gateway passes `deliver` (its HTTP client) to `Billing`
- usage and costs in OpenAI's buckets: `reports.usage.usage`, `reports.usage.costs`
- report: `await report_named("spend").run(session, actor, ReportQuery(by=("tenant", "model")))`

Errors are `billing.errors`; the gateway translates them at one place. Redis clients must not decode responses.
"""
