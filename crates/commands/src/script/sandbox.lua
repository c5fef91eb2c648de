-- The world of a script: what it finds instead of Lua's own globals.
--
-- `rust` holds the functions that are written in Rust. What they raise is an error object of the interpreter's;
-- everything that catches errors is here and turns it into the text that a script expects.

local rust = ...

local assert, error, getmetatable, ipairs, rawequal, select, setfenv, setmetatable, tonumber, type, unpack =
  assert, error, getmetatable, ipairs, rawequal, select, setfenv, setmetatable, tonumber, type, unpack
local raw_next, raw_pcall, raw_xpcall, raw_loadstring, raw_tostring, raw_get, raw_set =
  next, pcall, xpcall, loadstring, tostring, rawget, rawset
local byte, sub, plain_find, format = string.byte, string.sub, string.find, string.format
local concat, insert, remove, sort = table.concat, table.insert, table.remove, table.sort
local floor = math.floor
local caught, charge = rust.caught, rust.charge

---------------------------------------------------------------------------------------------------------------
-- Errors. A script that is out of its budget is unwound for good: nothing of its own runs again.

-- `caught` answers the error as a script sees it, or raises anew what no script may catch.
local function settle(ok, ...)
  if ok then return ok, ... end
  return false, caught((...))
end

local function protected(...)
  return settle(raw_pcall(...))
end

local function settle_with(handler, ok, ...)
  if ok then return ok, ... end
  return false, handler(caught((...)))
end

-- The handler runs after unwinding. Lua's own would run it on top of the failed call with the instruction hook
-- switched off, where it could go on for ever.
local function protected_with(f, handler)
  return settle_with(handler, raw_pcall(f))
end

local function on_error(err)
  rust.note_line()
  return err
end

---------------------------------------------------------------------------------------------------------------
-- Order. Lua walks a table in an order that depends on what was removed, on collections and, for keys that
-- are tables or functions, on addresses. Here the order is that of the keys.

local real_of = {}

local function sorted_keys(t)
  local numbers, strings, booleans, n, s, b = {}, {}, {}, 0, 0, 0
  for k in raw_next, real_of[t] or t do
    local kind = type(k)
    if kind == 'string' then
      s = s + 1
      strings[s] = k
    elseif kind == 'number' then
      n = n + 1
      numbers[n] = k
    elseif kind == 'boolean' then
      b = b + 1
      booleans[b] = k
    else
      error('a table with a ' .. kind .. ' as key has no order that is the same everywhere', 3)
    end
  end
  charge(n + s)
  sort(numbers)
  sort(strings)
  for i = 1, s do numbers[n + i] = strings[i] end
  if b == 2 then
    numbers[n + s + 1], numbers[n + s + 2] = false, true
  elseif b == 1 then
    numbers[n + s + 1] = booleans[1]
  end
  return numbers, n + s + b
end

local function expect_table(t, name)
  if type(t) ~= 'table' then
    local got = t == nil and 'no value' or type(t)
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. got .. ')', 3)
  end
end

local function ordered_pairs(t)
  expect_table(t, 'pairs')
  local keys, count = sorted_keys(t)
  local source, i = real_of[t] or t, 0
  return function()
    while i < count do
      i = i + 1
      local k = keys[i]
      local v = raw_get(source, k)
      if v ~= nil then return k, v end
    end
    return nil
  end, t, nil
end

-- Where the walk by next() is that went on last.
local walked, walked_keys, walked_count, walked_at

local function ordered_next(t, key)
  expect_table(t, 'next')
  local source = real_of[t] or t
  if key == nil then
    if raw_next(source) == nil then return nil end
    walked, walked_at = t, 0
    walked_keys, walked_count = sorted_keys(t)
  elseif not rawequal(walked, t) or not rawequal(walked_keys[walked_at], key) then
    walked, walked_at = t, 0
    walked_keys, walked_count = sorted_keys(t)
    repeat
      walked_at = walked_at + 1
      if walked_at > walked_count then error("invalid key to 'next'", 2) end
    until rawequal(walked_keys[walked_at], key)
  end
  while walked_at < walked_count do
    walked_at = walked_at + 1
    local k = walked_keys[walked_at]
    local v = raw_get(source, k)
    if v ~= nil then return k, v end
  end
  walked = nil
  return nil
end

---------------------------------------------------------------------------------------------------------------
-- Tables that no script can change, so that none leaves anything for the next.

local READ_ONLY = 'Attempt to modify a readonly table'

local function refuse() error(READ_ONLY, 2) end

local function protect(real)
  local proxy = setmetatable({}, { __index = real, __newindex = refuse, __metatable = false })
  real_of[proxy] = real
  return proxy
end

local function guard(t)
  if real_of[t] then error(READ_ONLY, 0) end
end

---------------------------------------------------------------------------------------------------------------
-- Base library.

local base = {
  _VERSION = 'Lua 5.1',
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, rawequal = rawequal,
  select = select, tonumber = tonumber, type = type,
  pcall = protected, xpcall = protected_with, pairs = ordered_pairs, next = ordered_next,
}

-- The range is checked before the C library sees it, which computes it in 32 bits.
function base.unpack(t, i, j)
  if type(t) ~= 'table' then
    error("bad argument #1 to 'unpack' (table expected, got " .. (t == nil and 'no value' or type(t)) .. ')', 2)
  end
  i = i == nil and 1 or tonumber(i) or error("bad argument #2 to 'unpack' (number expected, got " .. type(i) .. ')', 2)
  j = j == nil and #t or tonumber(j) or error("bad argument #3 to 'unpack' (number expected, got " .. type(j) .. ')', 2)
  if i > j then return end
  if not (j - i < 7999 and i > -2147483648 and j < 2147483647) then error('too many results to unpack', 2) end
  charge(j - i)
  return unpack(t, i, j)
end

function base.setmetatable(t, meta)
  guard(t)
  return setmetatable(t, meta)
end

function base.rawget(t, k)
  return raw_get(real_of[t] or t, k)
end

function base.rawset(t, k, v)
  guard(t)
  return raw_set(t, k, v)
end

-- Without addresses.
function base.tostring(...)
  if select('#', ...) == 0 then error("bad argument #1 to 'tostring' (value expected)", 2) end
  local v = ...
  local kind = type(v)
  if kind == 'table' then
    local meta = getmetatable(v)
    if type(meta) == 'table' and raw_get(meta, '__tostring') then return raw_tostring(v) end
    return kind
  elseif kind == 'function' or kind == 'userdata' then
    return kind
  end
  return raw_tostring(v)
end

-- The globals of what runs now.
local current_world

-- Text only: what Lua compiles itself it can run; what it did not compile can break it.
function base.loadstring(text, name)
  if type(text) ~= 'string' then
    error("bad argument #1 to 'loadstring' (string expected, got " .. type(text) .. ')', 2)
  end
  if byte(text) == 27 then return nil, 'binary chunks are not allowed' end
  charge(#text)
  local chunk, err = raw_loadstring(text, type(name) == 'string' and name or text)
  if chunk then setfenv(chunk, current_world) end
  return chunk, err
end

function base.load(reader, name)
  local parts, n = {}, 0
  while true do
    local part = reader()
    if part == nil or part == '' then break end
    if type(part) ~= 'string' then error('reader function must return a string', 2) end
    n = n + 1
    parts[n] = part
  end
  return base.loadstring(concat(parts), type(name) == 'string' and name or '=(load)')
end

---------------------------------------------------------------------------------------------------------------
-- Strings. Patterns are matched in Rust, by the same rules, within the budget.

local strings = {
  byte = byte, char = string.char, format = format, len = string.len, lower = string.lower,
  reverse = string.reverse, sub = sub, upper = string.upper,
}

strings.rep = rust.rep
strings.find, strings.match = rust.find, rust.match

function strings.gmatch(s, p)
  local at = 1
  local function step(start, finish, ...)
    if not start then
      at = nil
      return nil
    end
    at = finish + 1
    if finish < start then at = at + 1 end
    if select('#', ...) == 0 then return sub(s, start, finish) end
    return ...
  end
  s = raw_tostring(s)
  return function()
    if at == nil or at > #s + 1 then return nil end
    return step(rust.search(s, p, at))
  end
end
strings.gfind = strings.gmatch

-- A replacement text as a list of literals and capture numbers.
local function parse_replacement(text)
  local parts, n, at = {}, 0, 1
  while true do
    local mark = plain_find(text, '%', at, true)
    n = n + 1
    parts[n] = sub(text, at, (mark or 0) - 1)
    if not mark then return parts, n end
    local c = sub(text, mark + 1, mark + 1)
    n = n + 1
    parts[n] = plain_find('0123456789', c, 1, true) and c ~= '' and tonumber(c) or c
    at = mark + 2
  end
end

local function substituted(s, kind, repl, count, start, finish, ...)
  if not start then return nil end
  local captures = select('#', ...)
  local value
  if kind == 'parts' then
    local out = {}
    for i = 1, count do
      local part = repl[i]
      if type(part) == 'number' then
        if part == 0 or (part == 1 and captures == 0) then
          part = sub(s, start, finish)
        elseif part > captures then
          error('invalid capture index', 3)
        else
          part = select(part, ...)
        end
      end
      out[i] = part
    end
    value = concat(out)
  elseif kind == 'string' then
    value = repl
  else
    local whole = sub(s, start, finish)
    if kind == 'function' then
      if captures == 0 then value = repl(whole) else value = repl(...) end
    elseif captures == 0 then
      value = repl[whole]
    else
      value = repl[(...)]
    end
    if not value then
      value = whole
    elseif type(value) ~= 'string' and type(value) ~= 'number' then
      error('invalid replacement value (a ' .. type(value) .. ')', 3)
    end
  end
  return start, finish, value
end

function strings.gsub(s, p, repl, limit)
  local kind, count = type(repl), 0
  if kind == 'number' then
    repl, kind = raw_tostring(repl), 'string'
  elseif kind ~= 'string' and kind ~= 'function' and kind ~= 'table' then
    error("bad argument #3 to 'gsub' (string/function/table expected)", 2)
  end
  if kind == 'string' and plain_find(repl, '%', 1, true) then
    repl, count = parse_replacement(repl)
    kind = 'parts'
  end
  if type(s) == 'number' then s = raw_tostring(s) end
  local length = type(s) == 'string' and #s or 0
  limit = limit and (tonumber(limit) or error("bad argument #4 to 'gsub' (number expected)", 2)) or length + 1
  local anchored = type(p) == 'string' and byte(p) == 94
  local out, n, at, done = {}, 0, 1, 0
  while done < limit do
    local start, finish, value = substituted(s, kind, repl, count, rust.scan(s, p, at))
    if not start then break end
    done = done + 1
    if start > at then
      n = n + 1
      out[n] = sub(s, at, start - 1)
    end
    n = n + 1
    out[n] = value
    at = finish + 1
    if finish < start then
      if at > length then break end
      n = n + 1
      out[n] = sub(s, at, at)
      at = at + 1
    end
    if anchored then break end
  end
  n = n + 1
  out[n] = sub(s, at)
  return concat(out), done
end

---------------------------------------------------------------------------------------------------------------
-- Tables. What costs more than its one instruction is charged for.

local tables = { concat = concat, getn = table.getn, maxn = table.maxn }

local function expect_position(name, position)
  position = tonumber(position)
  if position and not (position > -2147483648 and position < 2147483647) then
    error("bad argument #2 to '" .. name .. "' (position out of range)", 3)
  end
  return position or 0
end

function tables.insert(t, ...)
  guard(t)
  if select('#', ...) == 2 and type(t) == 'table' then
    local position = expect_position('insert', (...))
    charge(position > #t and position - #t or 0)
    charge(position < 0 and -position or 0)
  end
  if select('#', ...) > 1 and type(t) == 'table' then charge(#t) end
  return insert(t, ...)
end

function tables.remove(t, ...)
  guard(t)
  if select('#', ...) > 0 and type(t) == 'table' then charge(#t) end
  return remove(t, ...)
end

function tables.sort(t, ...)
  guard(t)
  if type(t) == 'table' then charge(16 * #t) end
  return sort(t, ...)
end

function tables.foreach(t, f)
  for k, v in ordered_pairs(t) do
    local result = f(k, v)
    if result ~= nil then return result end
  end
end

function tables.foreachi(t, f)
  for i = 1, #t do
    local result = f(i, t[i])
    if result ~= nil then return result end
  end
end

---------------------------------------------------------------------------------------------------------------
-- Mathematics. Randomness is the transaction's own.

local maths = {}
for k, v in raw_next, math do maths[k] = v end
maths.mod = math.fmod

function maths.random(low, high)
  local r = rust.random()
  if low == nil then return r end
  low = tonumber(low) or error("bad argument #1 to 'random' (number expected, got " .. type(low) .. ')', 2)
  if high == nil then
    low = floor(low)
    if low < 1 then error("bad argument #1 to 'random' (interval is empty)", 2) end
    return floor(r * low) + 1
  end
  high = tonumber(high) or error("bad argument #2 to 'random' (number expected, got " .. type(high) .. ')', 2)
  low, high = floor(low), floor(high)
  if low > high then error("bad argument #2 to 'random' (interval is empty)", 2) end
  return floor(r * (high - low + 1)) + low
end

function maths.randomseed(seed)
  seed = tonumber(seed)
  if not seed then error("bad argument #1 to 'randomseed' (number expected)", 2) end
  rust.randomseed(seed)
end

---------------------------------------------------------------------------------------------------------------
-- redis. `call` and `pcall` reach the records; they are put in for one run.

local function redis_library()
  return {
    REDIS_VERSION = '7.0.15', REDIS_VERSION_NUM = 0x0007000f,
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
    sha1hex = rust.sha1hex,
    setresp = rust.setresp,
    log = function(...)
      if select('#', ...) < 2 then error({ err = 'ERR redis.log() requires two arguments or more.' }, 0) end
    end,
    replicate_commands = function() return true end,
    set_repl = function() end,
    error_reply = function(...)
      local text = ...
      if select('#', ...) ~= 1 or type(text) ~= 'string' then
        return { err = 'ERR wrong number or type of arguments' }
      end
      if byte(text) == 45 then text = sub(text, 2) end
      return { err = text }
    end,
    status_reply = function(...)
      local text = ...
      if select('#', ...) ~= 1 or type(text) ~= 'string' then
        return { err = 'ERR wrong number or type of arguments' }
      end
      return { ok = text }
    end,
  }
end

---------------------------------------------------------------------------------------------------------------
-- FUNCTION libraries register what they offer; a library runs anew for every call, so that its upvalues
-- remember nothing.

local registered, registered_order

local function register(fields)
  if not registered then
    error('redis.register_function can only be called on FUNCTION LOAD command', 3)
  end
  local name, callback = fields.function_name, fields.callback
  for k in ordered_pairs(fields) do
    if k ~= 'function_name' and k ~= 'callback' and k ~= 'flags' and k ~= 'description' then
      error({ err = 'ERR unknown argument given to redis.register_function' }, 0)
    end
  end
  if name == nil then error({ err = 'ERR redis.register_function must get a function name argument' }, 0) end
  if callback == nil then error({ err = 'ERR redis.register_function must get a callback argument' }, 0) end
  if type(name) ~= 'string' then
    error({ err = 'ERR function_name argument given to redis.register_function must be a string' }, 0)
  end
  if type(callback) ~= 'function' then
    error({ err = 'ERR callback argument given to redis.register_function must be a function' }, 0)
  end
  if not rust.is_name(name) then
    error({ err = 'ERR Library names can only contain letters, numbers, or underscores(_) and must be at ' ..
      'least one character long' }, 0)
  end
  local flags = {}
  if fields.flags ~= nil then
    if type(fields.flags) ~= 'table' then
      error({ err = 'ERR flags argument to redis.register_function must be a table representing function flags' }, 0)
    end
    for _, flag in ipairs(fields.flags) do
      if type(flag) ~= 'string' or not rust.is_flag(flag) then error({ err = 'ERR unknown flag given' }, 0) end
      flags[#flags + 1] = flag
    end
  end
  if registered[name] then error({ err = 'ERR Function already exists in the library' }, 0) end
  registered[name] = callback
  registered_order[#registered_order + 1] = {
    name = name, flags = flags, description = type(fields.description) == 'string' and fields.description or nil,
  }
end

local function register_function(...)
  local first, second = ...
  local n = select('#', ...)
  if n == 1 then
    if type(first) ~= 'table' then
      error({ err = 'ERR calling redis.register_function with a single argument is only applicable to Lua ' ..
        'table (representing named arguments).' }, 0)
    end
    return register(first)
  elseif n ~= 2 then
    error({ err = 'ERR wrong number of arguments to redis.register_function' }, 0)
  end
  if type(first) ~= 'string' then
    error({ err = 'ERR first argument to redis.register_function must be a string' }, 0)
  elseif type(second) ~= 'function' then
    error({ err = 'ERR second argument to redis.register_function must be a function' }, 0)
  end
  return register({ function_name = first, callback = second })
end

---------------------------------------------------------------------------------------------------------------
-- The two worlds: a script's, and a library's, which has no KEYS and ARGV but can register functions.

local function missing(_, k)
  error("Script attempted to access nonexistent global variable '" .. base.tostring(k) .. "'", 2)
end

local libraries = {
  string = strings, table = tables, math = maths,
  bit = {}, cjson = { null = rust.null, _NAME = 'cjson', _VERSION = '2.1.0' },
}
for name, f in raw_next, rust.bit do libraries.bit[name] = f end
for name, f in raw_next, rust.cjson do libraries.cjson[name] = f end
for name, library in raw_next, libraries do base[name] = protect(library) end

local strings_meta = getmetatable('')
strings_meta.__index = strings
strings_meta.__metatable = false

local function world(globals)
  for k, v in raw_next, base do globals[k] = v end
  local env = protect(setmetatable(globals, { __index = missing }))
  globals._G = env
  return env
end

local script_redis, library_redis = redis_library(), redis_library()
library_redis.register_function = register_function

local script_globals = { redis = protect(script_redis), KEYS = {}, ARGV = {} }

local M = { script_env = world(script_globals), library_env = world({ redis = protect(library_redis) }) }

local function outside()
  error({ err = 'ERR redis.call can only be called inside a script or function' }, 0)
end

-- Answers a command's error reply where `call` raises it.
local current_call

local function settle_call(ok, reply)
  if ok then return reply end
  return { err = caught(reply) }
end

local function protected_call(...)
  return settle_call(raw_pcall(current_call, ...))
end

local function begin(world, redis, call, pcall)
  current_world, current_call, redis.call, redis.pcall = world, call, call, pcall
  walked, walked_keys, registered, registered_order = nil, nil, nil, nil
end

-- Runs a script.
function M.run_script(chunk, call, keys, argv)
  begin(M.script_env, script_redis, call, protected_call)
  script_globals.KEYS, script_globals.ARGV = keys, argv
  return raw_xpcall(chunk, on_error)
end

-- Runs a library and answers what it registered.
function M.load_library(chunk)
  begin(M.library_env, library_redis, outside, outside)
  registered, registered_order = {}, {}
  local ok, err = raw_xpcall(chunk, on_error)
  if ok then return true, registered_order end
  return false, err
end

-- Runs a library, then one of its functions.
function M.run_function(chunk, name, call, keys, argv)
  local ok, err = M.load_library(chunk)
  if not ok then return false, err end
  local callback = registered[name]
  begin(M.library_env, library_redis, call, protected_call)
  return raw_xpcall(function() return callback(keys, argv) end, on_error)
end

return M
