-- The vectors of many entries in one reply: a client parses one string faster than hundreds (10 times for redis-py).
-- KEYS: entries. ARGV: bytes of a vector; others are of another embedder and count as missing.
-- Returns: a string of 0 and 1, one a key, and the present vectors one after another
local width, present, found = tonumber(ARGV[1]), {}, {}
for n, key in ipairs(KEYS) do
  local vector = redis.call('HGET', key, 'v')
  local usable = vector and #vector == width
  present[n] = usable and '1' or '0'
  if usable then found[#found + 1] = vector end
end
return {table.concat(present), table.concat(found)}
