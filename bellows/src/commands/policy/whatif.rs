//! `bellows replay --policy`: what would a recorded time have been with a policy? The program
//! `bellows-policy` runs the model, because it alone links Lua.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use daemon_kit::journal::files::SegmentFile;
use policy_contract::Spec;
use protocol::journal::Record;
use protocol::policy::Role;
use protocol::time::WallTime;

use super::program;
use super::state::short;
use super::worker::{SOURCES, read_spec};
use crate::commands::journal::{of_state, read};
use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// Options of a replay with another policy.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WhatIfArgs {
    /// Report what the time would have been with this policy, a Lua file
    ///
    /// The first line of the report is the model's error. Ends with 1 if it is too large to judge
    /// by.
    #[arg(long, value_name = "FILE", conflicts_with = "no_policies")]
    pub(crate) policy: Option<PathBuf>,
    /// Number that the policy reads as i.params.NAME
    #[arg(long = "params", value_name = "NAME=NUMBER", requires = "policy")]
    params: Vec<String>,
    /// Series that the policy reads beyond load1, load5, used and cached
    #[arg(long, value_name = "NAME", requires = "policy")]
    series: Vec<String>,
    /// What the policy decides about. No journal has the questions about sets, so set ends with 69
    #[arg(long, value_name = "SCOPE", requires = "policy", value_parser = ["vm", "set"])]
    scope: Option<String>,
    /// Begin of the time that counts, RFC 3339; what lies before warms the past up
    #[arg(long, value_name = "TIME", requires = "policy")]
    from: Option<String>,
    /// End of the time that counts
    #[arg(long, value_name = "TIME", requires = "policy")]
    to: Option<String>,
    /// One VM alone, as NAME or NAMESPACE/NAME
    #[arg(long, value_name = "VM", requires = "policy")]
    vm: Option<String>,
    /// Write the report as a page too
    #[arg(long, value_name = "FILE", requires = "policy")]
    html: Option<PathBuf>,
    /// Format of the report
    #[arg(short, long, value_name = "FORMAT", requires = "policy", value_parser = ["text", "json"])]
    output: Option<String>,
}

impl WhatIfArgs {
    /// Runs the model over the segments, in place of this process.
    pub(crate) fn run(&self, segments: impl Iterator<Item = PathBuf>) -> Outcome {
        program::replace("replay", &self.arguments(segments))
    }

    fn arguments(&self, segments: impl Iterator<Item = PathBuf>) -> Vec<OsString> {
        let vm = self.vm.as_ref().map(|vm| {
            if vm.contains('/') {
                vm.clone()
            } else {
                format!("{}/{vm}", crate::plugin::namespace())
            }
        });
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: Option<OsString>| {
            // One word, so that a value may begin with a dash.
            arguments.extend(value.map(|value| {
                let mut word = OsString::from(format!("--{name}="));
                word.push(value);
                word
            }));
        };
        option("policy", self.policy.clone().map(Into::into));
        for value in &self.params {
            option("params", Some(value.into()));
        }
        for name in &self.series {
            option("series", Some(name.into()));
        }
        option("scope", self.scope.clone().map(Into::into));
        option("from", self.from.clone().map(Into::into));
        option("to", self.to.clone().map(Into::into));
        option("vm", vm.map(Into::into));
        option("html", self.html.clone().map(Into::into));
        option("output", self.output.clone().map(Into::into));
        arguments.push("--".into());
        arguments.extend(segments.map(PathBuf::into_os_string));
        arguments
    }
}

/// Writes the page about the newest recorded version of a policy, from `since` on. The report as
/// text goes to standard error, because standard output has the recorded part.
pub(super) fn page(context: &Context, name: &str, since: WallTime, file: &Path) -> Outcome {
    let segments = of_state(context)?;
    let spec = newest(context, name, &segments)?;
    let source = program::input(&spec.source)?;
    let parameters = spec.params.iter();
    let args = WhatIfArgs {
        policy: Some(source.path().to_owned()),
        params: parameters
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        series: spec.series.iter().map(ToString::to_string).collect(),
        from: Some(since.to_micro_string()),
        html: Some(file.to_owned()),
        ..WhatIfArgs::default()
    };
    let program = program::find()?;
    let status = Command::new(&program)
        .args(["replay", "--name"])
        .arg(name)
        .args(args.arguments(segments.into_iter().map(|segment| segment.path)))
        .stdout(Stdio::from(std::io::stderr()))
        .status()
        .map_err(|error| Fail::missing(format!("{} cannot be run: {error}", program.display())))?;
    if status.success() {
        return Ok(());
    }
    Err(Fail::not_so(format!(
        "the model does not judge policy {name}: its first line says why"
    )))
}

/// The version in shadow, else the one that decides, by the newest record about the policy.
fn newest(context: &Context, name: &str, segments: &[SegmentFile]) -> Outcome<Spec> {
    let mut digest = None;
    for file in segments {
        for line in read(file.clone())?.scan.lines {
            if let Ok(Record::Bound(bound)) = line.record
                && bound.name.as_deref() == Some(name)
            {
                let roles = &bound.roles;
                let candidate = roles.get(&Role::Shadow).or(roles.get(&Role::Live));
                digest = candidate.map(|version| version.digest.clone()).or(digest);
            }
        }
    }
    let missing = |what: String| {
        Fail::not_so(what).fix("name a file: bellows replay --policy FILE --html FILE")
    };
    let digest = digest.ok_or_else(|| missing(format!("the journal has no policy {name}")))?;
    let short = short(&digest);
    let folder = context.state()?.journal().join(SOURCES);
    read_spec(&folder, &digest)
        .ok_or_else(|| missing(format!("the source of {name} ({short}) is missing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_passed_on_as_they_are() {
        let args = WhatIfArgs {
            policy: Some("db.lua".into()),
            params: vec!["headroom=1.2".into(), "floor=-1".into()],
            series: vec!["pressure".into()],
            scope: Some("vm".into()),
            from: Some("2026-11-28T00:00:00Z".into()),
            vm: Some("prod/pg".into()),
            html: Some("-.html".into()),
            output: Some("json".into()),
            ..WhatIfArgs::default()
        };
        let given = args.arguments(["a.bj".into(), "-b.bj".into()].into_iter());
        let expected = [
            "--policy=db.lua",
            "--params=headroom=1.2",
            "--params=floor=-1",
            "--series=pressure",
            "--scope=vm",
            "--from=2026-11-28T00:00:00Z",
            "--vm=prod/pg",
            "--html=-.html",
            "--output=json",
            "--",
            "a.bj",
            "-b.bj",
        ];
        assert_eq!(given, expected);
    }
}
