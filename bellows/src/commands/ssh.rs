//! `bellows ssh`: a shell in a VM, with the VM's own key.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use protocol::vm::VirtualMachine;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::places::create_private_dir;

/// Port of the guest's SSH server.
const SSH_PORT: u16 = 22;
/// First bytes of every SSH server.
const BANNER: &[u8; 4] = b"SSH-";
/// Longest time until the SSH server of a running guest starts.
const SERVER_PATIENCE: Duration = Duration::from_secs(60);
/// Longest time until a connected server sends its banner.
const BANNER_PATIENCE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Open a shell in a VM, or run a command there.
///
/// Waits for the guest's SSH server, which comes up a little later than the guest. Uses the key of
/// the VM's ssh secret, kept in a file of its own (0600) only while ssh runs. The guest's host key
/// is accepted at the first contact and must stay the same as long as the same guest runs. Exits
/// with the status of ssh.
#[derive(Debug, Clone, Args)]
pub(crate) struct SshArgs {
    #[command(flatten)]
    vm: crate::args::VmArgs,
    /// User in the guest
    #[arg(short, long, default_value = "root", value_name = "USER")]
    user: String,
    /// Command to run there instead of a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs ssh and returns its status.
pub(crate) async fn run(context: &Context, args: &SshArgs) -> Outcome<ExitCode> {
    let (namespace, name) = args.vm.key();
    let api = context.api().await?;
    let target = Target::find(&api, namespace, name).await?;
    wait_for_server(&target.address).await.map_err(|why| {
        Fail::try_again(format!(
            "no SSH server of VM {namespace}/{name} answers at {}: {why}",
            target.address
        ))
        .rule("a guest runs before its SSH server does")
        .fix(format!(
            "see how far it has come: bellows console {name} -n {namespace} --log"
        ))
    })?;
    let dir = context.state()?.ssh();
    create_private_dir(&dir)?;
    let key = write_key(&dir, &target.key)?;
    let known_hosts = dir.join(format!("{}.known_hosts", target.pod_uid));
    let status = tokio::process::Command::new("ssh")
        .args(arguments(&target, key.path(), &known_hosts, args))
        .status()
        .await
        .map_err(|error| {
            Fail::missing(format!("ssh cannot be run: {error}"))
                .fix("apt-get install openssh-client")
        })?;
    drop(key);
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(255),
    ))
}

/// Waits for the banner of the guest's SSH server. QEMU accepts connections before the guest
/// listens, and resets them.
async fn wait_for_server(address: &str) -> Result<(), String> {
    let end = Instant::now() + SERVER_PATIENCE;
    loop {
        match timeout(BANNER_PATIENCE, banner(address)).await {
            Ok(Ok(start)) if start == *BANNER => return Ok(()),
            last if Instant::now() > end => {
                return Err(match last {
                    Ok(Ok(_)) => "another server answers there".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "it says nothing".to_owned(),
                });
            }
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// First bytes that a server sends.
async fn banner(address: &str) -> std::io::Result<[u8; BANNER.len()]> {
    let mut stream = TcpStream::connect((address, SSH_PORT)).await?;
    let mut start = [0; BANNER.len()];
    stream.read_exact(&mut start).await?;
    Ok(start)
}

struct Target {
    address: String,
    pod_uid: String,
    key: Vec<u8>,
}

impl Target {
    async fn find(api: &Api, namespace: &str, name: &str) -> Outcome<Self> {
        let object = api.get(Kind::Vm, namespace, name).await?;
        let vm: VirtualMachine = serde_json::from_value(object).map_err(|error| {
            Fail::bug(format!(
                "VM {namespace}/{name} cannot be understood: {error}"
            ))
        })?;
        let status = vm.status.unwrap_or_default();
        if !vm.spec.enable_ssh || status.ssh_secret_name.is_empty() {
            return Err(Fail::not_so(format!("VM {namespace}/{name} has no ssh"))
                .rule("spec.enableSSH must be true when it is created"));
        }
        if !status.phase.is_alive() || status.pod_ip.is_empty() {
            return Err(Fail::try_again(format!(
                "VM {namespace}/{name} does not run: its phase is {:?}",
                status.phase.as_str()
            ))
            .fix(format!(
                "see what it waits for: bellows get vms {name} -n {namespace}"
            )));
        }
        let secret = api
            .get(Kind::Secret, namespace, &status.ssh_secret_name)
            .await?;
        let pod = api.get(Kind::Pod, namespace, &status.pod_name).await?;
        Ok(Self {
            address: status.pod_ip,
            pod_uid: pod["metadata"]["uid"]
                .as_str()
                .unwrap_or(&status.pod_name)
                .to_owned(),
            key: private_key(&secret).ok_or_else(|| {
                Fail::bug(format!(
                    "secret {namespace}/{} holds no ssh-privatekey",
                    status.ssh_secret_name
                ))
            })?,
        })
    }
}

/// The key in a `kubernetes.io/ssh-auth` secret.
fn private_key(secret: &Value) -> Option<Vec<u8>> {
    let bytes: k8s_openapi::ByteString =
        serde_json::from_value(secret["data"]["ssh-privatekey"].clone()).ok()?;
    (!bytes.0.is_empty()).then_some(bytes.0)
}

/// Writes the key to a file with mode 0600. Dropping the value removes it.
fn write_key(dir: &Path, key: &[u8]) -> Outcome<tempfile::NamedTempFile> {
    let write = || -> std::io::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::Builder::new().prefix("key-").tempfile_in(dir)?;
        file.write_all(key)?;
        file.flush()?;
        Ok(file)
    };
    write().map_err(|error| {
        Fail::missing(format!(
            "{}: the key cannot be written: {error}",
            dir.display()
        ))
    })
}

fn arguments(target: &Target, key: &Path, known_hosts: &Path, args: &SshArgs) -> Vec<OsString> {
    let mut list: Vec<OsString> = vec!["-i".into(), key.into()];
    let options = [
        "IdentitiesOnly=yes".to_owned(),
        "StrictHostKeyChecking=accept-new".to_owned(),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        format!("UserKnownHostsFile={}", known_hosts.display()),
        // The address may belong to another VM later. The pod's UID identifies this guest.
        format!("HostKeyAlias={}", target.pod_uid),
        "LogLevel=ERROR".to_owned(),
        "ConnectTimeout=10".to_owned(),
    ];
    for option in options {
        list.push("-o".into());
        list.push(option.into());
    }
    list.push(format!("{}@{}", args.user, target.address).into());
    if !args.command.is_empty() {
        list.push("--".into());
        list.extend(args.command.iter().cloned());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Requirement: N48
    #[test]
    fn ssh_trusts_the_first_key_of_this_guest_only() {
        let cli =
            crate::cli::Cli::try_parse_from(["bellows", "ssh", "pg", "--", "uname", "-r"]).unwrap();
        let crate::cli::Command::Ssh(args) = cli.command else {
            panic!("not ssh")
        };
        let target = Target {
            address: "127.7.1.1".into(),
            pod_uid: "u-1".into(),
            key: Vec::new(),
        };
        let list: Vec<String> = arguments(&target, Path::new("/k"), Path::new("/h"), &args)
            .into_iter()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        assert_eq!(list[..2], ["-i", "/k"]);
        assert!(list.contains(&"HostKeyAlias=u-1".to_owned()));
        assert!(list.contains(&"StrictHostKeyChecking=accept-new".to_owned()));
        assert_eq!(
            list[list.len() - 4..],
            ["root@127.7.1.1", "--", "uname", "-r"]
        );
    }

    #[test]
    fn the_key_is_private_while_it_exists_and_then_gone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let secret = serde_json::json!({"data": {"ssh-privatekey": "c2VjcmV0"}});
        let key = write_key(dir.path(), &private_key(&secret).unwrap()).unwrap();
        let path = key.path().to_owned();
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(key);
        assert!(!path.exists());
        assert_eq!(private_key(&serde_json::json!({"data": {}})), None);
    }
}
