//! Which version should an environment have that follows a channel?
//!
//! Each channel is read at its period, and its status tells what it said. Once its version differs
//! from an environment's, the program is fetched and kept, and the environment gets a revision. An
//! active environment also gets a deployment. Its name follows from the moment at which the channel
//! began to name the version, so a version that failed is not tried again.

mod decisions;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use daemon_kit::clock::Clock;
use fleet_release::{FetchLimits, Fetcher, ReadError, Repository, Scope, Trust};
use fleet_store::{FleetStore, Follower, LoadedChannel, Problem, Programs};
use protocol::fleet::{
    CONDITION_ADOPTED, ChannelProblem, ChannelReading, ChannelStatus, DeploymentKind,
    DeploymentSpec, EnvironmentState, KEY_REFRESH, NamedVersion, Resolved, RevisionData,
};
use protocol::time::WallTime;
use reqwest::Url;
use tokio::time::timeout;

use crate::changes::{Change, ChangeKind, change};
use crate::driver::Params;
use crate::names::short_digest;
use crate::records::Records;
use crate::wanted::Wanted;

/// Between two lists of the channels.
const LIST_EVERY: Duration = Duration::from_secs(5);
/// Longest time for one call of the API.
const API_LIMIT: Duration = Duration::from_secs(10);
/// Age of the written time of a reading, microseconds. Until then an equal status is not written.
const UNWRITTEN_US: i64 = 3_600_000_000;

/// What was read of a channel, and when it is read again.
struct Polled {
    due: Instant,
    generation: i64,
    refresh: Option<String>,
}

/// Reads the channels and brings their versions to environments.
pub struct Channels {
    store: FleetStore,
    programs: Programs,
    clock: Clock,
    /// Folder of the metadata that was verified.
    verified: PathBuf,
    scope: Scope,
    authorities: Vec<Vec<u8>>,
    fetcher: Option<Fetcher>,
    /// Programs that turns need.
    wanted: Wanted,
    /// Those that this round fetches.
    missing: BTreeSet<String>,
    polled: BTreeMap<(String, String), Polled>,
    problems: Vec<Problem>,
    records: Records,
}

impl Channels {
    /// For the channels of a machine. Nothing is read before [`Channels::round`].
    #[must_use]
    pub fn new(params: &Params) -> Self {
        let (scope, authorities) = params.location.believed();
        Self {
            scope,
            authorities: authorities.to_vec(),
            wanted: Wanted::default(),
            missing: BTreeSet::new(),
            store: FleetStore::new(params.client.clone()),
            programs: Programs::of_state_dir(&params.state_dir),
            clock: params.clock,
            verified: params.state_dir.join("fleet/channels"),
            fetcher: None,
            polled: BTreeMap::new(),
            problems: Vec::new(),
            records: Records {
                journal: params.journal.clone(),
                clock: params.clock,
                metrics: params.metrics.clone(),
            },
        }
    }

    /// Fetches these programs too.
    pub(crate) fn fetching(mut self, wanted: Wanted) -> Self {
        self.wanted = wanted;
        self
    }

    pub(crate) async fn run(&mut self) {
        loop {
            if let Err(error) = self.round().await {
                tracing::warn!(error, "failed to look at the channels");
            }
            tokio::time::sleep(LIST_EVERY).await;
        }
    }

    /// Reads the channels that are due.
    ///
    /// # Errors
    /// The channels cannot be listed.
    pub async fn round(&mut self) -> Result<(), String> {
        let (mut all, problems) = api(self.store.channels()).await?;
        for Problem { object, reason } in problems.iter().filter(|it| !self.problems.contains(it)) {
            tracing::warn!(object, reason, "left out an object of the fleet");
        }
        self.problems = problems;
        let key = |one: &LoadedChannel| (one.namespace.clone(), one.name.clone());
        let keys: Vec<_> = all.iter().map(key).collect();
        self.polled.retain(|key, _| keys.contains(key));
        self.missing = self.wanted.take();
        for (key, channel) in keys.into_iter().zip(&mut all) {
            if !self.is_due(&key, channel) {
                continue;
            }
            let period = Duration::from_secs(channel.spec.poll_seconds.into());
            let polled = Polled {
                due: Instant::now() + period,
                generation: channel.generation(),
                refresh: channel.annotation(KEY_REFRESH).map(str::to_owned),
            };
            self.polled.insert(key, polled);
            self.poll(channel).await;
        }
        self.records.metrics.show_channels(&all);
        Ok(())
    }

    fn is_due(&self, key: &(String, String), channel: &LoadedChannel) -> bool {
        if !self.missing.is_empty() {
            return true;
        }
        self.polled.get(key).is_none_or(|polled| {
            Instant::now() >= polled.due
                || polled.generation != channel.generation()
                || polled.refresh.as_deref() != channel.annotation(KEY_REFRESH)
        })
    }

    async fn poll(&mut self, channel: &mut LoadedChannel) {
        let before = channel.status.clone();
        let opened = self.read(channel).await;
        let now = self.clock.wall();
        let (repository, reading) = match opened {
            Ok((repository, reading)) => (Some(repository), Ok(reading)),
            Err(error) => (None, Err(problem(&error))),
        };
        channel.status.take(now, &reading);
        // What is made below is named after the status, so that is written first.
        if !self.write(channel, &before, now).await {
            return;
        }
        let Some((repository, named)) = repository.zip(channel.status.named(now)) else {
            return;
        };
        let before = channel.status.clone();
        let adopted = self.adopt(channel, &repository, &named).await;
        let adopted = adopted.as_ref().copied();
        channel.status.set(now, CONDITION_ADOPTED, adopted);
        self.write(channel, &before, now).await;
    }

    /// Writes the status if it says something new, and once an hour. Returns whether the object has
    /// it.
    async fn write(
        &self,
        channel: &mut LoadedChannel,
        before: &ChannelStatus,
        now: WallTime,
    ) -> bool {
        if !is_worth_writing(before, &channel.status, now) {
            return true;
        }
        let written = api(self.store.write_channel(channel)).await;
        let is_written = written.is_ok();
        let on = format!("{}/{}", channel.namespace, channel.name);
        if let Some(said) = decisions::of_channel(on, before, &channel.status) {
            self.tell(said, written.map(drop));
        }
        is_written
    }

    fn tell(&self, change: Change, made: Result<(), String>) {
        self.records.tell(&Change {
            failure: made.err(),
            ..change
        });
    }

    async fn read(
        &mut self,
        channel: &LoadedChannel,
    ) -> Result<(Repository, ChannelReading), ReadError> {
        let spec = &channel.spec;
        let url = Url::parse(&spec.url)
            .map_err(|error| ReadError::Invalid(format!("{}: {error}", spec.url)))?;
        let fetcher = match &self.fetcher {
            Some(fetcher) => fetcher.clone(),
            None => {
                let authorities: Vec<&[u8]> = self.authorities.iter().map(Vec::as_slice).collect();
                let new = Fetcher::new(FetchLimits::default(), &authorities);
                let new = new.map_err(ReadError::Unavailable)?;
                self.fetcher.insert(new).clone()
            }
        };
        let verified = self.verified.join(&channel.namespace).join(&channel.name);
        let trust = Trust::of_channel(spec, &verified);
        let repository = Repository::open(&fetcher, &url, trust, self.scope).await?;
        let reading = repository.channel(&spec.name).await?;
        Ok((repository, reading))
    }

    /// Brings the version to each environment that follows the channel. One that cannot take it
    /// hurts no other.
    async fn adopt(
        &self,
        channel: &LoadedChannel,
        repository: &Repository,
        named: &NamedVersion,
    ) -> Result<(), ChannelProblem> {
        let followers = api(self.store.followers(channel)).await;
        let followers = followers.map_err(|error| of_api("list environments", &error))?;
        let mut result = Ok(());
        for follower in followers {
            self.fetch_wanted(channel, repository, &follower).await;
            let adopted = self.bring(channel, repository, named, &follower).await;
            if let Err(mut problem) = adopted {
                let name = &follower.name;
                problem.message = format!("environment {name}: {}", problem.message);
                result = Err(problem);
            }
        }
        result
    }

    async fn bring(
        &self,
        channel: &LoadedChannel,
        repository: &Repository,
        named: &NamedVersion,
        follower: &Follower,
    ) -> Result<(), ChannelProblem> {
        let version = named.version.to_string();
        if follower.status.desired == version {
            return Ok(());
        }
        let namespace = &channel.namespace;
        let mut kept = follower.revisions.iter();
        let same =
            kept.find(|one| one.data.resolved.version == version && one.data.spec == follower.spec);
        let revision = match same {
            Some(same) => same.name.clone(),
            None => {
                let resolved = self.resolve(repository, named, follower).await?;
                let data = RevisionData {
                    spec: follower.spec.clone(),
                    resolved,
                };
                self.make_revision(channel, follower, &data).await?
            }
        };
        if follower.status.state != EnvironmentState::Active {
            return Ok(());
        }
        let spec = DeploymentSpec {
            reason: format!("channel {} names {version}", channel.name),
            ..DeploymentSpec::new(&follower.name, revision, DeploymentKind::User)
        };
        let name = deployment_name(&spec.revision, &channel.name, named.since);
        let created = self.store.create_deployment(namespace, &name, &spec);
        let created = api(created).await;
        if !matches!(created, Ok(false)) {
            let on = format!("{namespace}/{name}");
            let made = change(ChangeKind::Create, on, spec.revision, spec.reason);
            self.tell(made, created.clone().map(drop));
        }
        let created = created.map(drop);
        created.map_err(|error| of_api("make a deployment", &error))
    }

    async fn make_revision(
        &self,
        channel: &LoadedChannel,
        follower: &Follower,
        data: &RevisionData,
    ) -> Result<String, ChannelProblem> {
        let namespace = &channel.namespace;
        let created = self.store.create_revision(namespace, follower, data);
        let created = api(created).await.map(|one| one.name);
        let name = created.as_ref().unwrap_or(&follower.name);
        let Resolved {
            version, sha256, ..
        } = &data.resolved;
        let made = change(
            ChangeKind::Revision,
            format!("{namespace}/{name}"),
            format!("{version} sha256:{sha256}"),
            format!("channel {} names {version}", channel.name),
        );
        self.tell(made, created.clone().map(drop));
        created.map_err(|error| of_api("make a revision", &error))
    }
}

async fn api<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    let result = timeout(API_LIMIT, call).await;
    let result = result.map_err(|_| "the API did not answer in time".to_owned())?;
    result.map_err(|error| daemon_kit::chain(&error))
}

fn problem(error: &ReadError) -> ChannelProblem {
    ChannelProblem {
        reason: error.reason().to_owned(),
        message: error.to_string(),
    }
}

fn of_api(what: &str, error: &str) -> ChannelProblem {
    ChannelProblem {
        reason: "ApiFailed".to_owned(),
        message: format!("failed to {what}: {error}"),
    }
}

/// One name for each time at which a channel began to name a version.
fn deployment_name(revision: &str, channel: &str, since: WallTime) -> String {
    let short = short_digest(&format!("{channel} {}", since.0), 4);
    format!("{revision}-{short}")
}

/// A status is written when it says something new, and once an hour.
fn is_worth_writing(before: &ChannelStatus, after: &ChannelStatus, now: WallTime) -> bool {
    let mut aged = before.clone();
    aged.fetched_at = after.fetched_at;
    let written = before.fetched_at.map_or(i64::MIN, |time| time.0);
    aged != *after || now.0.saturating_sub(written) >= UNWRITTEN_US
}
