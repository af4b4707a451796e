//! The root disk. mke2fs makes it from a directory with every option pinned. Then all times are
//! overwritten.
//!
//! mke2fs copies each file's change time, which no program can set, so the image is patched. Source
//! of the layout: the kernel's Documentation/filesystems/ext4.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{BuildError, IoContext, disk_full};
use crate::progress::{Reporter, Step};
use crate::tool::{EPOCH, Tool};

/// Pinned, so that any version and configuration of mke2fs makes the same file system.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,\
                        sparse_super,large_file,huge_file,dir_nlink,extra_isize";

/// UUID of the file system. It is the same in every image, because a guest sees only its own disk.
const UUID: &str = "b3110e55-0000-4000-8000-000000000001";

/// Seed of the hashes of directories.
const HASH_SEED: &str = "b3110e55-0000-4000-8000-000000000002";

/// Size of the journal in MiB. It suffices for a database and fits the smallest disk.
const JOURNAL_MIB: u32 = 8;

const SUPERBLOCK: u64 = 1024;
const MAGIC: u16 = 0xEF53;

/// Makes `image` with a size of `size_mib` MiB from the tree `root`.
pub(crate) fn make(
    root: &Path,
    image: &Path,
    size_mib: u32,
    work: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(), BuildError> {
    reporter.begin(Step::FileSystem, "");
    // Overrides defaults of mke2fs and the host's configuration.
    let config = work.join("mke2fs.conf");
    std::fs::write(&config, "[defaults]\n[fs_types]\n").at("write", &config)?;
    let make = Tool::new("mke2fs", "making the root file system")
        .env("MKE2FS_CONFIG", &config)
        .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string())
        .env("LC_ALL", "C")
        .args([
            "-q", "-F", "-t", "ext4", "-O", FEATURES, "-U", UUID, "-L", "root", "-m", "0",
        ])
        .args([
            "-b",
            "4096",
            "-I",
            "256",
            "-i",
            "16384",
            "-e",
            "remount-ro",
            "-M",
            "/",
        ])
        .args(["-J", &format!("size={JOURNAL_MIB}")])
        .args([
            "-E",
            &format!("hash_seed={HASH_SEED},lazy_itable_init=0,nodiscard,root_owner=0:0"),
        ])
        .arg("-d")
        .arg(root)
        .arg(image)
        .arg(format!("{size_mib}M"));
    make.run(reporter).map_err(|error| match error {
        BuildError::ToolFailed { tail, .. } if tail.contains("Could not allocate block") => {
            // The image is full, the host's disk is not.
            BuildError::Format {
                path: image.to_owned(),
                expected: "disk large enough for its files",
                problem: format!("they do not fit into {size_mib} MiB: raise guest.disk_mib"),
            }
        }
        BuildError::DiskFull { .. } => disk_full(image, u64::from(size_mib)),
        other => other,
    })?;
    settle_times(image)
}

/// Offsets and sizes in an image.
struct Layout {
    inode_size: u64,
    inodes_per_group: u64,
    groups: u64,
    block_size: u64,
    descriptor_size: u64,
    first_descriptor: u64,
}

/// Sets every time in the image to [`EPOCH`].
fn settle_times(image: &Path) -> Result<(), BuildError> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(image)
        .at("open", image)?;
    let layout = layout(&file, image)?;
    let epoch = u32::try_from(EPOCH).unwrap_or(0).to_le_bytes();
    // Superblock: last mount, write, check and creation, and the bytes ever written.
    for offset in [44, 48, 64, 264] {
        file.write_all_at(&epoch, SUPERBLOCK + offset)
            .at("write", image)?;
    }
    file.write_all_at(&[0; 8], SUPERBLOCK + 376)
        .at("write", image)?;
    for group in 0..layout.groups {
        let mut descriptor = [0u8; 12];
        let at = layout.first_descriptor + group * layout.descriptor_size;
        file.read_exact_at(&mut descriptor, at).at("read", image)?;
        let table = u64::from(le32(&descriptor, 8)) * layout.block_size;
        settle_group(&file, table, &layout, epoch).at("rewrite", image)?;
    }
    Ok(())
}

fn settle_group(file: &File, table: u64, layout: &Layout, epoch: [u8; 4]) -> std::io::Result<()> {
    let size = usize::try_from(layout.inode_size).unwrap_or(256);
    let length = usize::try_from(layout.inodes_per_group).unwrap_or(0) * size;
    let mut inodes = vec![0u8; length];
    file.read_exact_at(&mut inodes, table)?;
    // Writes only changed blocks, so that holes stay.
    const PIECE: usize = 4096;
    for (number, piece) in inodes.chunks_mut(PIECE).enumerate() {
        let before = piece.to_vec();
        for inode in piece
            .chunks_exact_mut(size)
            .filter(|inode| inode.iter().any(|b| *b != 0))
        {
            settle_inode(inode, epoch);
        }
        if before != piece {
            file.write_all_at(piece, table + (number * PIECE) as u64)?;
        }
    }
    Ok(())
}

/// Access, change, modification and creation time, and their nanoseconds.
fn settle_inode(inode: &mut [u8], epoch: [u8; 4]) {
    for offset in [8, 12, 16] {
        inode[offset..offset + 4].copy_from_slice(&epoch);
    }
    let extra = u16::from_le_bytes([inode[128], inode[129]]);
    // The extra fields reach to byte 152: creation time and its nanoseconds.
    if usize::from(extra) >= 152 - 128 {
        for offset in [132, 136, 140, 148] {
            inode[offset..offset + 4].fill(0);
        }
        inode[144..148].copy_from_slice(&epoch);
    }
}

fn layout(file: &File, image: &Path) -> Result<Layout, BuildError> {
    let mut sb = [0u8; 1024];
    file.read_exact_at(&mut sb, SUPERBLOCK).at("read", image)?;
    let wrong = |problem: &str| BuildError::Format {
        path: image.to_owned(),
        expected: "ext4 file system of our making",
        problem: problem.to_owned(),
    };
    if u16::from_le_bytes([sb[56], sb[57]]) != MAGIC {
        return Err(wrong("no superblock"));
    }
    let incompatible = le32(&sb, 96);
    const WIDE: u32 = 0x80;
    if incompatible & WIDE != 0 || u16::from_le_bytes([sb[88], sb[89]]) != 256 {
        return Err(wrong("an inode size or feature that was not asked for"));
    }
    let block_size = 1024u64 << le32(&sb, 24).min(6);
    let inodes_per_group = u64::from(le32(&sb, 40));
    if inodes_per_group == 0 {
        return Err(wrong("no inodes"));
    }
    Ok(Layout {
        inode_size: 256,
        inodes_per_group,
        groups: u64::from(le32(&sb, 0)) / inodes_per_group,
        block_size,
        descriptor_size: 32,
        first_descriptor: (u64::from(le32(&sb, 20)) + 1) * block_size,
    })
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use test_records::{Missing, skip};

    use super::*;

    fn build(dir: &Path, name: &str) -> Vec<u8> {
        let root = dir.join(name);
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("sub/file"), "content").unwrap();
        fs::write(root.join("zeros"), vec![0u8; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("sub/file", root.join("link")).unwrap();
        for path in ["sub/file", "zeros", "sub", "."] {
            crate::normalise::settle_time(&root.join(path)).unwrap();
        }
        let image = dir.join(format!("{name}.ext4"));
        make(&root, &image, 64, dir, &mut Reporter::new(&mut |_| {})).unwrap();
        fs::read(&image).unwrap()
    }

    /// Requirement: N46
    #[test]
    fn the_same_tree_gives_the_same_file_system() {
        if crate::tool::find("mke2fs").is_none() {
            let test = "the_same_tree_gives_the_same_file_system";
            return skip(test, Missing::Tool, "mke2fs of package e2fsprogs");
        }
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (build(dir.path(), "a"), build(dir.path(), "b"));
        assert!(first == second, "two file systems of equal trees differ");
        let check = std::process::Command::new("/sbin/e2fsck")
            .args(["-f", "-n"])
            .arg(dir.path().join("a.ext4"))
            .output()
            .unwrap();
        assert!(
            check.status.success(),
            "{}",
            String::from_utf8_lossy(&check.stdout)
        );
    }

    /// Requirement: N46
    #[test]
    fn foreign_file_system_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, vec![0u8; 4096]).unwrap();
        assert!(matches!(
            settle_times(&path),
            Err(BuildError::Format { .. })
        ));
    }
}
