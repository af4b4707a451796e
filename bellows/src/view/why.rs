//! Why a VM has the size it has, in sentences.

use serde_json::Value;

use super::units::{cores, memory};
use super::vm::VmView;
use crate::output::{age, millis};

/// Why the last increase was not granted in full, by resource. Empty if it was.
pub(crate) fn refusal(refused: &Value) -> Vec<String> {
    let limits = refused["limits"].as_array().map(Vec::as_slice);
    let node = refused["decision"]["node"].as_str().unwrap_or("?");
    let line = |limit: &Value| {
        let resource = limit[0].as_str()?;
        let verdict = &refused["decision"]["verdicts"][resource];
        let amount = |of: &str| {
            let amount = verdict[of].as_u64()?;
            Some(match resource {
                "cpu" => format!("{} CPU", cores(u32::try_from(amount).unwrap_or(u32::MAX))),
                _ => memory(amount),
            })
        };
        let (asked, permit, room) = (amount("asked")?, amount("permit")?, amount("room")?);
        let why = match limit[1].as_str()? {
            "no_room" => format!("node {node} has room for {room} more"),
            "fair_share" => format!("others on node {node} want what is left too, and are smaller"),
            "priority" => format!("VMs of a higher priority on node {node} want what is left"),
            "growth_rate" => "it or its node grew as fast as it may".into(),
            "migrating" => "it is being moved to another node".into(),
            "vm_max" => "that is the VM's own largest size".into(),
            "claim" => "its agent says it was permitted more than is written".into(),
            "node_missing" => format!("node {node} is not known any more"),
            other => other.replace('_', " "),
        };
        Some(format!(
            "The scheduler was asked for {asked} and permitted {permit}: {why}."
        ))
    };
    limits.unwrap_or_default().iter().filter_map(line).collect()
}

/// Size, problem, decision and last resize of a VM, in sentences.
pub(crate) fn lines(view: &VmView) -> Vec<String> {
    let now = |cpu: Option<u32>, mem: Option<u64>| {
        format!(
            "{} CPU / {}",
            cpu.map_or_else(|| "?".into(), cores),
            mem.map_or_else(|| "?".into(), memory)
        )
    };
    let mut lines = vec![format!(
        "{} has {}, should have {} CPU / {}, may have {} CPU / {} to {} CPU / {}.",
        view.key(),
        now(view.cpu_milli.now, view.memory_bytes.now),
        cores(view.cpu_milli.want),
        memory(view.memory_bytes.want),
        cores(view.cpu_milli.min),
        memory(view.memory_bytes.min),
        cores(view.cpu_milli.max),
        memory(view.memory_bytes.max),
    )];
    if let Some(set) = &view.set {
        lines.push(format!(
            "It is a member of set {}/{}, of version {}.",
            view.namespace, set.name, set.version
        ));
    }
    if let Some(problem) = &view.problem {
        lines.push(format!("Problem: {problem}."));
    }
    match &view.decision {
        Some(decision) => lines.extend(decision.sentences()),
        None if !view.autoscaled => lines.push(format!(
            "Nobody sizes it: it does not carry the label {}=true.",
            protocol::annotations::LABEL_ENABLED
        )),
        None => {}
    }
    if let Some(resize) = &view.last_resize {
        let state = if resize.complete {
            "took"
        } else {
            "is under way since"
        };
        lines.push(format!(
            "Its last resize ({}) began {} ago and {state} {} ms.",
            if resize.change.is_empty() {
                "sizes unknown"
            } else {
                &resize.change
            },
            age(resize.age_s),
            millis(resize.total_us),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Requirement: V15
    #[test]
    fn v15_reason_of_a_member_names_its_set() {
        let mut object = crate::view::vm::tests::object();
        let owner = json!({"kind": "VirtualMachineSet", "name": "web", "uid": "u"});
        object["metadata"]["ownerReferences"] = json!([owner]);
        object["metadata"]["annotations"] = json!({"policy.bellows.dev/set-version": "3"});
        let view = VmView::new(&object, &crate::view::vm::Beside::default());
        let said = lines(&view).join(" ");
        let expected = format!(
            "It is a member of set {}/web, of version 3.",
            view.namespace
        );
        assert!(said.contains(&expected), "{said}");
    }

    #[test]
    fn partial_grant_is_explained_by_resource() {
        let verdict = |asked: u64, permit: u64, room: u64| json!({"asked": asked, "held": permit, "permit": permit, "room": room});
        let refused = json!({"limits": [["cpu", "no_room"], ["mem", "growth_rate"]],
            "decision": {"node": "n1", "verdicts": {"cpu": verdict(5_000, 3_500, 500),
                "mem": verdict(8 << 30, 4 << 30, 64 << 30)}}});
        assert_eq!(
            refusal(&refused),
            [
                "The scheduler was asked for 5 CPU and permitted 3.5 CPU: node n1 has room for 0.5 CPU more.",
                "The scheduler was asked for 8Gi and permitted 4Gi: it or its node grew as fast as it may.",
            ]
        );
        assert_eq!(refusal(&Value::Null), [""; 0]);
        let odd = json!({"limits": [["cpu"], 7, ["mem", "no_room"]], "decision": 3});
        assert_eq!(refusal(&odd), [""; 0], "what cannot be read is left out");
    }
}
