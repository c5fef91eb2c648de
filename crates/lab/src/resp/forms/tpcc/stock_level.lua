-- KEYS: the district. ARGV: the threshold.
local threshold = tonumber(ARGV[1])
local prefix = warehouse_of(KEYS[1])
local _, next_order = struct.unpack('<i8I4', redis.call('GET', KEYS[1]))
local seen, low = {}, 0
for order = math.max(next_order - 20, 1), next_order - 1 do
  local row = redis.call('GET', below(KEYS[1], 'o', order))
  local count = row and select(4, struct.unpack(ORDER, row)) or 0
  for i = 1, count do
    local item = struct.unpack('<I4', redis.call('GET', below(KEYS[1], 'l', order, i)))
    if not seen[item] then
      seen[item] = true
      local left = struct.unpack('<i2', redis.call('GET', prefix .. 's' .. struct.pack('<I4', item)))
      if left < threshold then low = low + 1 end
    end
  end
end
return low
