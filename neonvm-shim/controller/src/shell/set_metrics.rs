//! Metrics of sets.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::metrics::OutcomeLabel;
use crate::core::set::{Kind, Outline, SetKey};

/// State in which members are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "label values")]
enum MemberState {
    wanted,
    present,
    ready,
    updated,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabels {
    namespace: String,
    set: String,
    state: MemberState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SetLabels {
    namespace: String,
    set: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "label values")]
enum ChangeLabel {
    create,
    delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    change: ChangeLabel,
    outcome: OutcomeLabel,
}

/// Metrics of sets; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct SetMetrics {
    members: Family<MemberLabels, Gauge>,
    halted: Family<SetLabels, Gauge>,
    changes: Family<ChangeLabels, Counter>,
}

impl SetMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "vmset_members",
            "Members of a set by state",
            metrics.members.clone(),
        );
        registry.register(
            "vmset_upgrade_halted",
            "1 while an upgrade of the set has stopped at a member",
            metrics.halted.clone(),
        );
        registry.register(
            "vmset_member_changes",
            "Members made and deleted",
            metrics.changes.clone(),
        );
        metrics
    }

    /// Updates the gauges of a set.
    pub(super) fn show(&self, set: &SetKey, outline: &Outline) {
        for (state, count) in [
            (MemberState::wanted, outline.wanted),
            (MemberState::present, outline.present),
            (MemberState::ready, outline.ready),
            (MemberState::updated, outline.updated),
        ] {
            let labels = member_labels(set, state);
            self.members.get_or_create(&labels).set(i64::from(count));
        }
        let halted = self.halted.get_or_create(&set_labels(set));
        halted.set(i64::from(outline.is_halted()));
    }

    /// Removes the gauges of a set that is gone.
    pub(super) fn remove(&self, set: &SetKey) {
        use MemberState::{present, ready, updated, wanted};
        for state in [wanted, present, ready, updated] {
            self.members.remove(&member_labels(set, state));
        }
        self.halted.remove(&set_labels(set));
    }

    /// Counts an action that has ended.
    pub(super) fn ended(&self, kind: Kind, is_done: bool) {
        let change = match kind {
            Kind::Create => ChangeLabel::create,
            Kind::Delete => ChangeLabel::delete,
            Kind::Status | Kind::Members => return,
        };
        let outcome = if is_done {
            OutcomeLabel::success
        } else {
            OutcomeLabel::failure
        };
        let labels = ChangeLabels { change, outcome };
        self.changes.get_or_create(&labels).inc();
    }
}

fn set_labels((namespace, set): &SetKey) -> SetLabels {
    SetLabels {
        namespace: namespace.clone(),
        set: set.clone(),
    }
}

fn member_labels((namespace, set): &SetKey, state: MemberState) -> MemberLabels {
    MemberLabels {
        namespace: namespace.clone(),
        set: set.clone(),
        state,
    }
}

#[cfg(test)]
mod tests {
    use protocol::policy::Upgrade;

    use super::*;

    /// Requirement: V15
    #[test]
    fn v15_figures_of_a_set_are_shown_until_it_is_gone() {
        let mut registry = Registry::default();
        let metrics = SetMetrics::register(&mut registry);
        let set = ("a".to_owned(), "web".to_owned());
        let outline = Outline {
            wanted: 3,
            ready: 1,
            upgrade: Some(Upgrade {
                halted: Some("web-0 has ended".into()),
                ..Upgrade::default()
            }),
            ..Outline::default()
        };
        metrics.show(&set, &outline);
        metrics.ended(Kind::Create, true);
        metrics.ended(Kind::Status, true);
        let page = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
            text
        };
        let text = page();
        for line in [
            r#"vmset_members{namespace="a",set="web",state="wanted"} 3"#,
            r#"vmset_members{namespace="a",set="web",state="ready"} 1"#,
            r#"vmset_upgrade_halted{namespace="a",set="web"} 1"#,
            r#"vmset_member_changes_total{change="create",outcome="success"} 1"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        metrics.remove(&set);
        assert!(!page().contains("web"), "{}", page());
    }
}
