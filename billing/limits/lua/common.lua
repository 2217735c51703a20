-- Shared by every script of this folder (Python puts it in front of each).
--
-- Rates are GCRA: a key holds the theoretical arrival time (TAT) in microseconds of Redis's own clock, and the limit it
-- was written under: when the limit changes, what was used stays used and no more.
-- Money never becomes a Lua number: it goes in by HINCRBY or as a whole-number argument and is compared as text,
-- because Lua numbers lose digits past 2^53 and print as 1e+14.

if redis.replicate_commands then redis.replicate_commands() end -- Redis 6.2 needs it to write after TIME

local function now_us()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function whole(number) return string.format('%.0f', number) end

-- a > b for whole decimal texts of any length.
local function greater(a, b)
  local a_negative, b_negative = a:sub(1, 1) == '-', b:sub(1, 1) == '-'
  if a_negative ~= b_negative then return b_negative end
  if a_negative then a, b = b:sub(2), a:sub(2) end
  if #a ~= #b then return #a > #b end
  return a > b
end

local function minus(amount)
  if amount:sub(1, 1) == '-' then return amount:sub(2) end
  if amount == '0' then return '0' end
  return '-' .. amount
end

-- The TAT, not before now (an idle bucket is full) nor a period after it (a failover to a slower clock locks nobody out).
local function read_tat(key, limit, period, now)
  local value = redis.call('GET', key)
  if not value then return now end
  local slash = value:find('/', 1, true)
  local ahead = tonumber(value:sub(1, slash - 1)) - now
  local written_under = tonumber(value:sub(slash + 1))
  if ahead <= 0 then return now end
  if written_under ~= limit and limit > 0 then ahead = ahead * written_under / limit end
  return now + math.min(ahead, period)
end

local function write_tat(key, limit, tat, now)
  if tat <= now then
    redis.call('DEL', key)
  else
    local life_ms = whole(math.ceil((tat - now) / 1000) + 1)
    redis.call('SET', key, string.format('%.3f/%.0f', tat, limit), 'PX', life_ms)
  end
end

-- What taking `cost` would mean: new TAT, wait in us (0: may pass, -1: never), remaining after it, us until full again.
local function peek_rate(key, limit, period, cost, now)
  local tat = read_tat(key, limit, period, now)
  if cost > limit then
    local remaining = 0
    if limit > 0 then remaining = math.floor((now + period - tat) * limit / period + 1e-6) end
    return tat, -1, remaining, tat - now
  end
  if cost == 0 and limit == 0 then return tat, 0, 0, 0 end
  local taken = tat + cost * period / limit
  local wait = taken - period - now
  if wait > 1 then -- one microsecond of slack for the division
    return tat, math.ceil(wait), math.max(0, math.floor((now + period - tat) * limit / period + 1e-6)), tat - now
  end
  return taken, 0, math.max(0, math.floor((now + period - taken) * limit / period + 1e-6)), taken - now
end

local function give_back_rate(key, limit, period, cost, now)
  if limit <= 0 or cost <= 0 then return end
  write_tat(key, limit, read_tat(key, limit, period, now) - cost * period / limit, now)
end

local function renew_leases(first, count, request_id, expiry)
  for i = first, first + count - 1 do
    redis.call('ZADD', KEYS[i], whole(expiry), request_id)
    redis.call('PEXPIRE', KEYS[i], '3600000')
  end
end

local function drop_leases(first, count, request_id)
  for i = first, first + count - 1 do redis.call('ZREM', KEYS[i], request_id) end
end
