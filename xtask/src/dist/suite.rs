//! A signed suite of packages in a folder, as apt reads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// Name of the public key beside the packages.
pub(super) const KEY: &str = "suite.pgp";
/// Time of key, signature and lists: before the clock of every machine that reads them.
const TIME: &str = "1700000000";
/// Time of signatures. gpg's clock goes on from the time that it is given, so a key may be younger.
const SIGNED: &str = "1700003600";
const DATE: &str = "Tue, 14 Nov 2023 22:13:20 UTC";

/// Signs the packages of a folder by a fresh key.
pub(super) fn sign(suite: &Path, packages: &[PathBuf]) {
    let index: String = packages.iter().map(|package| entry(package)).collect();
    fs::write(suite.join("Packages"), &index).expect("written");
    let sum = sum(&suite.join("Packages"));
    let size = index.len();
    let release = format!("Date: {DATE}\nSHA256:\n {sum} {size} Packages\n");
    fs::write(suite.join("Release"), release).expect("written");
    by_a_fresh_key(suite, &["--output", "InRelease", "--clearsign", "Release"]);
}

/// Makes the lists of the RPM packages of a folder, by a program of a root whose folder it is, and
/// signs them by a fresh key.
pub(super) fn sign_rpm(root: &Path, suite: &str) {
    let mut lists = Command::new("chroot");
    lists
        .arg(root)
        .args(["createrepo_c", "--quiet", "--revision", TIME]);
    shell::output(lists.arg(format!("/{suite}"))).expect("it runs");
    let sign = ["--armor", "--detach-sign", "repodata/repomd.xml"];
    by_a_fresh_key(&root.join(suite), &sign);
}

/// Runs gpg with a fresh key in a folder, and writes the public one there.
fn by_a_fresh_key(suite: &Path, words: &[&str]) {
    let home = tempfile::tempdir().expect("a folder");
    let gpg = |time: &str, words: &[&str]| {
        let mut command = Command::new("gpg");
        command
            .env("GNUPGHOME", home.path())
            .args(["--batch", "--quiet", "--faked-system-time", time])
            .args(words)
            .current_dir(suite);
        shell::output(&mut command).expect("it runs")
    };
    let user = "suite@bellows.invalid";
    gpg(
        TIME,
        &[
            "--passphrase",
            "",
            "--quick-generate-key",
            user,
            "ed25519",
            "sign",
            "never",
        ],
    );
    gpg(SIGNED, words);
    gpg(SIGNED, &["--output", KEY, "--export", user]);
    let mut end = Command::new("gpgconf");
    end.env("GNUPGHOME", home.path()).args(["--kill", "all"]);
    shell::output(&mut end).expect("it runs");
}

/// A package's entry in the index.
fn entry(package: &Path) -> String {
    let mut fields = Command::new("dpkg-deb");
    let fields = shell::output(fields.arg("--field").arg(package)).expect("it runs");
    let name = package.file_name().expect("a name").display();
    let size = fs::metadata(package).expect("there").len();
    let (fields, sum) = (fields.trim_end(), sum(package));
    format!("{fields}\nFilename: ./{name}\nSize: {size}\nSHA256: {sum}\n\n")
}

fn sum(path: &Path) -> String {
    let mut command = Command::new("sha256sum");
    let line = shell::output(command.arg(path)).expect("it runs");
    line.split(' ').next().expect("a sum").to_owned()
}
