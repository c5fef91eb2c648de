-- KEYS: the customer or the customers of a last name, the district.
local key = customer_of(KEYS[1])
local id = number_of(key)
local c = {struct.unpack(CUSTOMER, redis.call('GET', key))}
local found = false
local newest = redis.call('GET', below(KEYS[2], 'c', id))
if newest then
  local order = struct.unpack('<I4', newest)
  local _, entered, carrier, count = struct.unpack(ORDER, redis.call('GET', below(KEYS[2], 'o', order)))
  local lines = {}
  for i = 1, count do
    local item, supply, delivered, quantity, amount =
      struct.unpack(LINE, redis.call('GET', below(KEYS[2], 'l', order, i)))
    lines[i] = {item, supply, quantity, amount, delivered}
  end
  found = {order, entered, carrier, lines}
end
return {{id, c[8], c[9], c[10], c[1]}, found}
