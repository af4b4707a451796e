//! The form of an order about a set. A change of the number has two steps: the number, then what it
//! does.

use protocol::policy::MAX_REPLICAS;
use serde::Deserialize;

use super::target::SetStep;
use crate::commands::vmset::plan::{self, SetPlan};
use crate::fail::{Fail, Outcome};
use crate::web::snapshot::SetState;

/// What the address of a form may ask for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OrderQuery {
    /// Number of members that a set is to have.
    pub(crate) count: String,
}

/// A number of members, as a person writes it.
pub(super) fn count_of(text: &str) -> Outcome<u32> {
    let wrong = || {
        Fail::usage(format!("{text:?} is no number of members"))
            .rule(format!("a set has 0 to {MAX_REPLICAS} members"))
    };
    text.parse().map_err(|_| wrong())
}

/// Title, label of the button, and what the order would do.
pub(super) struct SetForm {
    pub(super) title: String,
    pub(super) submit: &'static str,
    /// `None` before a number was chosen.
    pub(super) plan: Option<Outcome<SetPlan>>,
    /// Number that the person was shown, to be sent back.
    pub(super) seen: u32,
}

impl SetForm {
    pub(super) fn new(set: &SetState, step: SetStep, query: &OrderQuery) -> Self {
        let (view, members) = (&set.view, &set.members);
        let key = view.key();
        let of_version = |title: &str, submit, plan: Outcome<SetPlan>| Self {
            title: format!("{title} {key}"),
            submit,
            seen: plan.as_ref().map_or(0, |plan| plan.to),
            plan: Some(plan),
        };
        match step {
            SetStep::Scale => Self {
                title: format!("Members of {key}"),
                submit: "Change the number",
                plan: (!query.count.is_empty()).then(|| {
                    let count = count_of(&query.count)?;
                    plan::scale(view, members, count)
                }),
                seen: view.replicas,
            },
            SetStep::Upgrade => {
                of_version("Upgrade", "Upgrade the set", plan::upgrade(view, members))
            }
            SetStep::Undo => {
                let plan = plan::undo(view, members);
                of_version("Go back a version of", "Go back", plan)
            }
        }
    }
}
