//! The S3-compatible server that tests of events talk to: versitygw, built with the Go toolchain into the project's cache.

use std::process::Command;

use anyhow::Result;

use crate::shell;

/// What is built; one version, so that every machine tests against the same server.
const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const PROGRAM: &str = "versitygw";

/// Builds the server unless it is there. Without a Go toolchain nothing is done: the tests that need the server say so.
pub(crate) fn ensure() -> Result<()> {
    let folder = shell::cache_dir()?.join("tools");
    if folder.join(PROGRAM).is_file() {
        return Ok(());
    }
    if !shell::on_path("go") {
        shell::say("note: no Go toolchain, so tests against a real S3 server are left out");
        return Ok(());
    }
    let mut command = Command::new("go");
    command
        .args(["install", MODULE])
        .env("GOBIN", &folder)
        .env("GOFLAGS", "-mod=mod");
    shell::run("build the S3 server for tests", &mut command)
}
