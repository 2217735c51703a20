-- A request ends without a hold (a cache hit, an error before it): leases are dropped; what it took of its rates is
-- given back where it should not count.
-- KEYS: leases, admission's rates
-- ARGV: request id, #leases, #rates, '1' to give back, (limit, period us) a rate
local request_id, num_leases, num_rates = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
drop_leases(1, num_leases, request_id)
if ARGV[4] == '1' then
  local now = now_us()
  for i = 1, num_rates do
    give_back_rate(KEYS[num_leases + i], tonumber(ARGV[3 + i * 2]), tonumber(ARGV[4 + i * 2]), 1, now)
  end
end
return 1
