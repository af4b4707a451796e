-- Services have a member for each `jobs_per_member` of their jobs (feed `jobs`), divided fairly where
-- capacity is short. Sets of a priority below 0 are work in the background: they take what is left.
return function(i)
  local each = i.params.jobs_per_member or 4
  local sets = {}
  for name, set in pairs(i.sets) do
    local jobs = set.feeds.jobs
    if set.priority < 0 then
      sets[name] = { rest = true }
    elseif jobs then
      sets[name] = { count = math.min(1000, math.max(1, math.ceil(jobs.sum / each))) }
    end
  end
  return { sets = sets }
end
