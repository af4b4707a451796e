-- A cache grows while it misses, and shrinks while it hits with room to spare.
-- Series: lfc_hits, lfc_misses. Parameters: grow_at and shrink_at, shares of misses (0.05, 0.01).
return function(i)
  local hits, misses = i.h:delta("lfc_hits", 300), i.h:delta("lfc_misses", 300)
  if not hits or not misses or hits + misses <= 0 then
    return { cu = i.builtin.cu, reason = "no_data" }
  end
  local share = misses / (hits + misses)
  local cu, reason = i.vm.use_cu, "steady"
  if share > (i.params.grow_at or 0.05) then
    cu, reason = i.vm.use_cu + 1, "misses"
  elseif share < (i.params.shrink_at or 0.01) and not std.refused(i, 600) then
    cu, reason = i.vm.use_cu - 1, "hits"
  end
  cu = math.max(math.ceil(cu), i.builtin.cu, math.ceil(i.vm.min_cu))
  return { cu = cu, reason = reason, votes = { miss_share = share } }
end
