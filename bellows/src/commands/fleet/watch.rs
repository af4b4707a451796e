//! Following of a deployment until it ends.

use clap::Args;
use protocol::fleet::DeploymentState;

use super::objects::DEPLOYMENT;
use crate::api::Api;
use crate::fail::{Fail, Outcome};
use crate::terminal::{err, out};
use crate::view::fleet::{Deployed, progress_line, state_word};
use crate::vm_state::POLL_INTERVAL;

/// Whether and how long to follow the deployment.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WatchArgs {
    /// Print progress until the deployment ends
    #[arg(short, long, visible_alias = "wait")]
    watch: bool,
    /// Give up watching after this many seconds
    #[arg(
        long,
        default_value_t = 86_400,
        value_name = "SECONDS",
        requires = "watch"
    )]
    timeout: u64,
}

impl WatchArgs {
    pub(super) fn is_wanted(&self) -> bool {
        self.watch
    }
}

/// Follows a deployment, if that is wanted.
///
/// # Errors
/// 1 if it ends otherwise than complete. 75 if the API is away or the time is over.
pub(super) async fn follow(api: &Api, key: (&str, &str), args: &WatchArgs) -> Outcome {
    if !args.is_wanted() {
        err(&format!(
            "see how far it is: bellows fleet -n {}; or give --watch",
            key.0
        ));
        return Ok(());
    }
    result_of(&until_ended(api, key, args).await?)
}

/// Prints each change of a deployment until it ends.
pub(super) async fn until_ended(
    api: &Api,
    (namespace, name): (&str, &str),
    args: &WatchArgs,
) -> Outcome<Deployed> {
    let begun = tokio::time::Instant::now();
    let mut shown = String::new();
    loop {
        let object = api.get(DEPLOYMENT, namespace, name).await?;
        let one = Deployed::of(&object)
            .map_err(|error| Fail::not_so(format!("fleet deployment {name}: {error}")))?;
        let line = progress_line(&one);
        if line != shown {
            out(&line);
            shown = line;
        }
        if one.status.state.is_terminal() {
            for line in &one.status.evidence {
                out(&format!("  {line}"));
            }
            return Ok(one);
        }
        if begun.elapsed().as_secs() >= args.timeout {
            let what = format!(
                "fleet deployment {namespace}/{name} is {} after {} s",
                state_word(one.status.state),
                args.timeout
            );
            return Err(Fail::try_again(what)
                .rule("bellows up carries deployments out")
                .fix("see what it waits for: bellows fleet; and whether bellows up runs: bellows status"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The end of the command for the end of its deployment.
pub(super) fn result_of(one: &Deployed) -> Outcome {
    let (namespace, name) = (&one.namespace, &one.name);
    let state = one.status.state;
    if state == DeploymentState::Complete {
        return Ok(());
    }
    let what = format!(
        "fleet deployment {namespace}/{name} ended {}",
        state_word(state)
    );
    let fail = Fail::not_so(what);
    let env = &one.spec.environment;
    Err(match state {
        DeploymentState::Unhealthy => fail
            .rule("a deployment ends when more trials end badly than --max-failed allows")
            .fix(format!(
                "see why: bellows fleet history {env} -n {namespace}; bellows fleet why VM"
            )),
        DeploymentState::TimedOut => fail
            .rule("a deployment ends after --deadline")
            .fix("see which gate held it: bellows fleet plan ENV"),
        _ => fail.fix(format!(
            "see who ended it: bellows fleet history {env} -n {namespace}"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fleet::testing::deployed;

    #[test]
    fn only_a_complete_deployment_is_a_success() {
        for state in DeploymentState::ALL
            .into_iter()
            .filter(|one| one.is_terminal())
        {
            let result = result_of(&deployed("m-r1-1", "m-r1", state));
            match state {
                DeploymentState::Complete => assert_eq!(result, Ok(())),
                _ => assert_eq!(result.expect_err("it failed").exit() as u8, 1, "{state:?}"),
            }
        }
    }
}
