//! Arguments that the commands of the fleet share, and how they change an environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use protocol::fleet::{
    Cron, CronVerb, Day, EnvironmentSpec, EnvironmentType, Rollout, Selector, Service,
    check_version,
};
use protocol::parts::PartName;

use crate::actions;
use crate::args::NamespaceArgs;
use crate::fail::{Fail, Outcome};
use crate::output::Format;
use crate::plugin;

/// What to list, and how to print it.
#[derive(Debug, Clone, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub(super) namespace: NamespaceArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(super) output: Format,
}

/// An environment by name, `NAME` or `NAMESPACE/NAME`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EnvArgs {
    /// The environment, as NAME or NAMESPACE/NAME
    #[arg(value_name = "ENV")]
    env: String,
    /// Namespace of an environment given by its name alone
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
}

impl EnvArgs {
    /// Namespace and name of the environment.
    pub(crate) fn key(&self) -> (&str, &str) {
        self.env
            .split_once('/')
            .unwrap_or((&self.namespace, &self.env))
    }
}

/// A part whose versions an environment is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// `vm-monitor`, which talks to the agent.
    Monitor,
    /// `neonvmd`, which talks to the runner.
    Guestd,
    /// `autoscaler-agent` of the nodes of a cluster.
    Agent,
    /// `autoscale-scheduler` of a cluster.
    Scheduler,
    /// `neonvm-controller` of a cluster.
    Controller,
    /// `bellows-fleet` of a cluster.
    Fleet,
}

impl Part {
    pub(crate) const fn name(self) -> PartName {
        match self {
            Self::Monitor => PartName::Monitor,
            Self::Guestd => PartName::Guestd,
            Self::Agent => PartName::Agent,
            Self::Scheduler => PartName::Scheduler,
            Self::Controller => PartName::Controller,
            Self::Fleet => PartName::Fleet,
        }
    }
}

/// Why a person gives an order.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReasonArgs {
    /// Why; it stands in the deployment and in the journal
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    pub(crate) reason: Option<String>,
}

/// What an environment is to be. A value that is left out stays, or is the default of a new one.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SpecArgs {
    /// VMs that belong to it, by labels [default: all of the namespace]
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    selector: Option<Vec<(String, String)>>,
    /// Guests that stay settled and healthy, percent [default: 90]
    #[arg(long, value_name = "PERCENT")]
    min_healthy: Option<u32>,
    /// Guests that change at the same time [default: 10]
    #[arg(long, value_name = "COUNT")]
    max_in_flight: Option<u32>,
    /// Guests of one node that change at the same time [default: 1]
    #[arg(long, value_name = "COUNT")]
    max_per_node: Option<u32>,
    /// Length of a trial [default: 60]
    #[arg(long, value_name = "SECONDS")]
    trial: Option<u64>,
    /// Longest duration of a deployment [default: 86400]
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// Further attempts in a guest whose trial ended badly [default: 2]
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,
    /// Guests whose trials may end badly, percent [default: 5]
    #[arg(long, value_name = "PERCENT")]
    max_failed: Option<u32>,
    /// Whether a failed deployment is taken back [default: true]
    #[arg(long, value_name = "BOOL")]
    auto_rollback: Option<bool>,
    /// Most pods of a part of the control plane, percent of its replicas [default: 100]
    #[arg(long, value_name = "PERCENT")]
    max_active: Option<u32>,
    /// Time in which all its pods run the new image; it goes back after it [default: 600]
    #[arg(long, value_name = "SECONDS")]
    progress: Option<u64>,
}

impl SpecArgs {
    /// Changes what was given, and keeps the rest.
    pub(crate) fn change(&self, spec: &mut EnvironmentSpec) {
        if let Some(labels) = &self.selector {
            let match_labels: BTreeMap<String, String> = labels.iter().cloned().collect();
            spec.selector = Selector {
                match_labels,
                match_expressions: Vec::new(),
            };
        }
        if self.max_active.is_some() || self.progress.is_some() {
            let before = spec.service.unwrap_or_default();
            spec.service = Some(Service {
                max_active_percent: self.max_active.unwrap_or(before.max_active_percent),
                progress_seconds: self.progress.unwrap_or(before.progress_seconds),
            });
        }
        let before = std::mem::take(&mut spec.rollout);
        spec.rollout = Rollout {
            min_healthy_percent: self.min_healthy.unwrap_or(before.min_healthy_percent),
            max_in_flight: self.max_in_flight.unwrap_or(before.max_in_flight),
            max_per_node: self.max_per_node.unwrap_or(before.max_per_node),
            trial_seconds: self.trial.unwrap_or(before.trial_seconds),
            deadline_seconds: self.deadline.unwrap_or(before.deadline_seconds),
            retries: self.retries.unwrap_or(before.retries),
            max_failed_percent: self.max_failed.unwrap_or(before.max_failed_percent),
            auto_rollback: self.auto_rollback.unwrap_or(before.auto_rollback),
            ..before
        };
    }
}

/// Kind of a new environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvType {
    /// One copy of the part on every match.
    Daemon,
    /// A Deployment of the control plane.
    Service,
    /// Verifies what runs at weekly times, and changes nothing.
    Cron,
}

impl EnvType {
    pub(crate) const fn name(self) -> EnvironmentType {
        match self {
            Self::Daemon => EnvironmentType::Daemon,
            Self::Service => EnvironmentType::Service,
            Self::Cron => EnvironmentType::Cron,
        }
    }
}

/// When an environment of the type cron verifies. A value that is left out stays.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TimesArgs {
    /// Days on which an environment of the type cron verifies, as Sat,Sun
    #[arg(long, value_name = "DAY", value_delimiter = ',', value_parser = weekday)]
    days: Vec<Day>,
    /// Local time at which it verifies, as 02:00
    #[arg(long, value_name = "HH:MM")]
    start: Option<String>,
    /// Time zone of that time, as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
}

impl TimesArgs {
    /// # Errors
    /// A new environment verifies, and does not say when.
    pub(crate) fn check(&self, kind: Option<EnvType>) -> Outcome {
        let is_whole = !self.days.is_empty() && self.start.is_some();
        if kind != Some(EnvType::Cron) || is_whole {
            return Ok(());
        }
        Err(
            Fail::usage("--type cron: the time at which it verifies is missing")
                .fix("name days and time: --days Sat,Sun --start 02:00"),
        )
    }

    /// Changes what was given, and keeps the rest.
    pub(crate) fn change(&self, spec: &mut EnvironmentSpec) {
        if self.days.is_empty() && self.start.is_none() && self.time_zone.is_none() {
            return;
        }
        let cron = spec.cron.get_or_insert_with(|| Cron {
            days: Vec::new(),
            start: String::new(),
            time_zone: "UTC".to_owned(),
            verb: CronVerb::Verify,
        });
        if !self.days.is_empty() {
            cron.days.clone_from(&self.days);
        }
        if let Some(start) = &self.start {
            cron.start.clone_from(start);
        }
        if let Some(time_zone) = &self.time_zone {
            cron.time_zone.clone_from(time_zone);
        }
    }
}

fn weekday(text: &str) -> Result<Day, String> {
    let mut all = Day::ALL.into_iter();
    all.find(|day| format!("{day:?}").eq_ignore_ascii_case(text))
        .ok_or_else(|| "it must be Mon, Tue, Wed, Thu, Fri, Sat or Sun".to_owned())
}

/// A version and the file of its program.
#[derive(Debug, Clone, Args)]
pub(crate) struct VersionArgs {
    /// Version to run, as 1.2.3
    #[arg(long, value_name = "VERSION", value_parser = version)]
    pub(crate) to: String,
    /// File of the program [default: the one that a revision of this version names]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
}

pub(crate) fn version(text: &str) -> Result<String, String> {
    check_version(text)?;
    Ok(text.to_owned())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it must be KEY=VALUE")?;
    if key.is_empty() {
        return Err("it must be KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}
