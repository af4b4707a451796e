//! `bellows-updater` of the RPM package: see `bellows-updater --help`.

use std::process::ExitCode;

use bellows_updater::command;
use bellows_updater::shell::dnf::Dnf;

fn main() -> ExitCode {
    command::main::<Dnf>()
}
