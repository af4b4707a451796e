//! `cargo xtask test`: what CI runs, in the order in which failures are cheapest.

mod failures;
mod lanes;
mod records;
mod seconds;

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;
use test_records::{Missing, Skip};

use self::records::Records;

use crate::progress::{Cargo, Depends};
use crate::{build, cluster, event_servers, setup, shell, tidy};

/// Options of `test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave out the tests that boot a guest
    #[arg(long)]
    no_guest: bool,
    /// Leave out tests that lack one of these; a test that does not run for any other reason fails
    #[arg(long, value_name = "KEY", value_delimiter = ',', conflicts_with = "no_guest",
        long_help = may_skip_help())]
    may_skip: Vec<Missing>,
}

fn may_skip_help() -> String {
    let keys = Missing::list(&Missing::ALL);
    format!(
        "Leave out tests that lack one of these, separated by commas: {keys}. A test that does \
         not run for any other reason fails"
    )
}

/// Format, tidy, lints, and every test that needs no guest.
pub(crate) fn check() -> Result<()> {
    setup::ensure(setup::Need::Build)?;
    let mut tests = shell::cargo()?;
    tests.args(["test", "--workspace", "--exclude", "bellows-tests"]);
    // The whole classes that are left out here are what the caller asked for.
    let records = Records::new(&Missing::ALL)?;
    records.give_to(&mut tests);
    records.skip(tidy::left_out())?;
    together(vec![
        ("format", format()),
        ("tidy", tidy::run()),
        ("lints", lints()),
        (
            "tests",
            shell::run("unit, golden and property tests", &mut tests),
        ),
        ("tests left out", records.close()),
    ])
}

/// Runs `check`, then all tests, those with real guests and a real Kubernetes included.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.no_guest {
        return check();
    }
    setup::ensure(setup::Need::Everything)?;
    event_servers::ensure()?;
    together(vec![
        ("format", format()),
        ("tidy", tidy::run()),
        ("lints", lints()),
    ])?;
    let has_cluster = cluster::build_if_possible()?;
    if shell::is_root() {
        cluster::rootfs::ensure_systemd()?;
    }
    let bellows = build::images(build::Scope::Tests)?;
    let records = Records::new(&options.may_skip)?;
    records.skip(tidy::left_out())?;
    let give = |command: &mut Command| {
        records.give_to(command.env("BELLOWS_BIN", &bellows));
    };
    // The page about kind is the last one.
    let tests = lanes::run(&give, &["--skip", cluster::KIND_PAGE]).and_then(|()| {
        let may_build = !records.may_skip(Missing::Kind);
        let left_out = if has_cluster && shell::is_root() {
            cluster::test_kind(&bellows, may_build)?
        } else {
            Some("without Go or root there is no cluster at all")
        };
        left_out.map_or(Ok(()), |reason| {
            records.skip(Skip {
                missing: Missing::Kind,
                test: cluster::KIND_PAGE.to_owned(),
                reason: reason.to_owned(),
            })
        })
    });
    together(vec![("tests", tests), ("tests left out", records.close())])
}

/// Every failure is shown, so that one round is enough to see all of them.
fn together(results: Vec<(&str, Result<()>)>) -> Result<()> {
    let failed: Vec<String> = results
        .into_iter()
        .filter_map(|(name, result)| result.err().map(|error| format!("{name}: {error:#}")))
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("{}", failed.join("\n"))
    }
}

fn format() -> Result<()> {
    shell::run("format", shell::cargo()?.args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    let lints = Cargo {
        command: shell::cargo()?,
        subcommand: &["clippy", "--all-targets"],
        selection: &["--workspace"],
        depends: Depends::Dev,
        trailing: &["-D", "warnings"],
    };
    lints.run("lints")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn may_skip(words: &[&str]) -> Result<Vec<Missing>, clap::Error> {
        let line = <Line as clap::Parser>::try_parse_from([&["test"], words].concat());
        line.map(|line| line.options.may_skip)
    }

    #[test]
    fn keys_of_the_command_line_are_known_ones() {
        let both = may_skip(&["--may-skip", "psi,vsock"]).expect("known");
        assert_eq!(both, [Missing::Psi, Missing::Vsock]);
        assert_eq!(may_skip(&[]).expect("none"), []);
        assert!(may_skip(&["--may-skip", "weather"]).is_err());
    }

    /// The first run leaves it out by this name.
    #[test]
    fn page_about_kind_is_a_test_of_that_name() {
        let file = shell::root().join("tests/tests/install_kind.rs");
        let text = std::fs::read_to_string(file).expect("the test");
        assert!(text.contains(&format!("async fn {}()", cluster::KIND_PAGE)));
    }
}
