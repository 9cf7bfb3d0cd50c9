-- The health of a ComputeCluster or a ComputeJob, for Argo CD. See README.md.
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "Waiting for the operator."}
end
if status.state == "Suspended" then
  return {status = "Suspended", message = status.message}
end
local meaning = {Ready = "Healthy", Complete = "Healthy", Stalled = "Degraded", Failed = "Degraded"}
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" and meaning[condition.type] ~= nil then
    return {status = meaning[condition.type], message = condition.message}
  end
end
return {status = "Progressing", message = status.message}
