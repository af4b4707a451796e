//! `bellows psql`: a session in a VM's PostgreSQL, with the password of the VM's secret.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use protocol::postgres::{PORT, ROLE, secret_of};
use protocol::vm::VirtualMachine;
use tokio::time::Instant;

use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::postgres::password;
use crate::progress::Progress;
use crate::terminal::out;
use crate::vm_state::POLL_INTERVAL;

/// Longest time until a running guest's server accepts the password.
const PATIENCE: Duration = Duration::from_secs(60);
/// Variables that would make psql connect to another server.
const OTHER_WAYS: [&str; 4] = ["PGHOSTADDR", "PGSERVICE", "PGSERVICEFILE", "PGOPTIONS"];

/// Open a session in a VM's PostgreSQL, or pass psql arguments.
///
/// Runs this machine's psql as the role postgres in the database postgres, unless ARGS say
/// otherwise. The password comes from the VM's secret, and is neither on a command line nor in a
/// file. Waits for the server, which comes up a little later than the guest.
#[derive(Debug, Clone, Args)]
pub(crate) struct PsqlArgs {
    #[command(flatten)]
    vm: crate::args::VmArgs,
    /// Print the password and run nothing
    #[arg(long, conflicts_with = "arguments")]
    show_password: bool,
    /// Print the address for other clients and run nothing; the password is in it with
    /// --show-password
    #[arg(long, conflicts_with = "arguments")]
    print_uri: bool,
    /// Arguments of psql, such as -d bench -c 'select 1'
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// Replaces this process with psql, or prints the URI. Returns only after printing or on failure.
pub(crate) async fn run(context: &Context, args: &PsqlArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    let api = context.api().await?;
    let target = Target::find(&api, namespace, name).await?;
    if args.print_uri {
        out(&target.uri(args.show_password)?);
        return Ok(());
    }
    if args.show_password {
        out(&target.password);
        return Ok(());
    }
    target.wait_for_server(namespace, name).await?;
    let error = target.psql().args(&args.arguments).exec();
    Err(no_psql(&error))
}

fn no_psql(error: &std::io::Error) -> Fail {
    Fail::missing(format!("psql cannot be run: {error}"))
        .fix("apt-get install postgresql-client; or go by the guest: bellows ssh VM -- psql -h /tmp -U postgres")
}

/// Server and credentials of a connection.
struct Target {
    address: Option<String>,
    phase: String,
    password: String,
}

impl Target {
    async fn find(api: &Api, namespace: &str, name: &str) -> Outcome<Self> {
        let object = api.get(Kind::Vm, namespace, name).await?;
        let Some(secret) = secret_of(&object).map(str::to_owned) else {
            return Err(
                Fail::not_so(format!("VM {namespace}/{name} gives its guest no password"))
                    .rule("bellows vm create gives one to VMs of a PostgreSQL image")
                    .fix("give it one: docs/images.md, \"The password of PostgreSQL\""),
            );
        };
        let found = api.get(Kind::Secret, namespace, &secret).await?;
        let password = password(&found).ok_or_else(|| {
            Fail::not_so(format!("secret {namespace}/{secret} holds no password"))
                .rule("its key is password, and the first line counts")
        })?;
        let vm: VirtualMachine = serde_json::from_value(object).map_err(|error| {
            Fail::bug(format!(
                "VM {namespace}/{name} cannot be understood: {error}"
            ))
        })?;
        let status = vm.status.unwrap_or_default();
        let is_reached = status.phase.is_alive() && !status.pod_ip.is_empty();
        Ok(Self {
            address: is_reached.then_some(status.pod_ip),
            phase: status.phase.as_str().to_owned(),
            password,
        })
    }

    fn address(&self) -> Outcome<&str> {
        self.address.as_deref().ok_or_else(|| {
            Fail::try_again(format!(
                "the VM does not run: its phase is {:?}",
                self.phase
            ))
            .fix("see what it waits for: bellows get vms")
        })
    }

    /// Escapes the password, which may hold reserved characters if a user chose it.
    fn uri(&self, with_password: bool) -> Outcome<String> {
        let address = match self.address()? {
            address if address.contains(':') => format!("[{address}]"),
            address => address.to_owned(),
        };
        let word = if with_password {
            format!(":{}", escaped(&self.password))
        } else {
            String::new()
        };
        Ok(format!("postgresql://{ROLE}{word}@{address}:{PORT}/{ROLE}"))
    }

    fn psql(&self) -> Command {
        let mut command = Command::new("psql");
        for name in OTHER_WAYS {
            command.env_remove(name);
        }
        command
            .env("PGHOST", self.address.as_deref().unwrap_or_default())
            .env("PGPORT", PORT.to_string())
            .env("PGUSER", ROLE)
            .env("PGDATABASE", ROLE)
            .env("PGPASSWORD", &self.password);
        command
    }

    /// Waits until the server accepts the password. The guest sets it shortly after the server
    /// starts.
    async fn wait_for_server(&self, namespace: &str, name: &str) -> Outcome {
        let address = self.address()?;
        let end = Instant::now() + PATIENCE;
        let mut progress = Progress::new();
        loop {
            let mut probe = tokio::process::Command::from(self.psql());
            let probe = probe
                .args(["-X", "-q", "-w", "-c", ""])
                .env("PGCONNECT_TIMEOUT", "5")
                .stdin(Stdio::null());
            let output = probe.output().await.map_err(|error| no_psql(&error))?;
            if output.status.success() {
                progress.clear();
                return Ok(());
            }
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().next().unwrap_or_default();
            if Instant::now() > end {
                return Err(Fail::try_again(format!(
                    "PostgreSQL of VM {namespace}/{name} takes no session at {address}: {why}"
                ))
                .rule("a guest runs before its database does")
                .fix(format!(
                    "see how far it has come: bellows console {name} -n {namespace} --log"
                )));
            }
            progress.say(&format!(
                "waiting for PostgreSQL of {namespace}/{name}: {why}"
            ));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Percent-encodes a part of a URI.
fn escaped(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| {
        if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    word.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(address: &str) -> Target {
        Target {
            address: (!address.is_empty()).then(|| address.to_owned()),
            phase: "Pending".into(),
            password: "it's/1".into(),
        }
    }

    #[test]
    fn password_is_in_the_environment_of_psql_and_not_in_its_arguments() {
        let command = target("127.7.1.1").psql();
        assert_eq!(command.get_args().count(), 0);
        let value = |name: &str| {
            let mut all = command.get_envs();
            all.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        assert_eq!(value("PGPASSWORD"), Some(Some("it's/1".as_ref())));
        assert_eq!(value("PGHOST"), Some(Some("127.7.1.1".as_ref())));
        assert_eq!(value("PGHOSTADDR"), Some(None), "it is taken away");
    }

    #[test]
    fn uri_holds_the_password_only_on_request() {
        let uri = |address: &str, with| target(address).uri(with).unwrap();
        assert_eq!(
            uri("127.7.1.1", false),
            "postgresql://postgres@127.7.1.1:5432/postgres"
        );
        assert_eq!(
            uri("fd00::1", true),
            "postgresql://postgres:it%27s%2F1@[fd00::1]:5432/postgres"
        );
        assert_eq!(target("").uri(false).unwrap_err().exit() as u8, 75);
    }
}
