-- The heartbeat: renews lease and hold, writes the tokens so far into the hold, extends the money slice.
-- KEYS: hold, holds, leases, budgets
-- ARGV: request id, #leases, #budgets, lease us, prompt tokens computed, cached ones among them, output tokens,
--       amount held, tokens held, granted, meta (these four as the caller knows them, to make the hold anew when Redis
--       lost its data), #steps, (tokens, amount) a step, limit a budget ('' is none)
-- A step is taken where every budget has room for it; steps fall in size, so that at a budget's end the last token
-- that can be paid is found.
-- Returns {1, granted, 1 when a step was refused}; {0}: reaped or settled; {2, budgets without a counter ...}
local request_id, num_leases, num_budgets = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease_us, held, granted = tonumber(ARGV[4]), ARGV[8], tonumber(ARGV[10])
local num_steps = tonumber(ARGV[12])
local hold, holds, first_budget = KEYS[1], KEYS[2], 3 + num_leases
local limit_args = 13 + num_steps * 2
local now = now_us()

local state = redis.call('HGET', hold, 'state')
if state and state ~= 'open' then return {0} end

local unseeded = {2}
for i = 1, num_budgets do
  if redis.call('HEXISTS', KEYS[first_budget + i - 1], 'used') == 0 then unseeded[#unseeded + 1] = i end
end
if #unseeded > 1 then return unseeded end

local function add_to_budgets(amount)
  for i = 1, num_budgets do
    redis.call('HINCRBY', KEYS[first_budget + i - 1], 'used', amount)
    redis.call('HINCRBY', KEYS[first_budget + i - 1], 'held', amount)
  end
end

if not state then -- Redis lost its data: the caller is alive and knows what it holds
  redis.call('HSET', hold, 'state', 'open', 'amount', held, 'tokens', ARGV[9], 'granted', ARGV[10], 'meta', ARGV[11])
  add_to_budgets(held)
else
  granted = tonumber(redis.call('HGET', hold, 'granted'))
end

local refused = 0
for s = 1, num_steps do
  local tokens, amount = tonumber(ARGV[11 + s * 2]), ARGV[12 + s * 2]
  local fits = true
  add_to_budgets(amount)
  for i = 1, num_budgets do
    local limit = ARGV[limit_args + i - 1]
    if limit ~= '' and greater(redis.call('HGET', KEYS[first_budget + i - 1], 'used'), limit) then fits = false end
  end
  if fits then
    granted = granted + tokens
    redis.call('HINCRBY', hold, 'amount', amount)
    if refused == 0 and s == 1 then break end -- the whole step went through: the smaller ones are for the end only
  else
    refused = 1
    add_to_budgets(minus(amount))
  end
end

redis.call('HSET', hold, 'granted', whole(granted), 'in', ARGV[5], 'cached', ARGV[6], 'out', ARGV[7])
redis.call('ZADD', holds, whole(now + lease_us), request_id)
renew_leases(3, num_leases, request_id, now + lease_us)
return {1, granted, refused, redis.call('HGET', hold, 'amount')}
