//! `bellows kubectl` and `bellows kubeconfig`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use clap::Args;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Run kubectl with the kubeconfig.
#[derive(Debug, Clone, Args)]
pub(crate) struct KubectlArgs {
    /// Arguments of kubectl
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process with kubectl. Returns only if that fails.
pub(crate) fn run(context: &Context, args: &KubectlArgs) -> Outcome {
    let path = context.kubeconfig()?;
    if !context.asks_cluster() && !path.exists() {
        return Err(
            Fail::try_again(format!("{} does not exist", path.display()))
                .rule("bellows up writes it when it starts")
                .fix("bellows up --detach"),
        );
    }
    let error = std::process::Command::new("kubectl")
        .args(&args.arguments)
        .env("KUBECONFIG", path)
        .exec();
    Err(Fail::missing(format!("kubectl cannot be run: {error}"))
        .fix("install kubectl, or use bellows get and bellows vm, which do without it"))
}

pub(crate) fn print_path(context: &Context) -> Outcome {
    out(&context.kubeconfig()?.display().to_string());
    Ok(())
}
