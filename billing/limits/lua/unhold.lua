-- A hold is given up and may be made anew: its money goes back, leases and what admitting took stay.
-- KEYS: hold, holds, budgets
-- ARGV: request id, a mark's life in ms
-- Returns 1, or 0 where there is no open hold
local hold, holds = KEYS[1], KEYS[2]
if redis.call('HGET', hold, 'state') ~= 'open' then return 0 end
local back = minus(redis.call('HGET', hold, 'amount'))
for i = 3, #KEYS do
  if redis.call('HEXISTS', KEYS[i], 'used') == 1 then
    redis.call('HINCRBY', KEYS[i], 'used', back)
    redis.call('HINCRBY', KEYS[i], 'held', back)
  end
end
local prior = redis.call('HGET', hold, 'prior') or '0'
if prior == '0' then
  redis.call('DEL', hold)
else -- what a first try counted is still to be taken out, by a hold made anew or by settling without one
  redis.call('HSET', hold, 'state', 'unheld', 'amount', '0')
  redis.call('PEXPIRE', hold, ARGV[2])
end
redis.call('ZREM', holds, ARGV[1])
return 1
