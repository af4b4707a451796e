//! x
use crate::context::Context;
use crate::fail::Outcome;
use clap::Args;
/// x
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {}
pub(crate) async fn run(_context: &Context, _args: &CheckArgs) -> Outcome {
    Ok(())
}
