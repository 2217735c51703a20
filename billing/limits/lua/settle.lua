-- The end: hold and leases released, the exact amount in their place, unused tokens given back. Idempotent: the hold
-- stays behind as a short-lived mark of having been settled.
-- KEYS: hold, holds, leases, budgets, rates (of the hold's stage)
-- ARGV: request id, #leases, #budgets, #rates, amount, tokens, us since the row was booked, mark's life in ms,
--       (limit, period us) a rate
-- Returns {1 settled now | 0 settled before | 2 no hold was there, used a budget ('' where there is no counter) ...}
local request_id, num_leases, num_budgets, num_rates = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local amount, tokens, booked_ago, mark_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local hold, holds, first_budget = KEYS[1], KEYS[2], 3 + num_leases
local first_rate = first_budget + num_budgets
local now = now_us()

drop_leases(3, num_leases, request_id)
redis.call('ZREM', holds, request_id)

local state = redis.call('HGET', hold, 'state')
local outcome = 1
if state == 'done' then
  outcome = 0
elseif state then
  local held, held_tokens = redis.call('HGET', hold, 'amount'), tonumber(redis.call('HGET', hold, 'tokens'))
  local prior = redis.call('HGET', hold, 'prior') or '0'
  for i = first_budget, first_rate - 1 do
    if redis.call('HEXISTS', KEYS[i], 'used') == 1 then
      redis.call('HINCRBY', KEYS[i], 'used', minus(held))
      redis.call('HINCRBY', KEYS[i], 'held', minus(held))
      redis.call('HINCRBY', KEYS[i], 'used', amount)
      redis.call('HINCRBY', KEYS[i], 'used', minus(prior))
    end
  end
  for i = 1, num_rates do
    local at = 9 + (i - 1) * 2
    give_back_rate(KEYS[first_rate + i - 1], tonumber(ARGV[at]), tonumber(ARGV[at + 1]), held_tokens - tokens, now)
  end
else
  -- Redis lost its data, or this request was served while it was away. A counter seeded from the ledger after the row
  -- was booked has the row in it; an older one has not.
  outcome = 2
  for i = first_budget, first_rate - 1 do
    local seeded = redis.call('HGET', KEYS[i], 'seeded')
    if seeded and tonumber(seeded) < now - booked_ago then redis.call('HINCRBY', KEYS[i], 'used', amount) end
  end
end
if outcome ~= 0 then
  redis.call('DEL', hold)
  redis.call('HSET', hold, 'state', 'done', 'amount', amount)
end
redis.call('PEXPIRE', hold, mark_ms)

local reply = {outcome}
for i = first_budget, first_rate - 1 do reply[#reply + 1] = redis.call('HGET', KEYS[i], 'used') or '' end
return reply
