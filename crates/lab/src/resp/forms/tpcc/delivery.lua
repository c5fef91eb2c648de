-- KEYS: the districts of a warehouse. ARGV: O_CARRIER_ID.
local carrier = tonumber(ARGV[1])
local delivered_at = now()
local delivered = {}
for i, district in ipairs(KEYS) do
  local _, next_order, oldest = struct.unpack('<i8I4I4', redis.call('GET', district))
  if oldest < next_order then
    redis.call('SETRANGE', district, 12, struct.pack('<I4', oldest + 1))
    local key = below(district, 'o', oldest)
    local customer, _, _, count = struct.unpack(ORDER, redis.call('GET', key))
    redis.call('SETRANGE', key, 12, string.char(carrier))
    redis.call('DEL', below(district, 'n', oldest))
    local sum = 0
    for line = 1, count do
      local line_key = below(district, 'l', oldest, line)
      local _, _, _, _, amount = struct.unpack(LINE, redis.call('GET', line_key))
      redis.call('SETRANGE', line_key, 8, struct.pack('<I8', delivered_at))
      sum = sum + amount
    end
    local prefix = warehouse_of(district)
    local owner = prefix .. 'c' .. string.char(i) .. struct.pack('<I4', customer)
    local balance, _, _, deliveries = struct.unpack('<i8i8I4I4', redis.call('GET', owner))
    redis.call('SETRANGE', owner, 0, struct.pack('<i8', balance + sum))
    redis.call('SETRANGE', owner, 20, struct.pack('<I4', deliveries + 1))
    delivered[i] = oldest
  else
    delivered[i] = false
  end
end
return delivered
