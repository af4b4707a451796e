//! Parts of guests for people: the programs of ours that run in them, and their versions.

use std::collections::BTreeMap;

use daemon_kit::process_age;
use fleet_store::{DaemonSigns, Unmanaged};
use protocol::parts::{PartName, PartPhase, PartSource, PartState, PartStates};
use serde::Serialize;
use serde_json::Value;

use crate::output::{Cell, Table};
use crate::terminal::Tone;

/// Digits of a digest in a table. All of them are in the wide one.
const SHORT_DIGEST: usize = 12;

/// One guest. An item of `bellows fleet instances -o json`. Members are added, never changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct InstanceView {
    pub(crate) namespace: String,
    pub(crate) vm: String,
    /// By name. Empty if `unmanaged` says why.
    pub(crate) parts: PartStates,
    pub(crate) unmanaged: Option<Unmanaged>,
}

impl InstanceView {
    /// The guest of a runner with this state.
    pub(crate) fn of(namespace: &str, vm: &str, runner: &Value) -> Self {
        let parts = match &runner["guest_parts"] {
            Value::Null => Ok(PartStates::new()),
            parts => serde_json::from_value(parts.clone()).map_err(|_| Unmanaged::Unreadable),
        };
        match parts {
            Ok(parts) if parts.is_empty() => Self::unmanaged(namespace, vm, reason_of(runner)),
            Err(reason) => Self::unmanaged(namespace, vm, reason),
            Ok(parts) => Self {
                namespace: namespace.to_owned(),
                vm: vm.to_owned(),
                parts,
                unmanaged: None,
            },
        }
    }

    pub(crate) fn unmanaged(namespace: &str, vm: &str, reason: Unmanaged) -> Self {
        Self {
            namespace: namespace.to_owned(),
            vm: vm.to_owned(),
            parts: PartStates::new(),
            unmanaged: Some(reason),
        }
    }

    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.namespace, &self.vm)
    }

    /// Version of the monitor that runs, if it is known.
    pub(crate) fn monitor_version(&self) -> Option<String> {
        let version = &self.parts.get(&PartName::Monitor)?.version;
        (!version.is_empty()).then(|| version.clone())
    }
}

/// NeonVM's daemon answers with a number of CPUs, ours also with the boot's id.
fn reason_of(runner: &Value) -> Unmanaged {
    let qemu = runner["qemu_pid"].as_u64();
    let age = qemu
        .and_then(|pid| u32::try_from(pid).ok())
        .and_then(process_age);
    Unmanaged::without_parts(DaemonSigns {
        has_boot: !runner["boot_id"].is_null(),
        has_cpus: !runner["cpus"]["guest_online"].is_null(),
        uptime_seconds: age.map(|age| age.as_secs()),
    })
}

/// The table of `bellows fleet instances`.
pub(crate) fn table(instances: &[InstanceView], with_namespace: bool, wide: bool) -> Table {
    let mut header = vec!["VM", "PART", "VERSION", "FROM", "PHASE", "SHA256", "REASON"];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    let mut table = Table::new(&header);
    for instance in instances {
        let mut name: Vec<Cell> = Vec::new();
        if with_namespace {
            name.push(instance.namespace.clone().into());
        }
        name.push(instance.vm.clone().into());
        if let Some(reason) = instance.unmanaged {
            let mut row = name.clone();
            row.extend(["-", "-", "-"].map(Cell::from));
            row.push(Cell::toned(Tone::Warn, "unmanaged"));
            row.extend(["-", reason.text()].map(Cell::from));
            table.row(row);
        }
        for (part, state) in &instance.parts {
            table.row([name.clone(), cells(*part, state, wide)].concat());
        }
    }
    table
}

fn cells(part: PartName, state: &PartState, wide: bool) -> Vec<Cell> {
    let tone = match state.phase {
        PartPhase::Settled => Tone::Good,
        PartPhase::Staged | PartPhase::Trial => Tone::Warn,
        PartPhase::Back => Tone::Bad,
    };
    let digits = if wide { usize::MAX } else { SHORT_DIGEST };
    vec![
        part.as_str().into(),
        or_dash(&state.version).into(),
        origin(state.from).into(),
        Cell::toned(tone, phase(state.phase)),
        or_dash(&state.sha256.chars().take(digits).collect::<String>()).into(),
        or_dash(&state.reason).into(),
    ]
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

const fn origin(from: PartSource) -> &'static str {
    match from {
        PartSource::Image => "image",
        PartSource::A => "a",
        PartSource::B => "b",
        PartSource::Package => "package",
    }
}

const fn phase(phase: PartPhase) -> &'static str {
    match phase {
        PartPhase::Settled => "settled",
        PartPhase::Staged => "staged",
        PartPhase::Trial => "trial",
        PartPhase::Back => "back",
    }
}

/// Guests by part and version. Output of `bellows fleet -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    versions: Vec<VersionCount>,
    /// Guests whose parts are unknown.
    unmanaged: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct VersionCount {
    part: PartName,
    /// Empty if the program names none.
    version: String,
    guests: usize,
}

impl Counts {
    pub(crate) fn of(instances: &[InstanceView]) -> Self {
        let mut guests: BTreeMap<(PartName, &str), usize> = BTreeMap::new();
        for (part, state) in instances.iter().flat_map(|instance| &instance.parts) {
            *guests.entry((*part, &state.version)).or_default() += 1;
        }
        let versions = guests
            .into_iter()
            .map(|((part, version), guests)| VersionCount {
                part,
                version: version.to_owned(),
                guests,
            });
        let unmanaged = instances.iter().filter(|it| it.unmanaged.is_some()).count();
        Self {
            versions: versions.collect(),
            unmanaged,
        }
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(&["PART", "VERSION", "GUESTS"]);
        for count in &self.versions {
            table.row(vec![
                count.part.as_str().into(),
                or_dash(&count.version).into(),
                count.guests.to_string().into(),
            ]);
        }
        if self.unmanaged > 0 || self.versions.is_empty() {
            let guests = self.unmanaged.to_string();
            let unmanaged = Cell::toned(Tone::Warn, "unmanaged");
            table.row(vec![unmanaged, "-".into(), guests.into()]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::Paint;

    fn state(version: &str, from: &str, phase: &str, reason: &str) -> Value {
        json!({
            "version": version, "sha256": "0123456789abcdef".repeat(4), "from": from,
            "phase": phase, "reason": reason,
        })
    }

    fn instances() -> Vec<InstanceView> {
        let trial = json!({"guest_parts": {
            "monitor": state("0.1.1", "A", "Trial", ""),
            "guestd": state("0.1.0", "Image", "Settled", ""),
        }});
        let back = json!({"guest_parts": {
            "monitor": state("0.1.0", "Image", "Back", "ended after 2 s"),
            "guestd": state("", "Image", "Settled", ""),
        }});
        let old = json!({"boot_id": "x", "cpus": {"guest_online": 1}});
        let neonvm = json!({"boot_id": null, "cpus": {"guest_online": 1}});
        vec![
            InstanceView::of("default", "pg", &trial),
            InstanceView::of("default", "web", &back),
            InstanceView::of("other", "old", &old),
            InstanceView::of("other", "theirs", &neonvm),
        ]
    }

    /// Requirement: B07
    #[test]
    fn each_part_has_a_row_and_unmanaged_guests_a_reason() {
        let lines = table(&instances(), true, false).lines(Paint::PLAIN);
        insta::assert_snapshot!("fleet_instances", lines.join("\n"));
        let wide = table(&instances(), false, true)
            .lines(Paint::PLAIN)
            .join("\n");
        assert!(wide.contains(&"0123456789abcdef".repeat(4)), "{wide}");
    }

    /// Requirement: B07
    #[test]
    fn guests_are_counted_by_part_and_version() {
        let counts = Counts::of(&instances());
        let lines = counts.table().lines(Paint::PLAIN);
        insta::assert_snapshot!("fleet_versions", lines.join("\n"));
        let none = Counts::of(&[]).table().lines(Paint::PLAIN);
        assert!(none[1].starts_with("unmanaged"), "{none:?}");
    }

    #[test]
    fn json_shape_of_an_instance_is_stable() {
        let both = [&instances()[0], &instances()[2]];
        insta::assert_snapshot!(
            "fleet_instances_json",
            serde_json::to_string_pretty(&both).unwrap()
        );
    }

    #[test]
    fn state_without_an_answer_or_with_strange_parts_is_unmanaged() {
        for (runner, reason) in [
            (json!({}), Unmanaged::Silent),
            (json!({"guest_parts": {}}), Unmanaged::Silent),
            (json!({"guest_parts": {"shell": 1}}), Unmanaged::Unreadable),
            (json!({"guest_parts": 7}), Unmanaged::Unreadable),
        ] {
            let instance = InstanceView::of("default", "pg", &runner);
            assert_eq!(instance.unmanaged, Some(reason), "{runner}");
            assert_eq!(instance.monitor_version(), None);
            let text = serde_json::to_value(reason).unwrap();
            assert_eq!(text, reason.text());
        }
        assert_eq!(instances()[0].monitor_version().as_deref(), Some("0.1.1"));
    }
}
