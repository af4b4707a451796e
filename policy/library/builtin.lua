-- What would be wanted without a policy. A start for rules of your own.
return function(i)
  return { cu = i.builtin.cu, reason = "builtin" }
end
