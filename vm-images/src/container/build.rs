//! From a container image to a guest's disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use protocol::image::{
    Digest, GuestContent, GuestPortRecord, ImageContent, ImageManifest, MANIFEST_FORMAT,
};

use super::config::{Image, Process};
use super::context::{Account, Root};
use super::kit::{self, Kit};
use super::layers;
use super::merge::{self, Instruction, What};
use super::spec::ImageSpec;
use crate::debian::{self, ARCHITECTURE};
use crate::digest;
use crate::error::{BuildError, IoContext, room_for};
use crate::guest::{self, INITRD, KERNEL, Programs, ROOT_DISK, SYSTEM_GROUP, quote};
use crate::normalise;
use crate::paths;
use crate::progress::{Progress, Reporter, Step};
use crate::recipe::{GuestRecipe, Recipe};
use crate::sandbox::{Identity, Sandbox};
use crate::store::{Image as Built, Layer, Store};
use crate::{Inputs, StoreError};

/// The cgroup of the image's own program.
const PROGRAM_GROUP: &str = "program";
/// Where programs of an image are looked for unless it says otherwise.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories that a guest needs and an image may lack.
const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("mnt/ssh", 0o700),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var/log", 0o755),
    ("neonvm/acpi", 0o755),
    ("neonvm/commands", 0o755),
    ("neonvm/etc/image", 0o755),
    ("neonvm/etc/ssh", 0o755),
    ("neonvm/runtime", 0o755),
];
/// Scripts of a guest that is no container image's, and where they go in one.
const MOVED: &[(&str, &str)] = &[
    ("#!/bin/sh", "#!/neonvm/bin/sh"),
    (" /bin/sh", " /neonvm/bin/sh"),
    ("PATH=/usr/", "PATH=/neonvm/bin:/usr/"),
    ("/usr/lib/bellows/", "/neonvm/lib/"),
    ("/etc/bellows/", "/neonvm/etc/"),
    (
        "/usr/sbin/sshd -D -e",
        "/neonvm/bin/sshd -D -e -f /neonvm/etc/ssh/sshd_config",
    ),
    ("/etc/ssh/ssh_host", "/neonvm/etc/ssh/ssh_host"),
    ("/sbin/poweroff", "/neonvm/bin/poweroff"),
];
/// Scripts of container images only.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "neonvm/bin/set-disk-quota",
        include_str!("../../guest/container/set-disk-quota.sh"),
    ),
    (
        "neonvm/lib/command",
        include_str!("../../guest/container/command.sh"),
    ),
    (
        "neonvm/lib/vmshutdown",
        include_str!("../../guest/container/vmshutdown.sh"),
    ),
    (
        "neonvm/lib/vmstart",
        include_str!("../../guest/container/vmstart.sh"),
    ),
];
/// The code that makes the disk: another version of it makes another image.
const BUILDER: &[&str] = &[
    include_str!("build.rs"),
    include_str!("context.rs"),
    include_str!("layers.rs"),
    include_str!("merge.rs"),
    include_str!("tree.rs"),
    include_str!("../ext4.rs"),
    include_str!("../guest.rs"),
    include_str!("../normalise.rs"),
    include_str!("../sandbox.rs"),
    include_str!("../sandbox/cell.rs"),
    include_str!("../sandbox/filter.rs"),
    include_str!("../sandbox/owners.rs"),
    include_str!("../../guest/sshd_config"),
];

/// What to make of which container image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerBuild {
    /// Name of the guest image.
    pub name: String,
    /// The container image: a directory in OCI layout, or an archive.
    pub source: PathBuf,
    /// Which image of it, if there are several.
    pub tag: Option<String>,
    /// What is added.
    pub spec: ImageSpec,
    /// Size of the root disk, MiB.
    pub disk_mib: u32,
}

/// Builds a guest from a container image, and makes its name point to it. Waits for other builds in
/// the same cache.
///
/// # Errors
/// [`BuildError`]; the cache is then as it was.
pub fn build(
    store: &Store,
    wanted: &ContainerBuild,
    inputs: &Inputs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Built, BuildError> {
    crate::preconditions()?;
    if !crate::recipe::is_image_name(&wanted.name) {
        return Err(StoreError::Name(wanted.name.clone()).into());
    }
    let merge = merge::parse(&wanted.spec.merge, &wanted.spec.files)?;
    let opened = Image::open(&wanted.source, wanted.tag.as_deref());
    let image = opened.map_err(|source| BuildError::Archive {
        path: wanted.source.clone(),
        source,
    })?;
    let recipe = kit::recipe()?;
    let guest = recipe
        .guest()
        .expect("the kit is a guest, as its test says");
    let programs = guest::programs(guest, inputs)?;
    let reporter = &mut Reporter::new(progress);
    let guard = store.lock(reporter)?;
    let options = debian::Options {
        refresh: inputs.refresh,
        mirror: inputs.mirror.as_deref(),
    };
    let kit = kit::kit(store, &guard, (&recipe, guest), &options, reporter)?;
    let job = Job {
        wanted,
        image,
        merge,
        recipe: &recipe,
        guest,
        kit: &kit,
        programs,
    };
    let key = job.key();
    if let Some(built) = store.current(&wanted.name, &key) {
        return Ok(built);
    }
    let need = u64::from(wanted.disk_mib) * 2;
    room_for(store.root(), need)?;
    let work = store.work_dir(&guard)?;
    let (root, out) = (work.path().join("root"), work.path().join("out"));
    for dir in [&root, &out] {
        fs::create_dir(dir).at("create", dir)?;
    }
    job.fill(&root, reporter)?;
    let files = guest::finish(work.path(), wanted.disk_mib, &kit.dir, reporter)?;
    let manifest = job.manifest(files);
    reporter.begin(Step::Publish, &wanted.name);
    Ok(store.publish(&guard, &key, &out, &manifest)?)
}

struct Job<'a> {
    wanted: &'a ContainerBuild,
    image: Image,
    merge: Vec<Instruction>,
    recipe: &'a Recipe,
    guest: &'a GuestRecipe,
    kit: &'a Layer<Kit>,
    programs: Programs,
}

impl Job<'_> {
    fn inputs(&self) -> BTreeMap<String, Digest> {
        let programs = self
            .programs
            .iter()
            .map(|(name, bytes)| (name.clone(), digest::of_bytes(bytes)));
        let files = self.wanted.spec.files.iter();
        let files = files.map(|(name, bytes)| (format!("file {name}"), digest::of_bytes(bytes)));
        let image = [("container image".to_owned(), self.image.id.clone())];
        programs.chain(files).chain(image).collect()
    }

    fn key(&self) -> Digest {
        let what = serde_json::json!({
            "builder": digest::of_texts(BUILDER),
            "recipe": self.recipe.sha256,
            "kit": self.kit.digest,
            "spec": self.wanted.spec.sha256,
            "disk_mib": self.wanted.disk_mib,
            "scripts": scripts(self.guest),
            "inputs": self.inputs(),
        });
        digest::of_bytes(what.to_string().as_bytes())
    }

    /// Makes the guest's root file system in an empty directory.
    fn fill(&self, dir: &Path, reporter: &mut Reporter<'_>) -> Result<(), BuildError> {
        let holds = layers::survey(&self.image, self.wanted.disk_mib, reporter)?;
        layers::write(&self.image, &holds, dir, reporter)?;
        let root = Root(dir);
        let mut context = Context::new(root, &self.image.process);
        for instruction in &self.merge {
            reporter.begin(Step::Merge, &format!("line {}", instruction.line));
            context.carry_out(instruction, &self.wanted.spec.files, reporter)?;
        }
        reporter.begin(Step::Assemble, "");
        if holds.get("neonvm").is_some() {
            paths::remove(&root.place("neonvm")?)?;
        }
        normalise::unpack(&self.kit.dir.join(kit::TREE), dir, reporter)?;
        for (path, mode) in DIRECTORIES {
            root.directory(path, *mode)?;
        }
        let init = dir.join("neonvm/bin/init");
        debug_assert!(init.symlink_metadata().is_ok(), "busybox is an init");
        self.put_files(root)?;
        users(root, self.guest)
    }

    fn put_files(&self, root: Root<'_>) -> Result<(), BuildError> {
        for (path, text) in scripts(self.guest) {
            root.put(&path, text.as_bytes(), 0o755)?;
        }
        for (path, text) in texts(self.guest, &self.wanted.spec) {
            root.put(&path, text.as_bytes(), 0o644)?;
        }
        for wanted in &self.guest.binaries {
            if let Some(content) = self.programs.get(&wanted.name) {
                root.put(&wanted.path, content, 0o755)?;
            }
        }
        // What a container runtime would have mounted there.
        root.put("etc/resolv.conf", b"nameserver 10.0.2.3\n", 0o644)?;
        let hosts = format!("127.0.0.1 localhost {}\n", self.guest.hostname);
        root.put("etc/hosts", hosts.as_bytes(), 0o644)?;
        root.put(
            "etc/hostname",
            format!("{}\n", self.guest.hostname).as_bytes(),
            0o644,
        )?;
        for (name, text) in program(root, &self.image.process)? {
            root.put(&format!("neonvm/etc/image/{name}"), text.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    fn manifest(&self, files: BTreeMap<String, protocol::image::FileRecord>) -> ImageManifest {
        let facts = &self.kit.manifest.facts;
        let runs = self
            .merge
            .iter()
            .filter(|one| matches!(one.what, What::Run(_)));
        let unreproducible: Vec<String> = runs
            .map(|one| {
                format!(
                    "what RUN in line {} of the specification's merge writes",
                    one.line
                )
            })
            .collect();
        let port = |port: &crate::recipe::PortRecipe| GuestPortRecord {
            name: port.name.clone(),
            port: port.port,
        };
        ImageManifest {
            format: MANIFEST_FORMAT,
            name: self.wanted.name.clone(),
            architecture: ARCHITECTURE.to_owned(),
            suite: facts.suite.clone(),
            recipe_sha256: self.recipe.sha256.clone(),
            packages: facts.packages.clone(),
            inputs: self.inputs(),
            reproducible: unreproducible.is_empty(),
            unreproducible,
            content: ImageContent::Guest(GuestContent {
                kernel: KERNEL.to_owned(),
                kernel_version: facts.kernel_version.clone(),
                initrd: INITRD.to_owned(),
                root_disk: ROOT_DISK.to_owned(),
                root_disk_format: "raw".to_owned(),
                root_disk_bytes: files.get(ROOT_DISK).map_or(0, |record| record.bytes),
                cmdline: self.guest.kernel.cmdline.clone(),
                cmdline_tcg: self.guest.kernel.cmdline_tcg.clone(),
                ports: self.guest.ports.iter().map(port).collect(),
                ready_line: self.guest.ready_line.clone(),
                cgroup: Some(PROGRAM_GROUP.to_owned()),
            }),
            files,
        }
    }
}

/// What lines of a specification have set so far.
struct Context<'a> {
    root: Root<'a>,
    user: String,
    workdir: String,
    env: BTreeMap<String, String>,
}

impl<'a> Context<'a> {
    /// As the image's own program would run, but as root.
    fn new(root: Root<'a>, process: &Process) -> Self {
        let workdir = process.working_dir.clone().filter(|dir| !dir.is_empty());
        Self {
            root,
            user: "0".to_owned(),
            workdir: workdir.unwrap_or_else(|| "/".to_owned()),
            env: env(process),
        }
    }

    fn carry_out(
        &mut self,
        instruction: &Instruction,
        files: &BTreeMap<String, Vec<u8>>,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        match &instruction.what {
            What::User(user) => user.clone_into(&mut self.user),
            What::Workdir(dir) => {
                self.workdir = self.absolute(dir);
                self.root.directory(&self.workdir, 0o755)?;
            }
            What::Env(more) => self.env.extend(more.clone()),
            What::Run(words) => self.run(words, instruction.line, reporter)?,
            What::Copy {
                from,
                to,
                mode,
                owner,
            } => {
                for name in from {
                    self.copy(name, &files[name], to, *mode, owner.as_deref())?;
                }
            }
        }
        Ok(())
    }

    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.workdir.trim_end_matches('/'))
        }
    }

    fn run(
        &self,
        words: &[String],
        line: usize,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        let account = self.root.account(&self.user)?;
        self.root.directory(&self.workdir, 0o755)?;
        let identity = Identity {
            uid: account.uid,
            gid: account.gid,
            groups: account.groups,
        };
        let sandbox = Sandbox::open(self.root.0)?;
        let step = format!("RUN in line {line} of the specification's merge");
        let mut tool = sandbox
            .tool(&identity, "/bin/sh", step)?
            // The directory to be in may be one that only the image's user can enter.
            .args(["-c", "cd \"$0\" && exec \"$@\"", &self.workdir])
            .args(words);
        for (name, value) in &self.env {
            tool = tool.env(name, value);
        }
        tool.env("HOME", &account.home).run(reporter)?;
        sandbox.close()
    }

    fn copy(
        &self,
        name: &str,
        content: &[u8],
        to: &str,
        mode: Option<u32>,
        owner: Option<&str>,
    ) -> Result<(), BuildError> {
        let mut to = self.absolute(to);
        let is_directory = self
            .root
            .place(&format!("{to}/."))
            .is_ok_and(|place| place.is_dir());
        if to.ends_with('/') || is_directory {
            let file = name.rsplit('/').next().unwrap_or(name);
            to = format!("{}/{file}", to.trim_end_matches('/'));
        }
        let path = self.root.put(&to, content, mode.unwrap_or(0o644))?;
        if let Some(owner) = owner {
            let account = self.root.account(owner)?;
            lchown(&path, Some(account.uid), Some(account.gid)).at("change the owner of", &path)?;
        }
        Ok(())
    }
}

fn numbers(account: &Account) -> String {
    let numbers: Vec<String> = account.groups.iter().map(u32::to_string).collect();
    numbers.join(",")
}

/// The image's variables.
fn env(process: &Process) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([("PATH".to_owned(), SEARCH_PATH.to_owned())]);
    let own = process.env.iter().flatten();
    env.extend(own.filter_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        is_variable(name).then(|| (name.to_owned(), value.to_owned()))
    }));
    env
}

/// Whether a shell takes it as the name of a variable.
fn is_variable(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Files that tell `vmstart` what the image runs, by name.
fn program(root: Root<'_>, process: &Process) -> Result<Vec<(&'static str, String)>, BuildError> {
    let account = root.account(process.user.as_deref().unwrap_or_default())?;
    let words = |words: &Option<Vec<String>>| {
        let words = words.iter().flatten().map(|word| quote(word));
        words.collect::<Vec<_>>().join(" ")
    };
    let mut variables = env(process);
    variables
        .entry("HOME".to_owned())
        .or_insert_with(|| account.home.clone());
    let variables = variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quote(value)));
    let groups = match numbers(&account) {
        none if none.is_empty() => "--clear-groups".to_owned(),
        some => format!("--groups {some}"),
    };
    let workdir = process.working_dir.clone().filter(|dir| !dir.is_empty());
    let workdir = quote(&workdir.unwrap_or_else(|| "/".to_owned()));
    let user = format!(
        "uid={}\ngid={}\ngroups={}\nworkdir={workdir}\n",
        account.uid,
        account.gid,
        quote(&groups)
    );
    Ok(vec![
        ("cmd", words(&process.cmd)),
        ("entrypoint", words(&process.entrypoint)),
        ("env", variables.collect()),
        ("user", user),
    ])
}

/// Scripts, by their place in the guest.
fn scripts(guest: &GuestRecipe) -> BTreeMap<String, String> {
    let known = [
        "etc/acpi/PWRF/00000080",
        "console",
        "log-port",
        "ready",
        "say",
        "resize-swap",
        "service",
        "spec",
        "sshd",
        "sysinit",
    ];
    let ours = guest::SCRIPTS.iter().filter_map(|(path, text)| {
        let (name, place) = if let Some(name) = path.strip_prefix("usr/lib/bellows/") {
            (name, format!("neonvm/lib/{name}"))
        } else if let Some(name) = path.strip_prefix("usr/local/bin/") {
            (name, format!("neonvm/bin/{name}"))
        } else {
            let event = path.trim_start_matches("etc/acpi/");
            (*path, format!("neonvm/acpi/{event}"))
        };
        known.contains(&name).then(|| (place, moved(text)))
    });
    debug_assert!(!guest.services.is_empty());
    let own = SCRIPTS
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    ours.chain(own).collect()
}

/// A text of an own guest as it is in a container image's.
fn moved(text: &str) -> String {
    MOVED
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Other files, by their place in the guest.
fn texts(guest: &GuestRecipe, spec: &ImageSpec) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut put = |path: String, text: String| drop(texts.insert(path, text));
    put("etc/inittab".to_owned(), inittab(guest, spec));
    put("neonvm/etc/container".to_owned(), String::new());
    put(
        "neonvm/etc/cgroups".to_owned(),
        format!("{PROGRAM_GROUP}\n{SYSTEM_GROUP}\n"),
    );
    let sshd = moved(include_str!("../../guest/sshd_config"));
    // Tools of the guest after those of the image, which may have none.
    put(
        "neonvm/etc/ssh/sshd_config".to_owned(),
        format!("{sshd}SetEnv PATH={SEARCH_PATH}:/neonvm/bin\n"),
    );
    put(
        "neonvm/etc/shutdown-hook".to_owned(),
        spec.shutdown_hook.clone().unwrap_or_default(),
    );
    for service in &guest.services {
        put(
            format!("neonvm/etc/services/{}", service.name),
            guest::service_file(service),
        );
    }
    for command in &spec.commands {
        let place = format!("neonvm/commands/{}", command.name);
        put(format!("{place}.sh"), format!("{}\n", command.shell));
        put(
            format!("{place}.user"),
            format!("user={}\n", quote(&command.user)),
        );
    }
    texts
}

/// What busybox's init does. A line's command is cut at 256 bytes, so commands keep theirs in
/// files.
fn inittab(guest: &GuestRecipe, spec: &ImageSpec) -> String {
    let mut text = String::from(
        "::sysinit:/neonvm/lib/sysinit\n::wait:/neonvm/lib/log-port\n\
         ::wait:/neonvm/bin/touch /neonvm/vmstart.allowed\n",
    );
    for command in &spec.commands {
        text += &format!(
            "::{}:/neonvm/lib/command {}\n",
            command.sysv_init_action, command.name
        );
    }
    for service in &guest.services {
        text += &format!("::respawn:/neonvm/lib/service {}\n", service.name);
    }
    text += &format!("::once:/neonvm/lib/ready {}\n", guest.ready_line);
    text += "::respawn:/neonvm/lib/vmstart\n\
             ::respawn:/neonvm/bin/acpid -f -l /dev/null -c /neonvm/acpi\n\
             ttyS0::respawn:/neonvm/bin/getty -n -L -l /neonvm/lib/console 115200 ttyS0 vt100\n\
             ::ctrlaltdel:/neonvm/bin/poweroff\n\
             ::shutdown:/neonvm/lib/vmshutdown\n";
    text
}

/// Adds our users where the image has none of that name, and lets root in.
fn users(root: Root<'_>, guest: &GuestRecipe) -> Result<(), BuildError> {
    let mut passwd = root.text("etc/passwd").unwrap_or_default();
    let mut group = root.text("etc/group").unwrap_or_default();
    let has = |text: &str, name: &str| {
        text.lines()
            .any(|line| line.split(':').next() == Some(name))
    };
    for text in [&mut passwd, &mut group] {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if !has(&passwd, "root") {
        passwd.insert_str(0, "root:*:0:0:root:/root:/neonvm/bin/sh\n");
    }
    if !has(&group, "root") {
        group.insert_str(0, "root:*:0:\n");
    }
    for user in &guest.users {
        if has(&passwd, &user.name) {
            continue;
        }
        let id = free_id(&passwd, &group, user.id);
        passwd += &format!(
            "{0}:*:{id}:{id}:{0}:{1}:/usr/sbin/nologin\n",
            user.name, user.home
        );
        if !has(&group, &user.name) {
            group += &format!("{}:*:{id}:\n", user.name);
        }
    }
    let lines = passwd.lines().map(|line| with_shell(root, line) + "\n");
    let passwd: String = lines.collect();
    root.put("etc/passwd", passwd.as_bytes(), 0o644)?;
    root.put("etc/group", group.as_bytes(), 0o644)?;
    // A password of '!' locks root out of ssh, too; '*' is one that nothing matches.
    if let Some(shadow) = root.text("etc/shadow")
        && shadow.lines().any(|line| line.starts_with("root:!"))
    {
        let opened = |line: &str| match line.strip_prefix("root:!") {
            Some(rest) => format!("root:*{}\n", rest.trim_start_matches(['!', '*'])),
            None => format!("{line}\n"),
        };
        let shadow: String = shadow.lines().map(opened).collect();
        root.put("etc/shadow", shadow.as_bytes(), 0o640)?;
    }
    Ok(())
}

/// root's shell is one that is there.
fn with_shell(root: Root<'_>, line: &str) -> String {
    match line.rsplit_once(':') {
        Some((head, shell)) if line.starts_with("root:") && !root.is_program(shell) => {
            format!("{head}:/neonvm/bin/sh")
        }
        _ => line.to_owned(),
    }
}

/// The first number from one on that neither a user nor a group has.
fn free_id(passwd: &str, group: &str, from: u32) -> u32 {
    let is_taken = |id: u32| {
        let mut lines = passwd.lines().chain(group.lines());
        lines.any(|line| line.split(':').nth(2) == Some(&id.to_string()))
    };
    (from..).find(|id| !is_taken(*id)).unwrap_or(from)
}

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod tests;
