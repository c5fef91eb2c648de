-- KEYS: the warehouse, the customer, the items, their stocks, the district. ARGV: D_ID and the quantities, a byte each.
local count = #ARGV[1] - 1
local number = string.byte(ARGV[1], 1)
local home = warehouse_of(KEYS[1])
local district = KEYS[#KEYS]

-- Before anything is written: an order of an item that there is not leaves nothing behind.
local items = {}
for i = 1, count do
  local row = redis.call('GET', KEYS[2 + i])
  if not row then return redis.error_reply('ERR Item number is not valid') end
  local _, price, name, data = struct.unpack(ITEM, row)
  items[i] = {price = price, name = name, original = string.find(data, 'ORIGINAL', 1, true)}
end

local _, warehouse_tax = struct.unpack('<i8I2', redis.call('GET', KEYS[1]))
local customer = {struct.unpack(CUSTOMER, redis.call('GET', KEYS[2]))}
local discount, last, credit = customer[7], customer[10], customer[17]
local ytd, order, oldest, district_tax = struct.unpack('<i8I4I4I2', redis.call('GET', district))
local entered = now()
redis.call('SETRANGE', district, 8, struct.pack('<I4', order + 1))

local sum, all_local, lines = 0, 1, {}
for i = 1, count do
  local key = KEYS[2 + count + i]
  local prefix, supply = warehouse_of(key)
  local quantity = string.byte(ARGV[1], 1 + i)
  local left, sold, orders, remote, dist, data = struct.unpack(STOCK, redis.call('GET', key))
  left = left - quantity
  if left < 10 then left = left + 91 end
  if prefix ~= home then
    remote = remote + 1
    all_local = 0
  end
  redis.call('SETRANGE', key, 0, struct.pack('<i2I4I4I4', left, sold + quantity, orders + 1, remote))
  local amount = items[i].price * quantity
  sum = sum + amount
  local info = string.sub(dist, (number - 1) * 24 + 1, number * 24)
  local row = struct.pack(LINE, number_of(key), supply, 0, quantity, amount, #info, info)
  redis.call('SET', below(district, 'l', order, i), row)
  local brand = items[i].original and string.find(data, 'ORIGINAL', 1, true) and 'B' or 'G'
  lines[i] = {items[i].name, left, brand, items[i].price, amount}
end

local id = number_of(KEYS[2])
redis.call('SET', below(district, 'o', order), struct.pack(ORDER, id, entered, 0, count, all_local))
redis.call('SET', below(district, 'n', order), '')
redis.call('SET', below(district, 'c', id), struct.pack('<I4', order))
local total = math.floor((sum * (10000 - discount) * (10000 + warehouse_tax + district_tax) + 50000000) / 100000000)
return {order, entered, last, credit, discount, warehouse_tax, district_tax, total, lines}
