-- Rows are what the native procedures store: numbers, packed and little-endian, and then texts behind their lengths.
-- A row that another covers has a key of its own: a plus sign, the covering row's key, a suffix, the suffix's length.
local WAREHOUSE = '<i8I2Hc0Hc0Hc0Hc0Hc0Hc0'
local DISTRICT = '<i8I4I4I2Hc0Hc0Hc0Hc0Hc0Hc0'
local CUSTOMER = '<i8i8I4I4i8I8I2Hc0Hc0Hc0Hc0Hc0Hc0Hc0Hc0Hc0Hc0'
local HISTORY = '<I4BI8i8Hc0'
local ORDER = '<I4I8BBB'
local LINE = '<I4I4I8Bi8Hc0'
local ITEM = '<I4i8Hc0Hc0'
local STOCK = '<i2I4I4I4Hc0Hc0'

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function below(cover, letter, number, line)
  local suffix = letter .. struct.pack('<I4', number) .. (line and string.char(line) or '')
  return '+' .. cover .. suffix .. struct.pack('<H', #suffix)
end

-- What the keys of a warehouse begin with, and its number.
local function warehouse_of(key)
  return string.sub(key, 1, (string.find(key, '}', 1, true))), tonumber(string.match(key, '^{(%d+)'))
end

-- The number that ends a key.
local function number_of(key)
  return (struct.unpack('<I4', key, #key - 3))
end

-- The key of a customer, whose key or whose name's key this is; of those of one name it is the middle one.
local function customer_of(key)
  local prefix = warehouse_of(key)
  if string.sub(key, #prefix + 1, #prefix + 1) == 'c' then return key end
  local ids = redis.call('GET', key)
  local middle = math.ceil(#ids / 4 / 2)
  local district = string.sub(key, #prefix + 2, #prefix + 2)
  return prefix .. 'c' .. district .. string.sub(ids, middle * 4 - 3, middle * 4)
end
