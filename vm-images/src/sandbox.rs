//! Programs of an image, run apart from the machine that builds.
//!
//! bubblewrap gives them the image's tree as root directory, namespaces of their own (user, mount,
//! pid, ipc, uts, network, cgroup), no capability of the machine, `no_new_privs` and a filter of
//! system calls ([`filter`]). A user ID of the image is another number on the machine: [`owners`]
//! moves the owners of the tree there and back.
//!
//! Nothing of the image acts on the programs that prepare this: they get a clean environment, and
//! bubblewrap sets the image's variables last. When the first program ends, the kernel ends all
//! others of its pid namespace before the build goes on.

mod filter;
mod owners;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::NamedTempFile;

use crate::error::{BuildError, IoContext};
use crate::tool::{SEARCH_PATH, Tool};

/// First number on the machine of the users of images. The numbers of VMs end below it
/// (`docs/walls.md`), those of
/// `/etc/subuid` and systemd do, too.
const FIRST_ID: u32 = 0x7100_0000;
/// User IDs that an image may use.
const IDS: u32 = 0x0100_0000;
/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// What root of an image may do to the image. Nothing of it counts outside of the user namespace.
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

/// Where the tree is while bubblewrap looks for it, in a mount namespace of its own. The tree's own
/// path may lead through directories that are closed to the users of images.
const TREE: &str = "/mnt";

/// Closes what the caller left open, opens user namespace and filter as 3 and 4, puts the tree in
/// its place, and goes on as the rest of its arguments.
const PREPARE: &str = r#"
for file in /proc/self/fd/*; do
    number=${file##*/}
    if ((number > 2)); then eval "exec $number>&-"; fi
done
exec 3<"$1" 4<"$2" && mount --bind "$3" /mnt || exit
shift 3
exec "$@""#;

/// bubblewrap's options that every program gets.
const ISOLATION: &[&str] = &[
    "bwrap",
    "--userns",
    "3",
    // It reads from this file and closes it. Without this the program would inherit the user
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
    // The program is the first of its pid namespace: bubblewrap returns when all others have ended.
    "--as-pid-1",
    "--die-with-parent",
    "--new-session",
    "--hostname",
    "build",
    "--clearenv",
    "--cap-drop",
    "ALL",
];

/// Devices and shared memory, none of which stays in the image.
const DEVICES: [&str; 6] = ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"];

/// Numbers of a user in the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Groups beside `gid`, by number.
    pub(crate) groups: Vec<u32>,
}

/// An image's tree whose programs may be run. Nothing else may write to the tree until
/// [`Sandbox::close`].
pub(crate) struct Sandbox {
    root: PathBuf,
}

impl Sandbox {
    /// Gives the tree to the users that its programs have on this machine.
    pub(crate) fn open(root: &Path) -> Result<Self, BuildError> {
        device_directory(root)?;
        owners::move_in(root)?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// A program of the image, by its path there. It can write to the tree only.
    pub(crate) fn tool(
        &self,
        who: &Identity,
        program: &str,
        step: impl Into<String>,
    ) -> Result<Tool, BuildError> {
        let view = ["--bind", TREE, "/"].iter().chain(&DEVICES);
        let cell = Cell::new(who, &self.root, view.map(OsString::from))?;
        Ok(Tool::new(program, step).confined(cell))
    }

    /// Gives the tree back to the numbers of the image. A tree that is not closed is of no use.
    pub(crate) fn close(self) -> Result<(), BuildError> {
        owners::move_out(&self.root)
    }
}

/// A program below `tree` that only reads. It finds the tree under the same path as on the machine,
/// and the machine's own programs, which a wrapper script needs.
pub(crate) fn reading(
    tree: &Path,
    program: &Path,
    step: impl Into<String>,
) -> Result<Tool, BuildError> {
    let at = std::path::absolute(tree).at("find", tree)?;
    let own = ["/usr", "/bin", "/lib", "/lib64"].map(|dir| ["--ro-bind-try", dir, dir]);
    let mut view: Vec<OsString> = own
        .iter()
        .flatten()
        .chain(&DEVICES)
        .map(OsString::from)
        .collect();
    // Some programs look for themselves there.
    view.extend(["--proc", "/proc"].map(OsString::from));
    view.extend(["--ro-bind".into(), TREE.into(), at.into()]);
    let cell = Cell::new(&nobody(), tree, view.into_iter())?;
    Ok(Tool::new(&program.to_string_lossy(), step).confined(cell))
}

/// Why programs of images cannot be confined on this machine. `None` when they can.
#[must_use]
pub fn sandbox_refused() -> Option<String> {
    let attempt = || -> Result<(), BuildError> {
        let tool = reading(
            Path::new("/usr"),
            Path::new("/bin/true"),
            "running a program apart from this machine",
        )?;
        tool.run(&mut crate::progress::Reporter::new(&mut |_| {}))
    };
    attempt().err().map(|error| match error {
        BuildError::Unconfined { why } => why,
        other => other.to_string(),
    })
}

fn nobody() -> Identity {
    Identity {
        uid: NOBODY,
        gid: NOBODY,
        groups: Vec::new(),
    }
}

/// The words before a confined program, and what must live as long as it.
pub(crate) struct Cell {
    words: Vec<OsString>,
    _namespace: Namespace,
    _filter: NamedTempFile,
}

impl Cell {
    fn new(
        who: &Identity,
        root: &Path,
        view: impl Iterator<Item = OsString>,
    ) -> Result<Self, BuildError> {
        let (namespace, filter) = (Namespace::new(who)?, filter::file()?);
        let mut words: Vec<OsString> = ["unshare", "--mount", "--", "bash", "-c", PREPARE, "bash"]
            .map(OsString::from)
            .into();
        words.push(namespace.file());
        words.push(filter.path().into());
        words.push(root.into());
        words.extend(become_user(who).map(OsString::from));
        words.extend(["setarch", "--addr-no-randomize", "--"].map(OsString::from));
        words.extend(ISOLATION.iter().map(OsString::from));
        if who.uid == 0 {
            let each = CAPABILITIES.iter().flat_map(|name| ["--cap-add", name]);
            words.extend(each.map(OsString::from));
        }
        words.extend(view);
        for (option, number) in [("--uid", who.uid), ("--gid", who.gid)] {
            words.extend([option.into(), number.to_string().into()]);
        }
        words.extend(["--chdir", "/"].map(OsString::from));
        Ok(Self {
            words,
            _namespace: namespace,
            _filter: filter,
        })
    }

    /// The words, with the variables of the confined program.
    pub(crate) fn words<'a>(
        &self,
        variables: impl Iterator<Item = (&'a str, OsString)>,
    ) -> Vec<OsString> {
        let mut words = self.words.clone();
        for (name, value) in variables {
            words.extend(["--setenv".into(), name.into(), value]);
        }
        words.push("--".into());
        words
    }
}

/// Words that make a process the user who is `who` in the image, without rights of root.
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
        // bubblewrap sets it, too; here it holds for bubblewrap itself.
        "--no-new-privs".to_owned(),
        "--".to_owned(),
    ]
}

/// A user namespace with the numbers of images, kept by a process that waits for the end of its
/// input.
struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// The user `who` owns it, and so bubblewrap may enter it as that user.
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

    /// The keeper says a line from inside the namespace.
    fn wait_until_made(&mut self) -> Result<(), BuildError> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.keeper.stdout {
            // An unreadable line is an empty one.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if !line.is_empty() {
            return Ok(());
        }
        let mut why = String::new();
        if let Some(stderr) = &mut self.keeper.stderr {
            // What cannot be read is not quoted.
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
        // It is a child of ours that ends with its input: there is nothing to do about an error.
        let _ = self.keeper.wait();
    }
}

/// bubblewrap mounts devices at `/dev`, and would follow a link there.
fn device_directory(root: &Path) -> Result<(), BuildError> {
    let place = root.join("dev");
    match fs::create_dir(&place) {
        Ok(()) => fs::set_permissions(&place, fs::Permissions::from_mode(0o755))
            .at("change the mode of", &place),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            if place.symlink_metadata().at("read", &place)?.is_dir() {
                return Ok(());
            }
            Err(BuildError::Format {
                path: PathBuf::from("/dev"),
                expected: "directory",
                problem:
                    "programs of the image cannot be given devices there: make it a directory \
                          in the image"
                        .to_owned(),
            })
        }
        Err(error) => Err(error).at("create", &place),
    }
}
