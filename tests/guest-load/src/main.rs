//! Memory loads inside a guest: a fast climb, a slow leak, a storm of forks, a flood of page cache.
//! The program enters the given cgroup, runs one load, and prints what it did as one line of JSON.
//! A guest without hardware virtualisation may be slower than requested.
//!
//! It is also a relay from TCP to the guest's own AF_VSOCK, as an agent connects. It shows that a
//! monitor serves that link where the host cannot reach the guest this way.
//!
//! It also runs a busy process under a runner's quota, in a cgroup that looks like a container's.
//! Guests have cgroups of version 2 where the test machine may have none.
//!
//! Guests get it as one static file.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "its result")]

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use neonvm_quota::QuotaGroup;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use protocol::units::MilliCpu;

const USAGE: &str = "usage: guest-load GROUP climb BYTES BYTES_PER_SECOND HOLD_MS
       guest-load GROUP storm CHILDREN BYTES_OF_EACH HOLD_MS
       guest-load GROUP flood BYTES FILE
       guest-load relay TCP_PORT VSOCK_PORT
       guest-load GROUP quota MILLI_CPU MS
GROUP is the folder of a cgroup v2 group";

/// Bytes per allocation.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
/// A machine's own number (`VMADDR_CID_LOCAL`).
const OWN_CID: u32 = 1;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(Some(line)) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!("{USAGE}");
            ExitCode::from(64)
        }
        Err(error) => {
            eprintln!("guest-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The line to print. `None` if the arguments name no load.
fn run(words: &[&str]) -> io::Result<Option<String>> {
    let number = |text: &str| text.parse::<u64>().ok();
    if let ["relay", tcp, vsock] = words {
        let (Ok(tcp), Ok(vsock)) = (tcp.parse(), vsock.parse()) else {
            return Ok(None);
        };
        return relay(tcp, vsock).map(Some);
    }
    let (group, rest) = match words {
        [group, rest @ ..] if !rest.is_empty() => (*group, rest),
        _ => return Ok(None),
    };
    match rest {
        ["climb", bytes, rate, hold] => {
            let Some((bytes, rate, hold)) = three(number(bytes), number(rate), number(hold)) else {
                return Ok(None);
            };
            enter(group)?;
            Ok(Some(climb(bytes, rate.max(1), hold)))
        }
        ["storm", children, bytes, hold] => {
            let Some((children, bytes, hold)) =
                three(number(children), number(bytes), number(hold))
            else {
                return Ok(None);
            };
            enter(group)?;
            storm(group, children, bytes, hold).map(Some)
        }
        ["quota", milli, span] => {
            let (Ok(milli), Some(span)) = (milli.parse(), number(span)) else {
                return Ok(None);
            };
            enter(group)?;
            contain()?;
            quota(MilliCpu(milli), Duration::from_millis(span)).map(Some)
        }
        ["flood", bytes, file] => {
            let Some(bytes) = number(bytes) else {
                return Ok(None);
            };
            enter(group)?;
            flood(bytes, file).map(Some)
        }
        _ => Ok(None),
    }
}

/// Carries every connection to a TCP port to a port of AF_VSOCK of this machine. Ends only with an
/// error.
fn relay(tcp: u16, vsock: u32) -> io::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("0.0.0.0", tcp)).await?;
        loop {
            let (mut near, _) = listener.accept().await?;
            tokio::spawn(async move {
                let carried = async {
                    let mut far = transport::dial_vsock(OWN_CID, vsock).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                };
                if let Err(error) = carried.await {
                    eprintln!("guest-load: {error}");
                }
            });
        }
    })
}

fn three(a: Option<u64>, b: Option<u64>, c: Option<u64>) -> Option<(u64, u64, u64)> {
    Some((a?, b?, c?))
}

/// A child that is killed when it is dropped.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Confines this process to a read-only view of its own cgroup, as a container runtime does.
fn contain() -> io::Result<()> {
    let (groups, none) = (Path::new("/sys/fs/cgroup"), None::<&Path>);
    unshare(CloneFlags::CLONE_NEWCGROUP | CloneFlags::CLONE_NEWNS)?;
    let alone = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(none, Path::new("/"), none, alone, none)?;
    umount2(groups, MntFlags::MNT_DETACH)?;
    let guarded = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let cgroup2 = Some(Path::new("cgroup2"));
    // The mount alone is read-only; the hierarchy is everybody's.
    mount(cgroup2, groups, cgroup2, guarded, none)?;
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | guarded;
    mount(none, groups, none, read_only, none)?;
    Ok(())
}

/// Runs a busy process in a cgroup with a quota, and returns the CPU time that it used.
fn quota(limit: MilliCpu, span: Duration) -> io::Result<String> {
    let group = QuotaGroup::make_in_own("quota").map_err(io::Error::other)?;
    let busy = Busy(
        Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()?,
    );
    let pid = busy.0.id();
    group.join(pid).map_err(io::Error::other)?;
    let held = group.set(limit, 100).map_err(io::Error::other)?;
    let (before, began) = (used_ms(pid)?, Instant::now());
    pause(span);
    let passed = began.elapsed().as_millis();
    let used = used_ms(pid)? - before;
    drop(busy);
    group.remove();
    Ok(format!(
        "{{\"held_milli\":{},\"used_ms\":{used},\"passed_ms\":{passed}}}",
        held.0
    ))
}

/// User and system time that a process has used, milliseconds.
fn used_ms(pid: u32) -> io::Result<u64> {
    let process = procfs::process::Process::new(pid.cast_signed()).map_err(io::Error::other)?;
    let stat = process.stat().map_err(io::Error::other)?;
    Ok((stat.utime + stat.stime) * 1000 / procfs::ticks_per_second())
}

/// Enters the group, as killable as any program of it.
fn enter(group: &str) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "0")?;
    std::fs::write(format!("{group}/cgroup.procs"), "0")
}

#[expect(clippy::disallowed_methods, reason = "its pace is what it is for")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Bytes a second. A process that ends at once has the highest rate that can be expressed.
fn rate_of(bytes: u64, took: Duration) -> u64 {
    let rate = u128::from(bytes) * 1000 / took.as_millis().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Half a page of noise: with it in each page memory compresses about as well as a program's.
fn noise() -> [u8; PAGE / 2] {
    let (mut noise, mut seed) = ([0_u8; PAGE / 2], 0x9e37_79b9_7f4a_7c15_u64);
    for word in noise.chunks_exact_mut(8) {
        // The generator xorshift64.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        word.copy_from_slice(&seed.to_le_bytes());
    }
    noise
}

/// One more chunk, every page of it touched.
fn chunk(noise: &[u8]) -> Vec<u8> {
    let mut memory = vec![0_u8; CHUNK];
    for page in memory.chunks_exact_mut(PAGE) {
        page[..noise.len()].copy_from_slice(noise);
    }
    memory
}

fn climb(bytes: u64, rate: u64, hold_ms: u64) -> String {
    let began = Instant::now();
    let mut held = Vec::new();
    let (mut have, noise) = (0_u64, noise());
    // The longest that one chunk took: how hard it became to get memory.
    let mut slowest = Duration::ZERO;
    while have < bytes {
        let due = Duration::from_micros(
            u64::try_from(u128::from(have) * 1_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        );
        pause(due.saturating_sub(began.elapsed()));
        let at = Instant::now();
        held.push(chunk(&noise));
        slowest = slowest.max(at.elapsed());
        have += CHUNK as u64;
    }
    let took = began.elapsed();
    pause(Duration::from_millis(hold_ms));
    // Used until here, so that none of it can be left out.
    let kept: u64 = held.iter().map(|chunk| u64::from(chunk[0])).sum();
    format!(
        "{{\"bytes\":{have},\"took_ms\":{},\"bytes_per_second\":{},\"slowest_mib_ms\":{},\"sum\":{kept}}}",
        took.as_millis(),
        rate_of(have, took),
        slowest.as_millis()
    )
}

/// Children that start as fast as they can be forked, each with memory of its own. One that was
/// killed is an error.
fn storm(group: &str, children: u64, bytes: u64, hold_ms: u64) -> io::Result<String> {
    let began = Instant::now();
    let me = std::env::current_exe()?;
    let (bytes, hold_ms) = (bytes.to_string(), hold_ms.to_string());
    let start = |_| {
        Command::new(&me)
            .args([group, "climb", &bytes, &u64::MAX.to_string(), &hold_ms])
            .stdout(std::process::Stdio::null())
            .spawn()
    };
    let running: Vec<Child> = (0..children).map(start).collect::<io::Result<_>>()?;
    let forked = began.elapsed();
    for mut child in running {
        let status = child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a child ended with {status}")));
        }
    }
    Ok(format!(
        "{{\"children\":{children},\"forked_ms\":{},\"took_ms\":{}}}",
        forked.as_millis(),
        began.elapsed().as_millis()
    ))
}

/// Reads a file of holes. Its pages go through the page cache, but not through a disk.
fn flood(bytes: u64, path: &str) -> io::Result<String> {
    let began = Instant::now();
    File::create(path)?.set_len(bytes)?;
    let mut file = File::open(path)?;
    let mut buffer = vec![0_u8; CHUNK];
    let mut read = 0_u64;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        read += count as u64;
    }
    let took = began.elapsed();
    Ok(format!(
        "{{\"bytes\":{read},\"took_ms\":{},\"bytes_per_second\":{}}}",
        took.as_millis(),
        rate_of(read, took)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_climb_takes_its_time_and_tells_it() {
        let began = Instant::now();
        let line = climb(5 << 20, 50 << 20, 0);
        assert!(began.elapsed() >= Duration::from_millis(80), "{line}");
        assert!(line.starts_with("{\"bytes\":5242880,"), "{line}");
    }

    #[test]
    fn a_flood_reads_all_of_its_file() {
        let path = std::env::temp_dir().join(format!("guest-load-{}", std::process::id()));
        let line = flood(3 << 20, &path.to_string_lossy());
        std::fs::remove_file(&path).expect("there");
        assert!(line.expect("read").starts_with("{\"bytes\":3145728,"));
    }

    #[test]
    fn half_of_each_page_is_noise() {
        let memory = chunk(&noise());
        assert_eq!(memory.len(), CHUNK);
        assert!(memory[PAGE / 2..PAGE].iter().all(|byte| *byte == 0));
        let mut halves = memory.chunks_exact(PAGE).map(|page| &page[..PAGE / 2]);
        assert!(halves.all(|half| half == noise()));
        let distinct: std::collections::BTreeSet<_> = noise().into();
        assert!(distinct.len() > 200, "noise: {}", distinct.len());
    }

    #[test]
    fn unknown_order_is_reported() {
        for words in [
            &[][..],
            &["/g"],
            &["/g", "climb", "x", "1", "1"],
            &["/g", "flood", "1"],
        ] {
            assert!(matches!(run(words), Ok(None)), "{words:?}");
        }
    }
}
