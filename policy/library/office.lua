-- The built-in goal, with a floor in working hours, so that mornings begin with room.
-- Parameters: floor, units (2); from and to, minutes of the day in UTC (450, 1080).
return function(i)
  local weekdays = { 1, 2, 3, 4, 5 }
  local from, to = i.params.from or 450, i.params.to or 1080
  local floor = i.params.floor or 2
  if std.office(i, from, to, weekdays) and i.builtin.cu < floor then
    return { cu = math.ceil(floor), reason = "office_hours" }
  end
  return { cu = i.builtin.cu, reason = "builtin" }
end
