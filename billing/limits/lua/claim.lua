-- One reaper takes one expired hold; its owner's heartbeat finds it gone from here on.
-- KEYS: hold, holds
-- ARGV: request id, how long the claim lasts in us
-- Returns the hold's fields, or {} when it was renewed, settled or claimed meanwhile
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
local now = now_us()
if not score or tonumber(score) > now then return {} end
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == 'done' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return {}
end
redis.call('HSET', KEYS[1], 'state', 'claimed')
redis.call('ZADD', KEYS[2], whole(now + tonumber(ARGV[2])), ARGV[1])
return redis.call('HGETALL', KEYS[1])
