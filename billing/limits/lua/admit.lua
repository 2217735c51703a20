-- Stage 1: requests per minute and day, and concurrency. All scopes are checked, then all are taken.
-- KEYS: rates, leases
-- ARGV: request id, #rates, #leases, lease us, (limit, period us, enforce) a rate, limit a lease
-- Returns {1, (remaining, reset us) a rate}
--      or {0, 'rate' | 'lease', which (from 1), wait us (-1: never), remaining, reset us}
local request_id, num_rates, num_leases, lease_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_us()
local tats, reply, worst = {}, {1}, nil

for i = 1, num_rates do
  local at = 5 + (i - 1) * 3
  local limit, period, enforce = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
  local tat, wait, remaining, reset = peek_rate(KEYS[i], limit, period, 1, now)
  if wait ~= 0 and enforce and (worst == nil or wait == -1 or (worst[4] ~= -1 and wait > worst[4])) then
    worst = {0, 'rate', i, wait, remaining, reset}
  end
  tats[i] = tat
  reply[#reply + 1] = remaining
  reply[#reply + 1] = reset
end
if worst then return worst end

for i = 1, num_leases do
  local key, limit = KEYS[num_rates + i], tonumber(ARGV[4 + num_rates * 3 + i])
  redis.call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
  if redis.call('ZCARD', key) >= limit and not redis.call('ZSCORE', key, request_id) then
    return {0, 'lease', i, limit > 0 and 1000000 or -1, 0, 0}
  end
end

for i = 1, num_rates do write_tat(KEYS[i], tonumber(ARGV[5 + (i - 1) * 3]), tats[i], now) end
renew_leases(num_rates + 1, num_leases, request_id, now + lease_us)
return reply
