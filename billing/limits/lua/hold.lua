-- Stage 2: tokens per minute and day, and money. Refused, it gives back in the same call what admitting took.
-- KEYS: hold, holds, rates of this stage, budgets, admission's rates, leases
-- ARGV: request id, #rates, #budgets, #admission's rates, #leases, lease us, tokens, amount, output tokens granted,
--       meta, (limit, period us, enforce) a rate, limit a budget ('' is none), (limit, period us) an admission's rate
-- Returns {1, granted, (remaining, reset us) a rate}
--      or {0, 'rate' | 'budget', which (from 1), wait us (-1: never), remaining, reset us}
--      or {2, which budgets (from 1) have no counter yet ...}: nothing taken, nothing given back
local request_id = ARGV[1]
local num_rates, num_budgets, num_admitted, num_leases =
  tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local lease_us, tokens, amount, granted, meta = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]
local hold, holds, first_rate, first_budget = KEYS[1], KEYS[2], 3, 3 + num_rates
local first_admitted = first_budget + num_budgets
local rate_args, budget_args = 11, 11 + num_rates * 3
local admitted_args = budget_args + num_budgets
local now = now_us()

local function give_back_admission()
  for i = 1, num_admitted do
    local at = admitted_args + (i - 1) * 2
    give_back_rate(KEYS[first_admitted + i - 1], tonumber(ARGV[at]), tonumber(ARGV[at + 1]), 1, now)
  end
  drop_leases(first_admitted + num_admitted, num_leases, request_id)
end

local state, prior = redis.call('HGET', hold, 'state'), '0'
if state == 'done' then
  -- A line of a batch that was broken off and is asked again under its id. The books correct its row, so the counters
  -- take what the first try cost out again when this one settles.
  prior = redis.call('HGET', hold, 'amount') or '0'
elseif state == 'unheld' then
  prior = redis.call('HGET', hold, 'prior')
elseif state then -- the same request again, after a lost reply
  local reply = {1, tonumber(redis.call('HGET', hold, 'granted') or granted)}
  for i = 1, num_rates do
    local at = rate_args + (i - 1) * 3
    local _, _, remaining, reset = peek_rate(KEYS[first_rate + i - 1], tonumber(ARGV[at]), tonumber(ARGV[at + 1]), 0, now)
    reply[#reply + 1] = remaining
    reply[#reply + 1] = reset
  end
  return reply
end

local unseeded = {2}
for i = 1, num_budgets do
  if redis.call('HEXISTS', KEYS[first_budget + i - 1], 'used') == 0 then unseeded[#unseeded + 1] = i end
end
if #unseeded > 1 then return unseeded end

local tats, reply, worst = {}, {1, tonumber(granted)}, nil
for i = 1, num_rates do
  local at = rate_args + (i - 1) * 3
  local limit, period, enforce = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
  local tat, wait, remaining, reset = peek_rate(KEYS[first_rate + i - 1], limit, period, tokens, now)
  if wait ~= 0 and enforce and (worst == nil or wait == -1 or (worst[4] ~= -1 and wait > worst[4])) then
    worst = {0, 'rate', i, wait, remaining, reset}
  end
  tats[i] = tat
  reply[#reply + 1] = remaining
  reply[#reply + 1] = reset
end
if worst then
  give_back_admission()
  return worst
end

-- Taken first and taken back if one refuses: the script is atomic, and HINCRBY does the sum in 64 bits.
for i = 1, num_budgets do
  local key, limit = KEYS[first_budget + i - 1], ARGV[budget_args + i - 1]
  redis.call('HINCRBY', key, 'used', amount)
  if limit ~= '' and greater(redis.call('HGET', key, 'used'), limit) then
    for j = 1, i do redis.call('HINCRBY', KEYS[first_budget + j - 1], 'used', minus(amount)) end
    give_back_admission()
    return {0, 'budget', i, greater(amount, limit) and -1 or 0, 0, 0}
  end
end
for i = 1, num_budgets do redis.call('HINCRBY', KEYS[first_budget + i - 1], 'held', amount) end
for i = 1, num_rates do
  write_tat(KEYS[first_rate + i - 1], tonumber(ARGV[rate_args + (i - 1) * 3]), tats[i], now)
end

redis.call('DEL', hold) -- with it the life of a mark
redis.call('HSET', hold, 'state', 'open', 'prior', prior, 'amount', amount, 'tokens', ARGV[7], 'granted', granted,
  'in', '0', 'cached', '0', 'out', '0', 'meta', meta)
redis.call('ZADD', holds, whole(now + lease_us), request_id)
renew_leases(first_admitted + num_admitted, num_leases, request_id, now + lease_us)
return reply
