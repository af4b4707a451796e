-- Work that can wait takes all there is, and gives way when other VMs of the node wait for units.
return function(i)
  local least = math.ceil(i.vm.min_cu)
  if i.node.starved_cu > 0 then
    local left = math.floor(i.vm.use_cu - i.node.starved_cu)
    return { cu = math.max(least, left), reason = "others_wait" }
  end
  return { cu = math.max(least, math.floor(i.vm.max_cu)), reason = "room" }
end
