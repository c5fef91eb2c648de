-- KEYS: the warehouse, the district, the customer or the customers of a last name. ARGV: the amount.
local amount = tonumber(ARGV[1])
local warehouse = {struct.unpack(WAREHOUSE, redis.call('GET', KEYS[1]))}
redis.call('SETRANGE', KEYS[1], 0, struct.pack('<i8', warehouse[1] + amount))
local district = {struct.unpack(DISTRICT, redis.call('GET', KEYS[2]))}
redis.call('SETRANGE', KEYS[2], 0, struct.pack('<i8', district[1] + amount))

local key = customer_of(KEYS[3])
local row = redis.call('GET', key)
local c = {struct.unpack(CUSTOMER, row)}
local balance, paid, payments = c[1] - amount, c[2] + amount, c[3] + 1
local numbers = struct.pack('<i8i8I4', balance, paid, payments)
local _, home = warehouse_of(KEYS[1])
local at = string.byte(KEYS[2], #KEYS[2])
local prefix, their_warehouse = warehouse_of(key)
local their_district = string.byte(key, #prefix + 2)
local id = number_of(key)
local data = ''
if c[17] == 'BC' then
  -- The position after the texts that were read is that of the last one.
  local noted = string.format('%d %d %d %d %d %d.%02d ', id, their_district, their_warehouse, at, home,
    math.floor(amount / 100), amount % 100)
  data = string.sub(noted .. struct.unpack('<Hc0', row, c[18]), 1, 500)
  row = numbers .. string.sub(row, #numbers + 1, c[18] - 1) .. struct.pack('<Hc0', #data, data)
  redis.call('SET', key, row)
else
  redis.call('SETRANGE', key, 0, numbers)
end
local note = warehouse[3] .. '    ' .. district[5]
redis.call('SET', below(key, 'h', payments), struct.pack(HISTORY, home, at, now(), amount, #note, note))

local shown = {id}
for i = 8, 17 do shown[#shown + 1] = c[i] end
for _, n in ipairs({c[6], c[5], c[7], balance}) do shown[#shown + 1] = n end
shown[#shown + 1] = string.sub(data, 1, 200)
local function address(texts, first)
  local out = {}
  for i = first, first + 5 do out[#out + 1] = texts[i] end
  return out
end
return {amount, address(warehouse, 3), address(district, 5), shown}
