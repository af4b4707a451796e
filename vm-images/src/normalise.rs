//! Sets the times of a tree to a fixed value, and packs it into a tar. Equal trees give equal tars.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::thread;

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use protocol::image::Digest;
use sha2::{Digest as _, Sha256};

use crate::error::{BuildError, IoContext};
use crate::progress::{Amount, Reporter, Step};
use crate::tool::{EPOCH, Tool, read_tail};

/// zstd's fastest normal level. A build reads layers back soon.
const COMPRESSION: i32 = 1;

/// Bytes per read.
const CHUNK: usize = 1 << 18;

/// Sets access and modification time of one path to [`EPOCH`]. Does not follow a link.
pub(crate) fn settle_time(path: &Path) -> io::Result<()> {
    let time = TimeSpec::new(EPOCH, 0);
    utimensat(
        AT_FDCWD,
        path,
        &time,
        &time,
        UtimensatFlags::NoFollowSymlink,
    )
    .map_err(io::Error::from)
}

/// Sets the times of a whole tree.
pub(crate) fn settle_tree(root: &Path) -> Result<(), BuildError> {
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        if path.symlink_metadata().at("read", &path)?.is_dir() {
            for entry in fs::read_dir(&path).at("list", &path)? {
                pending.push(entry.at("list", &path)?.path());
            }
        }
        settle_time(&path).at("set the time of", &path)?;
    }
    Ok(())
}

/// Packs `root` into `target` (tar, zstd) and returns the SHA-256 of the uncompressed tar.
pub(crate) fn pack(
    root: &Path,
    target: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<Digest, BuildError> {
    reporter.begin(Step::Pack, "");
    let tar = Tool::new("tar", "packing the base layer")
        .env("LC_ALL", "C")
        .directory(root)
        .args(["-c", "--format=gnu", "--sort=name", "--numeric-owner"])
        .arg(format!("--mtime=@{EPOCH}"))
        .args(["-f", "-", "."]);
    let mut child = tar.spawn(Stdio::null(), Stdio::piped())?;
    let errors = child.stderr.take();
    let words = thread::spawn(move || errors.map(read_tail).unwrap_or_default());
    let file = File::create(target).at("create", target)?;
    let mut encoder = zstd::Encoder::new(file, COMPRESSION).at("compress", target)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; CHUNK];
    let mut total = 0u64;
    if let Some(mut stdout) = child.stdout.take() {
        loop {
            let n = stdout.read(&mut buffer).at("read", root)?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            encoder.write_all(&buffer[..n]).at("write", target)?;
            total += n as u64;
            reporter.amount(Amount::Bytes(total));
        }
    }
    encoder.finish().at("write", target)?;
    let status = child.wait().at("wait for", Path::new("tar"))?;
    tar.judge(status, &words.join().unwrap_or_default())?;
    Ok(Digest::from_bytes(hasher.finalize().into()))
}

/// Unpacks an archive of [`pack`] into the existing directory `root`.
pub(crate) fn unpack(
    source: &Path,
    root: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(), BuildError> {
    let tar = Tool::new("tar", "unpacking the base layer")
        .directory(root)
        .args(["-x", "-p", "--numeric-owner", "-f", "-"]);
    let mut child = tar.spawn(Stdio::piped(), Stdio::null())?;
    let errors = child.stderr.take();
    let words = thread::spawn(move || errors.map(read_tail).unwrap_or_default());
    let file = File::open(source).at("open", source)?;
    let mut decoder = zstd::Decoder::new(file).at("open", source)?;
    let mut buffer = vec![0u8; CHUNK];
    let mut total = 0u64;
    let mut broken = None;
    if let Some(mut stdin) = child.stdin.take() {
        loop {
            let n = decoder.read(&mut buffer).at("read", source)?;
            if n == 0 {
                break;
            }
            if let Err(error) = stdin.write_all(&buffer[..n]) {
                // tar has ended, and its output says why.
                broken = Some(error);
                break;
            }
            total += n as u64;
            reporter.amount(Amount::Bytes(total));
        }
    }
    let status = child.wait().at("wait for", Path::new("tar"))?;
    tar.judge(status, &words.join().unwrap_or_default())?;
    match broken {
        Some(error) => Err(error).at("unpack", source),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn packed_tree_is_restored_and_its_digest_ignores_times() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let root = dir.path().join(name);
            fs::create_dir_all(root.join("d")).unwrap();
            fs::write(root.join("d/f"), "content").unwrap();
            std::os::unix::fs::symlink("f", root.join("d/l")).unwrap();
            root
        };
        let mut sink = |_| {};
        let mut reporter = Reporter::new(&mut sink);
        let first = make("one");
        let tar = dir.path().join("one.tar.zst");
        let digest = pack(&first, &tar, &mut reporter).unwrap();
        let second = make("two");
        settle_tree(&second).unwrap();
        let other = pack(&second, &dir.path().join("two.tar.zst"), &mut reporter).unwrap();
        assert_eq!(digest, other);
        let back = dir.path().join("back");
        fs::create_dir(&back).unwrap();
        unpack(&tar, &back, &mut reporter).unwrap();
        assert_eq!(fs::read_to_string(back.join("d/l")).unwrap(), "content");
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(back.join("d/f")).unwrap().mtime(), EPOCH);
    }

    /// Requirement: N46
    #[test]
    fn a_damaged_layer_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let tar = dir.path().join("x.tar.zst");
        fs::write(&tar, zstd::encode_all(&b"not a tar at all"[..], 1).unwrap()).unwrap();
        let result = unpack(&tar, dir.path(), &mut Reporter::new(&mut |_| {}));
        assert!(matches!(
            result,
            Err(BuildError::ToolFailed { .. } | BuildError::Io { .. })
        ));
    }
}
