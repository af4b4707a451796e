//! Orders about a set, by a command or by a page. On one machine each is in the journal before it
//! is carried out.

use protocol::journal::Action;
use serde_json::{Value, json};

use super::plan::{self, SetPlan};
use super::view::SetView;
use crate::actions;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// A set, and why something about it is changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetOrder<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) reason: Option<&'a str>,
    /// Number that the person was shown: of members before `scale`, else of the version that
    /// members get. `None`: whatever it is.
    pub(crate) seen: Option<u32>,
}

impl<'a> SetOrder<'a> {
    /// An order by a command, whatever the set's state.
    pub(super) fn new((namespace, name): (&'a str, &'a str), reason: Option<&'a str>) -> Self {
        Self {
            namespace,
            name,
            reason,
            seen: None,
        }
    }

    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) async fn view(&self, api: &Api) -> Outcome<SetView> {
        let set = api.get(Kind::VmSet, self.namespace, self.name).await?;
        Ok(SetView::of(&set))
    }

    /// Refuses an order about a state that the person was not shown.
    fn is_as_seen(&self, now: u32, what: &str) -> Outcome {
        let Some(seen) = self.seen.filter(|seen| *seen != now) else {
            return Ok(());
        };
        let key = self.key();
        Err(
            Fail::try_again(format!("VM set {key}: {what} is {now} now, not {seen}"))
                .rule("an order is carried out about the state that was looked at")
                .fix(format!("look: bellows vmset get {key}; then order again")),
        )
    }

    /// Patches the set between the two records of the action.
    pub(super) async fn patch(
        &self,
        context: &Context,
        api: &Api,
        (what, to): (&str, String),
        patch: Value,
    ) -> Outcome {
        let action = Action {
            what: what.to_owned(),
            on: Some(self.key()),
            to: Some(to),
            why: self.reason.map(str::to_owned),
            ..Action::default()
        };
        let written = async {
            let written = api.merge(Kind::VmSet, self.namespace, self.name, &patch);
            written.await.map(drop)
        };
        actions::recorded(context, action, written).await
    }
}

/// Changes the number of members.
pub(crate) async fn scale(
    context: &Context,
    order: &SetOrder<'_>,
    count: u32,
) -> Outcome<Vec<String>> {
    let api = context.api().await?;
    let view = order.view(&api).await?;
    order.is_as_seen(view.replicas, "its number of members")?;
    let patch = json!({"spec": {"replicas": count}});
    let action = ("vmset scale", count.to_string());
    order.patch(context, &api, action, patch).await?;
    let key = order.key();
    Ok(vec![format!("VM set {key} is to have {count} members")])
}

/// Brings the members to the newest template, one after the other.
pub(crate) async fn upgrade(context: &Context, order: &SetOrder<'_>) -> Outcome<Vec<String>> {
    let api = context.api().await?;
    let view = order.view(&api).await?;
    let SetPlan { to, .. } = plan::upgrade(&view, &[])?;
    let action = ("vmset upgrade", "the newest version");
    set_version(context, &api, order, action, to).await
}

/// Takes an upgrade back.
pub(crate) async fn undo(context: &Context, order: &SetOrder<'_>) -> Outcome<Vec<String>> {
    let api = context.api().await?;
    let view = order.view(&api).await?;
    let SetPlan { to, .. } = plan::undo(&view, &[])?;
    let action = ("vmset undo", "the version to go back to");
    set_version(context, &api, order, action, to).await
}

pub(super) async fn set_version(
    context: &Context,
    api: &Api,
    order: &SetOrder<'_>,
    (what, version): (&str, &str),
    to: u32,
) -> Outcome<Vec<String>> {
    order.is_as_seen(to, version)?;
    let patch = json!({"spec": {"version": to}});
    let action = (what, format!("to version {to}"));
    order.patch(context, api, action, patch).await?;
    Ok(vec![format!(
        "members of VM set {} get version {to}, one after the other",
        order.key()
    )])
}
