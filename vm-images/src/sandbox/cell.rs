//! The command line that confines one program of an image, and the user namespace that it enters.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::NamedTempFile;

use super::filter;
use super::owners::{self, FIRST_ID, IDS};
use crate::error::{BuildError, IoContext};
use crate::search_path::SEARCH_PATH;

/// IDs of a user in the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Groups beside `gid`, by number.
    pub(crate) groups: Vec<u32>,
}

/// Capabilities of the image's root. They count only inside the user namespace.
const CAPABILITIES: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Mount point of the tree, in its own mount namespace, from which bubblewrap takes it. The tree's
/// path may lead through directories that the users of images cannot enter.
pub(super) const TREE: &str = "/mnt";

/// Closes inherited files, opens user namespace and filter as files 3 and 4, mounts the tree at
/// [`TREE`], and executes its remaining arguments.
const PREPARE: &str = r#"
for file in /proc/self/fd/*; do
    number=${file##*/}
    if ((number > 2)); then eval "exec $number>&-"; fi
done
exec 3<"$1" 4<"$2" && mount --bind "$3" /mnt || exit
shift 3
exec "$@""#;

/// Options of bubblewrap for every program.
const ISOLATION: &[&str] = &[
    "bwrap",
    "--userns",
    "3",
    // bubblewrap reads from this file and closes it. Otherwise the program would inherit the user
    // namespace as an open file.
    "--block-fd",
    "3",
    "--seccomp",
    "4",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    // The program is the first of its pid namespace. bubblewrap returns when all others have ended.
    "--as-pid-1",
    "--die-with-parent",
    "--new-session",
    "--hostname",
    "build",
    "--clearenv",
    "--cap-drop",
    "ALL",
];

/// The command line in front of a confined program, and the files and processes that it refers to.
pub(crate) struct Cell {
    command: Vec<OsString>,
    _namespace: Namespace,
    _filter: NamedTempFile,
}

impl Cell {
    pub(super) fn new(
        who: &Identity,
        root: &Path,
        view: impl Iterator<Item = OsString>,
    ) -> Result<Self, BuildError> {
        let (namespace, filter) = (Namespace::new(who)?, filter::file()?);
        let mut command: Vec<OsString> =
            ["unshare", "--mount", "--", "bash", "-c", PREPARE, "bash"]
                .map(OsString::from)
                .into();
        command.push(namespace.file());
        command.push(filter.path().into());
        command.push(root.into());
        command.extend(become_user(who).map(OsString::from));
        command.extend(["setarch", "--addr-no-randomize", "--"].map(OsString::from));
        command.extend(ISOLATION.iter().map(OsString::from));
        if who.uid == 0 {
            let each = CAPABILITIES.iter().flat_map(|name| ["--cap-add", name]);
            command.extend(each.map(OsString::from));
        }
        command.extend(view);
        for (option, number) in [("--uid", who.uid), ("--gid", who.gid)] {
            command.extend([option.into(), number.to_string().into()]);
        }
        command.extend(["--chdir", "/"].map(OsString::from));
        Ok(Self {
            command,
            _namespace: namespace,
            _filter: filter,
        })
    }

    /// The command line, with the variables of the confined program.
    pub(crate) fn command<'a>(
        &self,
        variables: impl Iterator<Item = (&'a str, OsString)>,
    ) -> Vec<OsString> {
        let mut command = self.command.clone();
        for (name, value) in variables {
            command.extend(["--setenv".into(), name.into(), value]);
        }
        command.push("--".into());
        command
    }
}

/// Command line that makes a process the image's user `who`, without rights of root.
fn become_user(who: &Identity) -> [String; 7] {
    let number = |id: u32| (FIRST_ID.saturating_add(id)).to_string();
    let groups: Vec<String> = who.groups.iter().map(|id| number(*id)).collect();
    let groups = match groups.as_slice() {
        [] => "--clear-groups".to_owned(),
        some => format!("--groups={}", some.join(",")),
    };
    [
        "setpriv".to_owned(),
        "--pdeathsig=KILL".to_owned(),
        format!("--reuid={}", number(who.uid)),
        format!("--regid={}", number(who.gid)),
        groups,
        // bubblewrap sets it, too. Here it covers bubblewrap itself.
        "--no-new-privs".to_owned(),
        "--".to_owned(),
    ]
}

/// A user namespace with the IDs of images. A process holds it until its input ends.
struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// The user `who` owns the namespace, so bubblewrap may enter it as that user.
    fn new(who: &Identity) -> Result<Self, BuildError> {
        let most = [who.uid, who.gid]
            .into_iter()
            .chain(who.groups.clone())
            .max();
        if let Some(id @ IDS..) = most {
            return Err(owners::too_large(id, Path::new("/etc/passwd")));
        }
        let mut command = Command::new("setpriv");
        command.args(&become_user(who)[1..]);
        command.args(["unshare", "--user", "--", "sh", "-c", "echo && read -r end"]);
        command
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let keeper = command.spawn().at("start", Path::new("setpriv"))?;
        let mut namespace = Self { keeper };
        namespace.wait_until_made()?;
        for (map, group) in [("uid_map", "users"), ("gid_map", "groups")] {
            let path = namespace.place(map);
            fs::write(&path, format!("0 {FIRST_ID} {IDS}\n")).map_err(|error| {
                BuildError::Unconfined {
                    why: format!("the kernel refuses {group} of a user namespace: {error}"),
                }
            })?;
        }
        Ok(namespace)
    }

    /// Waits for a line that the process writes from inside the namespace.
    fn wait_until_made(&mut self) -> Result<(), BuildError> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.keeper.stdout {
            // An unreadable line counts as empty.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if !line.is_empty() {
            return Ok(());
        }
        let mut why = String::new();
        if let Some(stderr) = &mut self.keeper.stderr {
            // An unreadable error is not quoted.
            let _ = stderr.read_to_string(&mut why);
        }
        Err(BuildError::Unconfined {
            why: why.trim().replace('\n', "; "),
        })
    }

    fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.keeper.id()))
    }

    fn file(&self) -> OsString {
        self.place("ns/user").into()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(
            self.keeper
                .stdin
                .take()
                .map(|mut input| input.write_all(b"\n")),
        );
        // The child ends with its input. An error has no remedy.
        let _ = self.keeper.wait();
    }
}
