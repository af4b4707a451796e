//! Black-box test kit: the real `bellows` binary, a real guest, the real API. It uses no internals
//! of a component.

#![forbid(unsafe_code)]

pub mod agent_link;
pub mod api;
pub mod attacks;
pub mod browser;
pub mod cases;
pub mod cluster;
pub mod durability;
pub mod figures;
pub mod guest;
pub mod guest_parts;
pub mod guestd_key;
pub mod image;
pub mod kubeconfig;
pub mod loads;
pub mod local_user;
pub mod outside;
pub mod pages;
pub mod patience;
pub mod process;
pub mod publisher;
pub mod qmp;
pub mod runner_state;
pub mod site;
pub mod stand_in;
pub mod vms;
pub mod web;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use test_records::{Missing, skip};

/// Free addresses: ports of a loopback address that no other test uses, so that the ports stay
/// free.
///
/// # Panics
///
/// If the machine has none.
#[must_use]
#[expect(clippy::expect_used, reason = "for tests")]
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 64 | high, middle, low);
    // All listeners stay open until the last address is known.
    let listeners = [(); N].map(|()| TcpListener::bind((ip, 0)).expect("a free port"));
    let addresses = listeners.each_ref().map(TcpListener::local_addr);
    addresses.map(|address| address.expect("its address"))
}

/// The error of a test, followed by what its world looks like. Long output is cut at its end, so
/// the cause comes first.
pub fn explained<T>(
    result: anyhow::Result<T>,
    world: impl FnOnce() -> String,
) -> anyhow::Result<T> {
    result.map_err(|error| anyhow::anyhow!("{error:#}\n{}", world()))
}

/// The checkout that tests run in. Not the one they were compiled in: checkouts share a target
/// directory.
#[must_use]
pub fn checkout() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    package.join("..")
}

/// The `bellows` binary under test: `$BELLOWS_BIN`, else the one `cargo build` put into the target
/// directory.
///
/// # Panics
/// When there is none: `cargo xtask test` builds it.
#[must_use]
pub fn bellows_bin() -> PathBuf {
    match std::env::var_os("BELLOWS_BIN") {
        Some(path) => PathBuf::from(path),
        None => program("bellows"),
    }
}

/// Puts another build of [`bellows_bin`] into a folder. It has a byte more at its end, so it does
/// the same and is another program.
///
/// # Errors
/// When it cannot be written.
pub fn other_build(folder: &Path) -> std::io::Result<PathBuf> {
    let path = folder.join("bellows");
    std::fs::copy(bellows_bin(), &path)?;
    let mut file = std::fs::OpenOptions::new().append(true).open(&path)?;
    file.write_all(b"\n")?;
    Ok(path)
}

/// Another binary of this project: beside `$BELLOWS_BIN`, else in the target directory.
///
/// # Panics
///
/// If there is none: `cargo xtask test` builds it.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os("BELLOWS_BIN") {
        let beside = PathBuf::from(path).with_file_name(name);
        if beside.is_file() {
            return beside;
        }
    }
    // …/target/debug/deps/test-binary -> …/target/debug/bellows
    let me = std::env::current_exe().expect("a test knows its own path");
    let found = me
        .ancestors()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo build --workspace --bins`, or set BELLOWS_BIN")
    })
}

/// Whether the image store has the images of a guest. If not, the test is
/// [recorded](test_records::skip) as skipped.
///
/// # Panics
///
/// If the test may not be skipped.
#[must_use]
pub fn guest_or_skip(test: &str) -> bool {
    let Some(what) = missing_guest_part() else {
        return true;
    };
    let reason = format!("{what}: run `cargo xtask images`");
    skip(test, Missing::Guest, &reason);
    false
}

fn missing_guest_part() -> Option<&'static str> {
    let output = std::process::Command::new(bellows_bin())
        .args(["image", "ls", "--output", "json"])
        .output()
        .expect("bellows runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("bellows/qemu") {
        Some("image bellows/qemu")
    } else if !text.contains("bellows/postgres:15") {
        Some("image bellows/postgres:15")
    } else {
        None
    }
}

/// The last lines of a file that may be absent, whatever bytes are in it.
pub(crate) fn last_lines(file: &std::path::Path, count: usize) -> String {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
