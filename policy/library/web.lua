-- Each set of this policy has one member for each `load_per_member` of its members' load (feed `load`,
-- such as host_load1 of port 9100). Never below `least` members. Grows at once, and shrinks by the mean
-- of ten minutes. With less capacity than wanted, asks for nodes.
return function(i)
  local each, least = i.params.load_per_member or 0.7, i.params.least or 1
  local lately = i.h:mean("feed:load", 600)
  local sets, wanted = {}, 0
  for name, set in pairs(i.sets) do
    local load = set.feeds.load
    local count = set.count
    if load and load.members > 0 then
      local now = math.ceil(load.sum / each)
      local before = lately and math.ceil(lately / each) or set.count
      count = math.max(least, math.max(now, math.min(set.count, before)))
    end
    sets[name] = { count = math.min(count, 1000) }
    wanted = wanted + count * set.member_cu
  end
  if wanted > i.cluster.sets_cu and i.cluster.nodes > 0 then
    local node = math.max(1, i.cluster.cu / i.cluster.nodes)
    local more = math.ceil((wanted - i.cluster.sets_cu) / node)
    return { sets = sets, nodes = { want = math.min(5000, i.cluster.nodes + more), why = "load" } }
  end
  return { sets = sets }
end
