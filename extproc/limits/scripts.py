"""The steps of limits/book.py as Redis does them, each script as a whole: change both together.

Times are Redis' own, so that no processor's clock matters. Of a tenant there are two keys, on one
node of a cluster: a hash with the levels (requests, tokens, at), and the money (period, spent); and
a sorted set of leases by when they end. Both end by themselves.
"""

from extproc.redis_link import Script

# Levels are written with all their digits; `false` of Redis is a field that is not there.
_COMMON = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function number(text) return tonumber(text or '') end
local function exact(value) return string.format('%.17g', value) end

-- As period_of in limits/rules.py; months by the civil calendar (Hinnant, days from 1970-01-01).
local function period_of(per)
  local days = math.floor(now / 86400)
  if per == 'day' then return days end
  local since = days + 719468
  local era = math.floor(since / 146097)
  local of_era = since - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)
  year = year + era * 400
  if month < 10 then month = month + 3 else month, year = month - 9, year + 1 end
  return year * 12 + month - 1
end

local held = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at', 'period', 'spent')
local at = number(held[3])
local function refilled(level, rate, most)
  return math.min(level + math.max(now - (at or now), 0) * rate, most)
end

local ttl = 60
local function lasts(seconds) ttl = math.max(ttl, math.ceil(seconds) + 60) end
local function fills(level, rate, most) lasts((most - level) / rate) end
"""

TAKE = Script(
    _COMMON
    + """
local request_rate, request_most = number(ARGV[1]), number(ARGV[2])
local token_rate, token_most = number(ARGV[3]), number(ARGV[4])
local concurrent, lease, lease_ms = number(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local budget, per = number(ARGV[8]), ARGV[9]
local tokens, usd = tonumber(ARGV[10]), tonumber(ARGV[11])
-- What the processor takes the levels to be: where Redis knows of none, or of too little.
local ahead, known_requests, known_tokens = ARGV[12] == '1', number(ARGV[13]), number(ARGV[14])
local known_period, known_spent = number(ARGV[15]), number(ARGV[16])
local not_after = number(ARGV[17])

local function level_of(stored, rate, most, known)
  local level = number(stored)
  if level then level = refilled(level, rate, most) end
  if known and (ahead or not level) then level = math.min(level or most, known) end
  return math.min(level or most, most)
end

local request_level, token_level, running, spent, period = 0, 0, 0, 0, 0
local refused = ''
if token_rate then
  token_level = level_of(held[2], token_rate, token_most, known_tokens)
  if token_level < math.min(tokens, token_most) then refused = 'tokens' end
end
if request_rate then
  request_level = level_of(held[1], request_rate, request_most, known_requests)
  if request_level < 1 then refused = 'requests' end
end
if concurrent then
  running = redis.call('ZCARD', KEYS[2])
  if running >= concurrent then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', exact(now))
    running = redis.call('ZCARD', KEYS[2])
  end
  if running >= concurrent then refused = 'concurrent' end
end
if budget then
  period = period_of(per)
  if number(held[4]) == period then
    spent = number(held[5]) or 0
  elseif known_period == period and not held[4] then
    spent = known_spent
  end
  if spent + usd > budget then refused = 'budget' end
end
if not_after and now > not_after then refused = 'late' end

if refused == '' then
  if concurrent then
    redis.call('ZADD', KEYS[2], exact(now + lease_ms / 1000), lease)
    if redis.call('PTTL', KEYS[2]) < lease_ms then redis.call('PEXPIRE', KEYS[2], lease_ms) end
    running = running + 1
  end
  local write = {}
  local function set(name, value)
    write[#write + 1] = name
    write[#write + 1] = exact(value)
  end
  if request_rate then
    request_level = request_level - 1
    set('requests', request_level)
    fills(request_level, request_rate, request_most)
  end
  if token_rate then
    token_level = token_level - tokens
    set('tokens', token_level)
    fills(token_level, token_rate, token_most)
  end
  if request_rate or token_rate then set('at', now) end
  if budget then
    spent = spent + usd
    set('period', period)
    set('spent', spent)
    lasts(per == 'day' and 86400 or 31 * 86400)
  end
  if #write > 0 then
    redis.call('HSET', KEYS[1], unpack(write))
    if redis.call('TTL', KEYS[1]) < ttl then redis.call('EXPIRE', KEYS[1], ttl) end
  end
end
return {refused, exact(request_level), exact(token_level), running, exact(spent), period,
  exact(now)}
"""
)
"""KEYS: hash, leases. ARGV, empty for none: rate and most of requests, of tokens; concurrent, lease
id, its milliseconds; budget, `day` or `month`; tokens, nanodollars; then what the processor takes
the levels to be: 1 if it has granted what Redis has not heard of, requests, tokens, period, spent;
and when, by Redis' clock, nobody listens any more. The answer: which limit refused, `late`, or
empty; the levels as in Levels; the time."""

SETTLE = Script(
    _COMMON
    + """
local request_rate, request_most = number(ARGV[1]), number(ARGV[2])
local token_rate, token_most = number(ARGV[3]), number(ARGV[4])
local more_tokens, more_usd = tonumber(ARGV[5]), tonumber(ARGV[6])
local per, period = ARGV[7], number(ARGV[8])
local known_period, known_spent = number(ARGV[9]), number(ARGV[10])
local request_level, token_level = number(held[1]), number(held[2])
local write = {}
if at and (request_level or token_level) then
  if request_rate and request_level then
    request_level = refilled(request_level, request_rate, request_most)
    write = {'requests', exact(request_level)}
    fills(request_level, request_rate, request_most)
  end
  if token_rate and token_level then
    token_level = math.min(refilled(token_level, token_rate, token_most) - more_tokens, token_most)
    write[#write + 1] = 'tokens'
    write[#write + 1] = exact(token_level)
    fills(token_level, token_rate, token_most)
  end
  write[#write + 1] = 'at'
  write[#write + 1] = exact(now)
end
local spent = number(held[5]) or 0
if per ~= '' and period == period_of(per) then
  if number(held[4]) ~= period then
    spent = not held[4] and known_period == period and known_spent or 0
  end
  spent = math.max(spent + more_usd, 0)
  held[4] = tostring(period)
  for _, text in ipairs({'period', exact(period), 'spent', exact(spent)}) do
    write[#write + 1] = text
  end
  lasts(per == 'day' and 86400 or 31 * 86400)
end
if #write > 0 then
  redis.call('HSET', KEYS[1], unpack(write))
  if redis.call('TTL', KEYS[1]) < ttl then redis.call('EXPIRE', KEYS[1], ttl) end
end
return {exact(spent), number(held[4]) or 0}
"""
)
"""KEYS: hash. ARGV, empty for none: rate and most of requests, of tokens; tokens and nanodollars
more than were charged; `day` or `month`, and the period in which these were; in which period the
processor knows of what was spent. The answer: what is spent, in which period. Levels that Redis has
forgotten stay so: nothing of the charge is left to be corrected."""

PRESENT = Script(
    """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
"""
)
"""KEYS: a sorted set. ARGV: this processor, for how many seconds one is remembered. The answer: how
many there are."""
