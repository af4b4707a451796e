//! `cargo xtask test`: what CI runs, in the order in which failures are cheapest; or the tests of
//! one component.

mod choice;
mod failures;
mod lanes;
mod records;
mod seconds;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Result, bail};
use clap::Args;
use test_records::{Missing, Skip};

use self::choice::{Members, Need};
use self::records::Records;

use crate::progress::{Cargo, Depends};
use crate::{build, cluster, disk, foreign, setup, shell, tidy};

/// Options of `test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run the tests of this component alone, without format, tidy and lints: a folder with a
    /// crate, such as `scheduler`, `tests`, `neonvm-shim/runner` or, for short, `runner`. A folder
    /// of crates, such as `neonvm-shim`, means all of them
    component: Option<String>,
    /// Run only tests whose name contains this
    name: Option<String>,
    /// Leave out the tests that boot a guest
    #[arg(long, conflicts_with = "component")]
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
    if let Some(component) = &options.component {
        return run_component(component, options);
    }
    disk::ensure_room()?;
    setup::ensure(setup::Need::Everything)?;
    // Downloads leave the processors idle, and the lints leave the network idle.
    let (linted, has_cluster) = thread::scope(|scope| {
        let programs = scope.spawn(programs_of_peers);
        let linted = together(vec![
            ("format", format()),
            ("tidy", tidy::run()),
            ("lints", lints()),
        ]);
        (linted, programs.join().expect("a build does not panic"))
    });
    linted?;
    let has_cluster = has_cluster?;
    let bellows = build::images(build::Scope::Tests)?;
    let records = Records::new(&options.may_skip)?;
    records.skip(tidy::left_out())?;
    let give = |command: &mut Command| {
        records.give_to(command.env("BELLOWS_BIN", &bellows));
    };
    // The page about kind is the last one.
    let tests = lanes::run(&give, &["--skip", cluster::KIND_PAGE])
        .and_then(|()| kind_page(&records, &bellows, has_cluster));
    together(vec![("tests", tests), ("tests left out", records.close())])
}

/// Builds what tests run beside our programs. Returns whether there can be a cluster.
fn programs_of_peers() -> Result<bool> {
    foreign::ensure()?;
    let has_cluster = cluster::build_if_possible()?;
    if shell::is_root() {
        cluster::rootfs::ensure_systemd()?;
    }
    Ok(has_cluster)
}

/// The test of the page about kind, which records itself as skipped where it cannot run.
fn kind_page(records: &Records, bellows: &Path, has_cluster: bool) -> Result<()> {
    let may_build = !records.may_skip(Missing::Kind);
    let left_out = if has_cluster && shell::is_root() {
        cluster::test_kind(bellows, may_build)?
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
}

/// Runs the tests of one component, after providing what they need.
fn run_component(component: &str, options: &Options) -> Result<()> {
    let members = Members::of_workspace()?;
    let packages = members.chosen(component)?;
    let provided = Provided::of(&choice::needs(&packages))?;
    let records = Records::new(&options.may_skip)?;
    let name = options.name.as_deref();
    let mut command = shell::cargo()?;
    command.args(component_arguments(&packages, name));
    records.give_to(&mut command);
    let bellows = provided.bellows.iter();
    command.envs(bellows.map(|bellows| ("BELLOWS_BIN", bellows)));
    let tests = lanes::alone(&mut command).and_then(|count| {
        match &provided.bellows {
            Some(bellows) if has_kind_page(&packages, name) => {
                kind_page(&records, bellows, provided.has_cluster)?;
            }
            _ if count == 0 && name.is_some() => {
                bail!(
                    "no test of {component} has {:?} in its name",
                    name.unwrap_or_default()
                )
            }
            _ => {}
        }
        Ok(())
    });
    together(vec![("tests", tests), ("tests left out", records.close())])
}

/// Arguments of cargo. The page about kind has a run of its own.
fn component_arguments<'a>(packages: &[&'a str], name: Option<&'a str>) -> Vec<&'a str> {
    let mut arguments = vec!["test", "--no-fail-fast"];
    arguments.extend(packages.iter().flat_map(|package| ["-p", *package]));
    arguments.push("--");
    if packages.contains(&choice::SYSTEM) {
        arguments.extend(["--skip", cluster::KIND_PAGE]);
    }
    arguments.extend(name);
    arguments
}

fn has_kind_page(packages: &[&str], name: Option<&str>) -> bool {
    packages.contains(&choice::SYSTEM) && name.is_none_or(|name| cluster::KIND_PAGE.contains(name))
}

/// What the tests of a component find on the machine.
struct Provided {
    bellows: Option<PathBuf>,
    has_cluster: bool,
}

impl Provided {
    /// Builds and installs what is missing.
    fn of(needs: &BTreeSet<Need>) -> Result<Self> {
        setup::ensure(if needs.is_empty() {
            setup::Need::Build
        } else {
            setup::Need::Everything
        })?;
        if needs.contains(&Need::Foreign) {
            foreign::ensure()?;
        }
        if needs.contains(&Need::Systemd) && shell::is_root() {
            cluster::rootfs::ensure_systemd()?;
        }
        let has_cluster = needs.contains(&Need::Cluster) && cluster::build_if_possible()?;
        let has_images = needs.contains(&Need::Images);
        let bellows = has_images.then(|| build::images(build::Scope::Binaries));
        Ok(Self {
            bellows: bellows.transpose()?,
            has_cluster,
        })
    }
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
        options(words).map(|options| options.may_skip)
    }

    #[test]
    fn keys_of_the_command_line_are_known_ones() {
        let both = may_skip(&["--may-skip", "psi,vsock"]).expect("known");
        assert_eq!(both, [Missing::Psi, Missing::Vsock]);
        assert_eq!(may_skip(&[]).expect("none"), []);
        assert!(may_skip(&["--may-skip", "weather"]).is_err());
    }

    fn options(words: &[&str]) -> Result<Options, clap::Error> {
        let line = <Line as clap::Parser>::try_parse_from([&["test"], words].concat());
        line.map(|line| line.options)
    }

    #[test]
    fn component_and_name_are_words_without_an_option() {
        let both = options(&["runner", "adopts", "--may-skip", "psi"]).expect("known");
        assert_eq!(both.component.as_deref(), Some("runner"));
        assert_eq!(both.name.as_deref(), Some("adopts"));
        assert_eq!(both.may_skip, [Missing::Psi]);
        assert!(options(&[]).expect("all").component.is_none());
        assert!(options(&["runner", "--no-guest"]).is_err());
    }

    #[test]
    fn tests_of_a_component_are_those_of_its_packages() {
        assert_eq!(
            component_arguments(&["scheduler"], Some("permit")),
            ["test", "--no-fail-fast", "-p", "scheduler", "--", "permit"]
        );
        let several = component_arguments(&["neonvm-links", "neonvm-runner"], None);
        let packages = ["-p", "neonvm-links", "-p", "neonvm-runner", "--"];
        assert_eq!(several[2..], packages);
    }

    #[test]
    fn page_about_kind_is_run_apart_and_only_where_its_name_fits() {
        let system = [choice::SYSTEM];
        let arguments = component_arguments(&system, None);
        assert_eq!(arguments[5..], ["--skip", cluster::KIND_PAGE]);
        assert!(has_kind_page(&system, None) && has_kind_page(&system, Some("about_kind")));
        assert!(!has_kind_page(&system, Some("permit")));
        assert!(!has_kind_page(&["scheduler"], None));
    }

    /// The first run leaves it out by this name.
    #[test]
    fn page_about_kind_is_a_test_of_that_name() {
        let file = shell::root().join("tests/tests/install_kind.rs");
        let text = std::fs::read_to_string(file).expect("the test");
        assert!(text.contains(&format!("async fn {}()", cluster::KIND_PAGE)));
    }
}
