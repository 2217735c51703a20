-- Moves a budget's counter by a difference, where it has been started; one that has not will be, from the ledger.
-- KEYS: budget
-- ARGV: by how much used moves, by how much held moves
if redis.call('HEXISTS', KEYS[1], 'used') == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], 'used', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'held', ARGV[2])
return 1
