//! Programs of other makers that tests talk to, in the project's cache: versitygw for S3, built by
//! Go; azurite for Azure blobs, which runs on Node; and a client of release metadata, on Python.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::progress::{self, Work};
use crate::shell;

/// What is built; one version, so that every machine tests against the same server.
const S3_MODULE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const S3_PROGRAM: &str = "versitygw";
/// What is installed, likewise.
const AZURE_PACKAGE: &str = "azurite@3.35.0";
const AZURE_PROGRAM: &str = "azurite/node_modules/azurite/dist/src/blob/main.js";

const METADATA_PACKAGE: &str = "tuf==7.0.1";
const METADATA_FOLDER: &str = "tuf-7.0.1";

/// Gets all unless they are there. Where what they need is missing, the tests that need them say
/// so.
pub(crate) fn ensure() -> Result<()> {
    let folder = shell::cache_dir()?.join("tools");
    s3(&folder)?;
    azure(&folder)?;
    metadata_client(&folder)
}

fn s3(folder: &Path) -> Result<()> {
    if folder.join(S3_PROGRAM).is_file() {
        return Ok(());
    }
    if !shell::on_path("go") {
        shell::say("note: no Go toolchain, so tests against a real S3 server are left out");
        return Ok(());
    }
    let mut command = Command::new("go");
    command
        .args(["install", "-v", S3_MODULE])
        .env("GOBIN", folder)
        .env("GOFLAGS", "-mod=mod");
    let work = Work::Packages { total: None };
    progress::run("build the S3 server for tests", &mut command, work)
}

fn azure(folder: &Path) -> Result<()> {
    if folder.join(AZURE_PROGRAM).is_file() {
        return Ok(());
    }
    if !shell::on_path("node") || !shell::on_path("npm") {
        shell::say("note: no Node, so tests against an Azure-style blob server are left out");
        return Ok(());
    }
    let mut command = Command::new("npm");
    // Nothing of what it brings is run while it is installed.
    command
        .args([
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--prefix",
        ])
        .arg(folder.join("azurite"))
        .arg(AZURE_PACKAGE);
    progress::run(
        "install the Azure-style blob server for tests",
        &mut command,
        Work::Unknown,
    )
}

fn metadata_client(folder: &Path) -> Result<()> {
    let own = folder.join(METADATA_FOLDER);
    if own.join("whole").is_file() {
        return Ok(());
    }
    let mut command = Command::new("python3");
    command.args(["-m", "venv", "--clear"]).arg(&own);
    let what = "make a folder for the client of release metadata";
    progress::run(what, &mut command, Work::Unknown)?;
    let mut command = Command::new(own.join("bin/python"));
    command.args(["-m", "pip", "install", "--quiet", METADATA_PACKAGE]);
    let what = "install the client of release metadata for tests";
    progress::run(what, &mut command, Work::Unknown)?;
    std::fs::write(own.join("whole"), METADATA_PACKAGE)?;
    Ok(())
}
