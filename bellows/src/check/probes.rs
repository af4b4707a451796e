//! Checks of this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::finding::Finding;
use super::images::{Images, accelerator, build_tools};
use super::walls;
use crate::context::Context;
use crate::fail::Outcome;
use crate::instance::lock::{self, Holder};
use crate::instance::{Instance, sockets};
use crate::places::{StateDir, cache_dir};
use crate::progress::Progress;
use crate::view::units::memory;

/// Memory that the smallest VM and the components need together.
const LEAST_MEMORY_BYTES: u64 = 2 << 30;
/// Free disk space that disks of VMs and the store need.
const LEAST_STATE_BYTES: u64 = 2 << 30;
/// Free disk space that a build needs in the cache.
const LEAST_CACHE_BYTES: u64 = 4 << 30;
/// Oldest kernel with all required features: cgroup.kill, pidfds and listeners on all of
/// 127.0.0.0/8.
const LEAST_KERNEL: (u32, u32) = (5, 10);

/// Runs all checks. `probe` allows to boot the tiny guest that tests KVM.
pub(crate) async fn all(
    context: &Context,
    probe: bool,
    progress: &mut Progress,
) -> Outcome<Vec<Finding>> {
    let state = context.state()?;
    let mut findings = vec![
        architecture(std::env::consts::ARCH),
        kernel(),
        processors(),
        ram(),
        cgroup(Path::new("/sys/fs/cgroup")),
    ];
    let images = Images::look();
    findings.push(images.runtime_finding());
    findings.push(images.guest_finding());
    findings.push(build_tools(images.are_there()));
    findings.push(accelerator(&images, &state, probe, progress).await);
    findings.extend(walls::all().await);
    findings.push(loopback());
    findings.push(addresses(&state)?);
    findings.push(disk_space(
        "room for state",
        state.path(),
        LEAST_STATE_BYTES,
        "disks of VMs",
    ));
    if !images.are_there() {
        findings.push(disk_space(
            "room for images",
            &cache_dir()?,
            LEAST_CACHE_BYTES,
            "building images",
        ));
    }
    findings.extend([
        program("ssh", "bellows ssh", "apt-get install openssh-client"),
        program(
            "kubectl",
            "bellows kubectl; everything it does works without",
            "install kubectl as kubernetes.io says",
        ),
        program(
            "psql",
            "bellows psql; bellows ssh VM -- psql works without",
            "apt-get install postgresql-client",
        ),
        program(
            "pgbench",
            "the load of the demonstration",
            "apt-get install postgresql-contrib",
        ),
    ]);
    Ok(findings)
}

fn architecture(found: &str) -> Finding {
    if found == "x86_64" {
        Finding::ok("processor", found)
    } else {
        Finding::missing(
            "processor",
            found,
            "the guest images and QEMU are built for x86_64",
            "use an x86_64 machine",
        )
    }
}

fn kernel() -> Finding {
    let release = nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    judge_kernel(&release)
}

fn judge_kernel(release: &str) -> Finding {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= LEAST_KERNEL {
        return Finding::ok("kernel", format!("Linux {release}"));
    }
    let (major, minor) = LEAST_KERNEL;
    Finding::missing(
        "kernel",
        format!("Linux {release}"),
        format!("Linux {major}.{minor} or newer is needed"),
        "upgrade the kernel: Debian 12 and 13 have newer ones",
    )
}

fn processors() -> Finding {
    match std::thread::available_parallelism() {
        Ok(count) if count.get() > 1 => Finding::ok("CPUs", count.to_string()),
        Ok(_) => Finding::degraded(
            "CPUs",
            "1",
            "a VM can have one CPU only, and shares it with us",
            "use a machine with more CPUs",
        ),
        Err(error) => Finding::missing(
            "CPUs",
            error.to_string(),
            "sizing VMs",
            "mount /proc and /sys",
        ),
    }
}

fn ram() -> Finding {
    let info: Result<procfs::Meminfo, _> = procfs::Current::current();
    match info {
        Ok(info) => judge_memory(info.mem_total, info.mem_available.unwrap_or(info.mem_free)),
        Err(error) => Finding::missing("memory", error.to_string(), "sizing VMs", "mount /proc"),
    }
}

fn judge_memory(total: u64, available: u64) -> Finding {
    let found = format!("{} free of {}", memory(available), memory(total));
    if available >= LEAST_MEMORY_BYTES {
        Finding::ok("memory", found)
    } else {
        Finding::degraded(
            "memory",
            found,
            format!(
                "the smallest VM and we need {} together",
                memory(LEAST_MEMORY_BYTES)
            ),
            "end other programs, or use a larger machine",
        )
    }
}

/// The cgroup version, and whether CPU quotas can be set.
fn cgroup(root: &Path) -> Finding {
    let needed =
        "fractions of a CPU are held by a quota; without it a VM of 0.25 CPU may use a whole one";
    let v2 = std::fs::read_to_string(root.join("cgroup.controllers")).ok();
    let (found, dir) = match v2 {
        Some(controllers) if controllers.split_whitespace().any(|name| name == "cpu") => {
            ("version 2, cpu controller".to_owned(), root.to_owned())
        }
        Some(_) => {
            return Finding::degraded(
                "cgroup",
                "version 2 without the cpu controller",
                needed,
                "boot without cgroup_disable=cpu, or delegate the cpu controller to this container",
            );
        }
        None => match ["cpu", "cpu,cpuacct"]
            .map(|name| root.join(name))
            .into_iter()
            .find(|dir| dir.join("cpu.cfs_quota_us").exists() || dir.join("cgroup.procs").exists())
        {
            Some(dir) => ("version 1, cpu controller".to_owned(), dir),
            None => {
                return Finding::degraded(
                    "cgroup",
                    "no cpu controller",
                    needed,
                    "mount cgroup2: mount -t cgroup2 none /sys/fs/cgroup",
                );
            }
        },
    };
    if access(&dir, AccessFlags::W_OK).is_ok() {
        Finding::ok("cgroup", format!("{found}, writable"))
    } else {
        Finding::degraded(
            "cgroup",
            format!("{found}, not writable"),
            needed,
            "run as root, or in a container with a writable /sys/fs/cgroup",
        )
    }
}

fn loopback() -> Finding {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 250, 255, 254)), 0);
    match std::net::TcpListener::bind(address) {
        Ok(_) => Finding::ok("loopback", "127.0.0.0/8 can be listened on"),
        Err(error) => Finding::missing(
            "loopback",
            error.to_string(),
            "every VM has an address 127.N.x.y",
            "ip link set lo up",
        ),
    }
}

/// Whether the addresses of this state directory's instance are free.
fn addresses(state: &StateDir) -> Outcome<Finding> {
    let name = "addresses";
    if let Holder::Process(pid) = lock::holder(state) {
        let who = pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        return Ok(Finding::ok(name, format!("bellows up runs already: {who}")));
    }
    let Some(instance) = Instance::load(state)? else {
        return Ok(Finding::ok(
            name,
            "a free block 127.N.0.0/16 is chosen at the first start",
        ));
    };
    for (address, what) in [
        (instance.api(), "the API server"),
        (instance.permits(), "the permit server"),
    ] {
        let fix = "end that process, or use another --state-dir";
        if let Err(fail) = sockets::check_free(address, what, fix) {
            return Ok(Finding::missing(
                name,
                fail.what(),
                format!("{what} listens there"),
                fix,
            ));
        }
    }
    Ok(Finding::ok(
        name,
        format!("{} and {} are free", instance.api(), instance.permits()),
    ))
}

/// Free space on the file system that holds, or will hold, a directory.
fn disk_space(name: &'static str, dir: &Path, least: u64, what: &str) -> Finding {
    let place = existing(dir);
    match fs4::available_space(&place) {
        Ok(free) => judge_disk_space(name, dir, free, least, what),
        Err(error) => Finding::missing(
            name,
            format!("{}: {error}", place.display()),
            what,
            "mount a file system there",
        ),
    }
}

fn judge_disk_space(name: &'static str, dir: &Path, free: u64, least: u64, what: &str) -> Finding {
    let found = format!("{} free for {}", memory(free), dir.display());
    if free >= least {
        Finding::ok(name, found)
    } else {
        Finding::missing(
            name,
            found,
            format!("{what} take {} or more", memory(least)),
            "free some, or name another place: --state-dir, XDG_CACHE_HOME",
        )
    }
}

/// The directory's nearest ancestor that exists.
fn existing(dir: &Path) -> PathBuf {
    dir.ancestors()
        .find(|place| place.exists())
        .unwrap_or(Path::new("/"))
        .to_owned()
}

fn program(name: &'static str, what: &str, fix: &str) -> Finding {
    match find_program(name, std::env::var_os("PATH")) {
        Some(path) => Finding::ok(name, path.display().to_string()),
        None => Finding::degraded(name, "not installed", what, fix),
    }
}

fn find_program(name: &str, path: Option<std::ffi::OsString>) -> Option<PathBuf> {
    std::env::split_paths(&path?)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn old_kernels_and_other_processors_are_missing() {
        assert_eq!(judge_kernel("5.9.16-amd64").verdict, Severity::Missing);
        assert_eq!(judge_kernel("5.10.0").verdict, Severity::Ok);
        assert_eq!(judge_kernel("6.18.44-fc-v669").verdict, Severity::Ok);
        assert_eq!(judge_kernel("").verdict, Severity::Missing);
        assert_eq!(architecture("aarch64").verdict, Severity::Missing);
    }

    #[test]
    fn cgroup_version_is_recognized() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(cgroup(dir.path()).verdict, Severity::Degraded);
        std::fs::create_dir(dir.path().join("cpu")).unwrap();
        std::fs::write(dir.path().join("cpu/cgroup.procs"), "").unwrap();
        assert!(cgroup(dir.path()).found.starts_with("version 1"));
        std::fs::write(dir.path().join("cgroup.controllers"), "memory pids\n").unwrap();
        assert_eq!(cgroup(dir.path()).verdict, Severity::Degraded);
        std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io\n").unwrap();
        assert!(cgroup(dir.path()).found.starts_with("version 2"));
    }

    #[test]
    fn finding_names_required_space_and_memory() {
        let finding = judge_disk_space("room", Path::new("/x"), 1 << 30, 2 << 30, "disks");
        assert_eq!(finding.verdict, Severity::Missing);
        assert_eq!(finding.needed_for.unwrap(), "disks take 2Gi or more");
        assert_eq!(judge_memory(4 << 30, 1 << 30).verdict, Severity::Degraded);
        assert_eq!(existing(Path::new("/nonexistent/a/b")), Path::new("/"));
    }

    #[test]
    fn only_executable_files_are_programs() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        std::fs::write(&file, "").unwrap();
        let path = || Some(dir.path().as_os_str().to_owned());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_program("tool", path()), Some(file));
        assert_eq!(find_program("other", path()), None);
        assert_eq!(find_program("tool", None), None);
    }
}
