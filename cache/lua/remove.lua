-- Removes entries that are still what the caller saw; removing twice is harmless.
-- KEYS: lru, expiry, index, usage, then entry, state, members for each
-- ARGV: id, index row as seen, for each
-- Returns: entries removed, bytes freed
local removed, freed = 0, 0
for n = 1, #ARGV / 2 do
  local id, row = ARGV[2 * n - 1], ARGV[2 * n]
  local entry, state, members = KEYS[3 * n + 2], KEYS[3 * n + 3], KEYS[3 * n + 4]
  if redis.call('HGET', KEYS[3], id) == row then  -- else it was written anew meanwhile
    redis.call('DEL', entry)
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
    if redis.call('ZREM', members, id) == 1 then
      if redis.call('EXISTS', members) == 0 then
        redis.call('DEL', state)
      else
        redis.call('HINCRBY', state, 'gen', 1)
      end
    end
    removed = removed + 1
    freed = freed + (tonumber(string.match(row, '^[^|]*|(%d+)')) or 0)
  end
end
if freed > 0 then redis.call('HINCRBY', KEYS[4], 'bytes', -freed) end
return {removed, freed}
