//! The command line of `bellows`, and the dispatch to its commands.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use protocol::release::RELEASE;

use crate::args::Global;
use crate::context::Context;
use crate::fail::Outcome;
use crate::{check, commands, get, node_orders, top, up, web};

/// Text of `bellows --help` below the list of commands.
const AFTER_HELP: &str = "\
First steps:
  bellows check                      what this machine lacks, each with its fix
  bellows image build                build the PostgreSQL guest
  bellows up --detach                start everything on this machine
  bellows vm create pg               a database that grows and shrinks
  bellows top                        watch it

Exit codes: 0 done, 1 the asked thing is not so, 64 usage or configuration, 69 something needed is missing,
70 a defect of ours, 75 try again later.";

/// Keeps every virtual machine exactly as big as it needs to be, and says why.
#[derive(Debug, Parser)]
#[command(name = "bellows", version = RELEASE, about, after_help = AFTER_HELP, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `bellows` can do, a variant for each command of its help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Look whether this machine, or the cluster, has everything, and say how to mend what it lacks
    Check(check::CheckArgs),
    /// Start everything on this machine, in one process
    Up(Box<up::args::UpArgs>),
    /// End `bellows up`; guests keep running unless told otherwise
    Down(commands::down::DownArgs),
    /// Parts, addresses and readiness of the running instance
    Status(commands::status::StatusArgs),
    /// Bring back the objects of guests that run without them, or let such guests go
    Adopt(commands::adopt::AdoptArgs),
    /// Copy the store of the API to a file
    Backup(commands::store::BackupArgs),
    /// Put a copy of the store back
    Restore(commands::store::RestoreArgs),
    /// Create, stop, start or delete a VM
    #[command(subcommand)]
    Vm(commands::vm::VmCommand),
    /// Sets of VMs: members from one template, counted, upgraded one by one
    #[command(subcommand)]
    Vmset(commands::vmset::VmsetCommand),
    /// Move a VM to another pod while its guest runs
    Migrate(Box<commands::migrate::MigrateArgs>),
    /// Keep VMs away from a node, or let them come again
    #[command(subcommand)]
    Node(node_orders::NodeCommand),
    /// List VMs, nodes or pods
    Get(get::GetArgs),
    /// Live view: size, load and decisions of every VM
    Top(top::TopArgs),
    /// The last resizes and where their time went
    Resizes(commands::resizes::ResizesArgs),
    /// Why a VM has the size it has
    Why(commands::why::WhyArgs),
    /// Decisions about a VM and what came of them, from the journal; in a cluster the last ones,
    /// from its agent
    History(commands::history::HistoryArgs),
    /// Verify, print, export and measure the decision journal
    #[command(subcommand)]
    Journal(commands::journal::JournalCommand),
    /// Decide again from a journal's records and compare byte by byte
    Replay(commands::journal::ReplayArgs),
    /// Versions of the programs that run in the guests
    Fleet(commands::fleet::FleetArgs),
    /// Policies: rules of your own for sizes, tried in shadow before they decide
    #[command(subcommand)]
    Policy(commands::policy::PolicyCommand),
    /// Machines that know each other without Kubernetes
    #[command(subcommand)]
    Peers(commands::peers::PeersCommand),
    /// Serve a page about all VMs, with orders, to the browser of one person
    Web(web::WebArgs),
    /// Open a shell in a VM, or run a command there
    Ssh(commands::ssh::SshArgs),
    /// Open a session in a VM's PostgreSQL
    Psql(commands::psql::PsqlArgs),
    /// Attach to a VM's console, or print its log
    Console(commands::console::ConsoleArgs),
    /// Build, list and remove images
    #[command(subcommand)]
    Image(commands::image::ImageCommand),
    /// Everything every part knows, as JSON
    Dump(commands::status::DumpArgs),
    /// Print the path of the kubeconfig
    Kubeconfig,
    /// Run kubectl with the kubeconfig
    #[command(disable_help_flag = true)]
    Kubectl(commands::kubectl::KubectlArgs),
    /// Print a completion script
    Completion(commands::completion::CompletionArgs),
    /// Print the version
    Version,
    /// Own one VM (started by `bellows up`, not by people)
    #[command(hide = true, disable_help_flag = true)]
    Runner(commands::runner::RunnerArgs),
}

impl Command {
    /// Whether the command needs a runtime with several threads.
    fn is_server(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Web(_))
    }
}

/// Runs a command. The exit code is 0 unless the command passes on another program's.
pub(crate) fn run(cli: Cli) -> Outcome<ExitCode> {
    let context = Context::new(cli.global);
    let done = |()| ExitCode::SUCCESS;
    match cli.command {
        // These commands replace the process or need no runtime.
        Command::Runner(args) => commands::runner::run(&args),
        Command::Kubectl(args) => commands::kubectl::run(&context, &args).map(done),
        Command::Kubeconfig => commands::kubectl::print_path(&context).map(done),
        Command::Completion(args) => {
            commands::completion::run(&args, &mut Cli::command()).map(done)
        }
        Command::Journal(args) => commands::journal::run(&context, &args).map(done),
        Command::Replay(args) => commands::journal::replay(&context, &args).map(done),
        Command::History(args) if !context.asks_cluster() => {
            commands::history::run(&context, &args).map(done)
        }
        Command::Version => {
            crate::terminal::out(&format!("bellows {RELEASE}"));
            Ok(ExitCode::SUCCESS)
        }
        command => {
            let runtime = crate::context::runtime(command.is_server())?;
            let outcome = runtime.block_on(dispatch(context, command));
            // A thread that waits for a key or a file must not delay the exit.
            runtime.shutdown_background();
            outcome
        }
    }
}

async fn dispatch(context: Context, command: Command) -> Outcome<ExitCode> {
    match command {
        Command::Ssh(args) => return commands::ssh::run(&context, &args).await,
        Command::Psql(args) => commands::psql::run(&context, &args).await,
        Command::Check(args) => check::run(&context, &args).await,
        Command::Up(args) => up::run(&context, *args).await,
        Command::Down(args) => commands::down::run(&context, &args).await,
        Command::Status(args) => commands::status::run(&context, &args).await,
        Command::Peers(command) => commands::peers::run(&context, command).await,
        Command::Adopt(args) => commands::adopt::run(&context, &args).await,
        Command::Backup(args) => commands::store::run(&context, &args).await,
        Command::Restore(args) => commands::store::restore(&context, &args),
        Command::Vm(args) => commands::vm::run(&context, args).await,
        Command::Vmset(args) => commands::vmset::run(&context, args).await,
        Command::Migrate(args) => commands::migrate::run(&context, &args).await,
        Command::History(args) => commands::history::in_cluster(&context, &args).await,
        Command::Node(command) => node_orders::run(&context, command).await,
        Command::Get(args) => get::run(&context, &args).await,
        Command::Top(args) => top::run(&context, &args).await,
        Command::Resizes(args) => commands::resizes::run(&context, &args).await,
        Command::Why(args) => commands::why::run(&context, &args).await,
        Command::Console(args) => commands::console::run(&context, &args).await,
        Command::Fleet(args) => commands::fleet::run(&context, &args).await,
        Command::Policy(args) => commands::policy::run(&context, args).await,
        Command::Web(args) => web::run(context, &args).await,
        Command::Image(args) => commands::image::run(&context, args).await,
        Command::Dump(args) => commands::status::dump(&context, &args).await,
        Command::Kubeconfig
        | Command::Kubectl(_)
        | Command::Completion(_)
        | Command::Journal(_)
        | Command::Replay(_)
        | Command::Version
        | Command::Runner(_) => unreachable!("handled before the runtime starts"),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_a_help_text() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(
                command.get_about().is_some() || command.is_hide_set(),
                "{path} has no help"
            );
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(
                    arg.get_help().is_some(),
                    "{path}: {} has no help",
                    arg.get_id()
                );
            }
            for sub in command.get_subcommands() {
                look(sub, &path);
            }
        }
        let mut command = Cli::command();
        command.build();
        look(&command, "");
    }

    #[test]
    fn a_vm_is_named_with_or_without_its_namespace() {
        for (args, key) in [
            (vec!["bellows", "why", "pg"], ("default", "pg")),
            (vec!["bellows", "why", "pg", "-n", "a"], ("a", "pg")),
            (vec!["bellows", "why", "b/pg", "-n", "a"], ("b", "pg")),
        ] {
            let Command::Why(why) = Cli::try_parse_from(args).unwrap().command else {
                panic!("not why")
            };
            assert_eq!(why.vm.key(), key);
        }
    }
}
