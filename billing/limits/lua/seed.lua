-- Starts budget counters from the ledger's sums. Never lowers one: a counter that is there is left alone.
-- KEYS: budgets
-- ARGV: us of Redis's clock before the ledger was read, (sum, life in ms) a budget
-- Returns how many were started
local started = 0
for i = 1, #KEYS do
  if redis.call('HSETNX', KEYS[i], 'used', ARGV[i * 2]) == 1 then
    redis.call('HSET', KEYS[i], 'held', '0', 'seeded', ARGV[1])
    redis.call('PEXPIRE', KEYS[i], ARGV[i * 2 + 1])
    started = started + 1
  end
end
return started
