-- Writes one entry and says what must leave for it.
-- KEYS: entry, state, members, lru, expiry, index, usage
-- ARGV: id, now_ms, expires_ms (0: never), size_bytes, index row, epoch nonce, max_entries, max_bytes,
--       has_vector (0/1), then field, value, ... of the entry
-- Returns: id, row, id, row, ... of at most 32 entries to be removed (expired ones first, then the least recently used)
local id, now, expires, size = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local old = redis.call('HGET', KEYS[6], id)
local old_size = old and tonumber(string.match(old, '^[^|]*|(%d+)')) or 0

redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 10))
if expires == '0' then
  redis.call('ZREM', KEYS[5], id)
else
  redis.call('PEXPIREAT', KEYS[1], expires)
  redis.call('ZADD', KEYS[5], expires, id)
end
if ARGV[9] == '1' then
  redis.call('HSETNX', KEYS[2], 'epoch', ARGV[6])
  redis.call('ZADD', KEYS[3], redis.call('HINCRBY', KEYS[2], 'seq', 1), id)
elseif redis.call('ZREM', KEYS[3], id) == 1 then
  redis.call('HINCRBY', KEYS[2], 'gen', 1)
end
redis.call('ZADD', KEYS[4], now, id)
redis.call('HSET', KEYS[6], id, ARGV[5])
local bytes = redis.call('HINCRBY', KEYS[7], 'bytes', size - old_size)

local victims, seen = {}, {[id] = true}
local function add(candidate)
  if seen[candidate] then return 0 end
  seen[candidate] = true
  local row = redis.call('HGET', KEYS[6], candidate)
  if not row then return 0 end
  victims[#victims + 1] = candidate
  victims[#victims + 1] = row
  return tonumber(string.match(row, '^[^|]*|(%d+)')) or 0
end
local freed = 0
for _, candidate in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', '(' .. now, 'LIMIT', 0, 16)) do
  freed = freed + add(candidate)
end
local count = redis.call('HLEN', KEYS[6])
local max_entries, max_bytes = tonumber(ARGV[7]), tonumber(ARGV[8])
if count - #victims / 2 > max_entries or bytes - freed > max_bytes then
  for _, candidate in ipairs(redis.call('ZRANGE', KEYS[4], 0, 31)) do
    if (count - #victims / 2 <= max_entries and bytes - freed <= max_bytes) or #victims >= 64 then break end
    freed = freed + add(candidate)
  end
end
return victims
