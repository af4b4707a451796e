-- A runner of builds needs one unit a running job, and keeps its size while the count is away.
-- Feed: jobs. Parameter: units_per_job (1).
return function(i)
  local jobs = i.feeds.jobs
  if not jobs then
    return std.hold("no_feed")
  end
  local need = jobs.value * (i.params.units_per_job or 1)
  -- A job that began lately is not in the count of an older page.
  if std.trend(i.h, "load1", 30, 300) == "up" then
    need = need + 1
  end
  local cu, reason = math.ceil(need), "jobs"
  if i.builtin.cu > cu then
    cu, reason = i.builtin.cu, "builtin"
  end
  return { cu = cu, reason = reason, votes = { jobs = jobs.value } }
end
