-- A database needs what it needed lately. It shrinks no further while its monitor refuses or asks.
-- Parameter: headroom, memory beyond what was used (1.15).
return function(i)
  local used, load = i.h:max("used", 900), i.h:q("load1", 0.9, 120)
  if not used or not load then
    return std.hold("no_data")
  end
  local memory = used * (i.params.headroom or 1.15) / i.unit.mem_bytes
  local cpu = load / 0.9 / (i.unit.cpu_m / 1000)
  local cu, reason = math.ceil(memory), "memory"
  if cpu > memory then
    cu, reason = math.ceil(cpu), "cpu"
  end
  if cu < i.vm.use_cu and std.refused(i, 300) then
    return std.hold("not_calm")
  end
  return { cu = cu, reason = reason, votes = { memory = memory, cpu = cpu } }
end
