-- The heartbeat of a request that has no hold yet.
-- KEYS: leases
-- ARGV: request id, lease us
renew_leases(1, #KEYS, ARGV[1], now_us() + tonumber(ARGV[2]))
return 1
