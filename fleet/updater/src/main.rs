//! `bellows-updater` of the Debian package: see `bellows-updater --help`.

use std::process::ExitCode;

use bellows_updater::command;
use bellows_updater::shell::apt::Apt;

fn main() -> ExitCode {
    command::main::<Apt>()
}
